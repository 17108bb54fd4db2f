"""The options of `mldebug probe collectives`, and the lists in them."""

from pathlib import Path

import click

from mldebug.cli.param_types import INTERFACE, WordListParam
from mldebug.core.errors import UsageError
from mldebug.probes.collectives import OPS
from mldebug_agents.probes.multi_node import WAYS
from mldebug_agents.probes.options import Number, adding, size

DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int8", "uint8")
LARGEST = 16 << 30
_FILE = click.Path(path_type=Path, dir_okay=False)
_OPTIONS = (
    click.option("--nproc", type=click.IntRange(1, 64), help="Ranks on each node. Default: one for each GPU, 2 on CPUs."),
    click.option("--sizes", metavar="LIST", help="Payloads: 1KiB,1GiB, or 1KiB-1GiB for each doubling."),
    click.option("--ops", type=WordListParam(OPS), metavar="LIST", default=",".join(OPS), help="Which collectives. Default: all."),
    click.option("--dtype", type=click.Choice(DTYPES), default="float32", show_default=True, help="Of the elements."),
    click.option("--warmup", type=click.IntRange(1, 1000), default=5, show_default=True, help="Untimed repetitions."),
    click.option("--repeats", type=click.IntRange(1, 1000), default=20, show_default=True, help="Timed repetitions at most."),
    click.option("--timeout", type=Number(1, 3600), default=60.0, show_default=True, help="Seconds that one operation may take."),
    click.option("--memory", metavar="SIZE", help="Largest memory of each rank. Default: a share of what is free."),
    click.option("--interface", type=INTERFACE, default="", help="Network interface that the ranks talk over."),
    click.option("--hosts", metavar="LIST", help="Measure over these nodes: a,b or n[1-4]."),
    click.option("--through", type=click.Choice(WAYS), default="ssh", show_default=True, help="How --hosts are reached."),
    click.option("--print-commands", is_flag=True, help="Print a torchrun line for each of --hosts, to be typed there."),
    click.option("--if-idle", is_flag=True, help="That a node is busy is no failure then: exit code 0."),
    click.option("--read", "stored", type=click.File("r", errors="replace"), help="Show what such a line has printed (- for stdin)."),
    click.option("--json", "as_json", is_flag=True, help="Print a list with an object for each op and size."),
    click.option("--csv", type=_FILE, help="Write a table there, too."),
    click.option("--plot", "picture", type=_FILE, help="Draw bus bandwidths there (needs matplotlib)."),
    click.option("--textfile", type=_FILE, help="Write metrics for node_exporter there."),
    click.option("--state-dir", type=click.Path(path_type=Path), help="Whose history it joins. Default: the agent's of this user."),
)  # fmt: skip


collective_options = adding(*_OPTIONS)
"""Gives the command its options."""


def chosen_ops(text: str) -> tuple[str, ...]:
    """The ops in a comma-separated list, each once; raises UsageError for unknown ones."""
    chosen = tuple(dict.fromkeys(one.strip() for one in text.split(",") if one.strip()))
    unknown = [one for one in chosen if one not in OPS]
    if unknown or not chosen:
        legal = f"choose from: {', '.join(OPS)}"
        raise UsageError(f"--ops {text}: there is no {', '.join(unknown) or 'op'}", legal)
    return chosen


def payloads(text: str) -> tuple[int, ...]:
    """Bytes of `1KiB,1MiB-8MiB` (each doubling); UsageError for what is no size, or too large."""
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
