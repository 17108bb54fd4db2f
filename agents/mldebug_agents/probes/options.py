"""The options that every probe has."""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import click

from mldebug.cli.param_types import FILE
from mldebug.core.errors import UsageError
from mldebug.core.units import parse_duration, parse_size
from mldebug.probes.collectives import OPS
from mldebug_agents.probes.session import ProbeSettings

LARGEST = 16 << 30  # bytes of a payload

_Command = TypeVar("_Command", bound=Callable[..., Any])


class Number(click.FloatRange):
    """A click number in a range; unlike click's own, it refuses `nan`."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number; `nan` fails like a number outside the range."""
        found = float(super().convert(value, param, ctx))
        if math.isnan(found):
            self.fail(f"{value!r} is no number", param, ctx)
        return found


_OPTIONS = (
    click.option("--python", type=FILE, metavar="PATH", help="Python of the training environment, with torch."),
    click.option("--device", type=click.Choice(["auto", "cuda", "cpu"]), default="auto", help="What is measured."),
    click.option("--duration", metavar="DURATION", default="10m", show_default=True, help="Longest time for all."),
    click.option("--beside-jobs", is_flag=True, help="Measure although somebody computes here: slows them down."),
)  # fmt: skip


def adding(*options: Callable[[Any], Any]) -> Callable[[_Command], _Command]:
    """A decorator that adds these options to a command; its help shows them in this order."""

    def add(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


probe_options = adding(*_OPTIONS)
"""Gives a command the options of every probe; it gets them as keyword arguments for `probe_settings`."""


def probe_settings(
    python: str | None, device: str, duration: str, beside_jobs: bool
) -> ProbeSettings:
    """The settings made from the options of a command; raises UsageError for an invalid duration."""
    return ProbeSettings(
        python=python, device=device, duration=seconds(duration), beside_jobs=beside_jobs
    )


def seconds(text: str, option: str = "--duration") -> float:
    """Parse a duration such as 10m into seconds, more than 0 and at most a day; raises UsageError, which names `option`."""
    try:
        found = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{option} {text!r}: {error}", "write it like 10m") from None
    if not found:
        raise UsageError(f"{option} {text}: that leaves no time", "write it like 10m")
    if not 0 < found <= 86400:
        raise UsageError(f"{option} {text}: it may be up to a day", "write it like 10m")
    return found


def size(text: str, option: str) -> int:
    """Parse a size such as 1MiB into bytes; raises UsageError, which names `option`."""
    try:
        return parse_size(text)
    except ValueError as error:
        raise UsageError(f"{option} {text!r}: {error}", "write it like 16MiB") from None


def chosen_ops(text: str) -> tuple[str, ...]:
    """The ops in a comma-separated list, each once; raises UsageError for unknown ones."""
    chosen = tuple(dict.fromkeys(one.strip() for one in text.split(",") if one.strip()))
    unknown = [one for one in chosen if one not in OPS]
    if unknown or not chosen:
        legal = f"choose from: {', '.join(OPS)}"
        raise UsageError(f"--ops {text}: there is no {', '.join(unknown) or 'op'}", legal)
    return chosen


def payloads(text: str) -> tuple[int, ...]:
    """The sizes in bytes of a list such as `1KiB,1MiB-8MiB` (a range doubles each time); UsageError for what is no size, or too
    large.
    """
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        found.append(_payload(low))
        if dash and _payload(high) < found[-1]:
            raise UsageError(
                f"--sizes {part.strip()}: the smaller one comes first",
                f"--sizes {high}-{low.strip()}",
            )
        while dash and found[-1] * 2 <= _payload(high):
            found.append(found[-1] * 2)
    return tuple(dict.fromkeys(found))


def _payload(text: str) -> int:
    found = size(text, "--sizes")
    if not 1 <= found <= LARGEST:
        raise UsageError(f"--sizes {text}: a payload is 1B to 16GiB", "write it like 16MiB")
    return found
