"""Trace the calls of a process into a ring, and read rings.

`mldebug trace run` starts a program whose latest Python calls are kept in a file of fixed size, the ring; `attach` does so in a
process that runs already, and `detach` ends that; the other verbs show, export and merge such files.
"""

import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click
import msgspec

from mldebug.capture.trace import verbs
from mldebug.config.schema import load_config
from mldebug.core.errors import ExitCode
from mldebug.core.plugins import NoOptions
from mldebug_agents.agent.node_tools import open_tools
from mldebug_agents.incidents.step_orders import seconds_of
from mldebug_agents.jobs import trace_start
from mldebug_agents.jobs.hook.trace_attach import AttachAnswer, TraceAttacher
from mldebug_agents.jobs.trace_start import TraceOptions, arguments, trace_options

_PIDS = click.argument("pids", nargs=-1, required=True, type=click.IntRange(1), metavar="PID ...")
_SHARED = (
    click.option("--python", default="", metavar="PATH", help="The Python that they run, where its name does not say so."),
    click.option("--wait", default="10s", show_default=True, metavar="DURATION", help="How long each may take to reach a safe point."),
    click.option("--json", "as_json", is_flag=True, help="Print an object."),
)  # fmt: skip


@click.group("trace", context_settings={"help_option_names": ["-h", "--help"]})
def group() -> None:
    """Trace the calls of a process into a ring, and read rings.

    A ring is a file of fixed size that holds what a process did last. It survives the process, however that ended.
    """


def _shared(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_SHARED):
        command = option(command)
    return command


@click.command("attach")
@_PIDS
@click.option("--ring", type=click.Path(path_type=Path), help="The file; a second process adds its pid to the name.")  # fmt: skip
@trace_options()
@_shared
def attach(
    pids: tuple[int, ...], ring: Path | None, traced: TraceOptions, python: str, wait: str, as_json: bool
) -> None:  # fmt: skip
    """Trace processes that run already, from now on: mldebug trace attach 4711 --include mypkg

    For Python 3.14 and later, where the main thread reaches a safe point: who waits in C code does not. Nothing is restarted.

    Exit code 0: all are traced; 3: one is not, with the reason.
    """
    words = arguments(msgspec.structs.replace(traced, ring=ring))
    _answer(pids, python, wait, as_json, lambda one, pid: one.attach(pid, words))


@click.command("detach")
@_PIDS
@_shared
def detach(pids: tuple[int, ...], python: str, wait: str, as_json: bool) -> None:
    """End the traces that `attach` has begun. The rings stay.

    Exit code 0: all have ended; 3: one has not, with the reason.
    """
    _answer(pids, python, wait, as_json, lambda one, pid: one.detach(pid))


def _answer(
    pids: Iterable[int], python: str, wait: str, as_json: bool, do: Callable[[TraceAttacher, int], AttachAnswer]
) -> None:  # fmt: skip
    patience = seconds_of(wait)
    with open_tools(load_config(None)) as tools:
        attacher = TraceAttacher(tools.context, python, patience)
        answers = [do(attacher, pid) for pid in dict.fromkeys(pids)]
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(answers), indent=2).decode())
    else:
        for line in (line for one in answers for line in answer_lines(one)):
            click.echo(line)
    sys.exit(ExitCode.MISSING if any(one.failure for one in answers) else ExitCode.FINE)


def answer_lines(one: AttachAnswer) -> Iterator[str]:
    """Lines of text about one process in which a trace was begun or ended: whether that worked, else why not."""
    if one.failure:
        yield f"pid {one.pid}: {one.failure}"
    elif one.engine:
        yield f"pid {one.pid}: traced from now on by {one.engine} (Python {one.python}): {one.followed}"
        ring = one.ring or f"/dev/shm/mldebug_trace-{one.pid}-"  # noqa: S108 - only named
        yield f"  its ring is made at the next call of that: mldebug trace show {shlex.quote(ring)}*"
        yield f"  to end it: mldebug trace detach {one.pid}"
    else:
        yield f"pid {one.pid}: no longer traced; its ring: {one.ring or 'none, nothing was called that is followed'}"


for verb in (trace_start.run, attach, detach, verbs.show, verbs.export, verbs.merge):
    group.add_command(verb)


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug trace`: trace the calls of a process into a ring, and read rings."""
    return group
