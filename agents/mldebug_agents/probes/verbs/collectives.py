"""Time collectives, NCCL on GPUs and gloo on CPUs, and check their values."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

import click
import msgspec

from mldebug.cli.param_types import INTERFACE, WordListParam
from mldebug.cluster.hostfile import read_hosts
from mldebug.core.errors import ExitCode, UsageError
from mldebug.core.plugins import NoOptions
from mldebug.core.redact import clean
from mldebug.probes.baselines import beside_others
from mldebug.probes.collectives import OPS
from mldebug_agents.probes.child import ChildExit, Event, events, failure_cause
from mldebug_agents.probes.environment import checked_variables
from mldebug_agents.probes.guard import BusyError, only_probe
from mldebug_agents.probes.history.recording import record
from mldebug_agents.probes.measurement import CollectivesRequest, Measurement, check_ended
from mldebug_agents.probes.multi_node import WAYS, Nodes
from mldebug_agents.probes.options import (
    Number,
    adding,
    chosen_ops,
    payloads,
    probe_options,
    probe_settings,
    size,
)
from mldebug_agents.probes.output import (
    OutputFiles,
    callbacks,
    check_matplotlib,
    check_places,
    write,
)
from mldebug_agents.probes.rank_events import FAILURES, checked_event
from mldebug_agents.probes.session import ProbeSettings, open_session
from mldebug_agents.probes.tools import open_probe_tools

PORT = 29431  # of printed lines: nobody can ask there which one is free
DTYPES = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "int8", "uint8")
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


@click.command("collectives")
@collective_options
@probe_options
def command(
    nproc: int | None,
    sizes: str | None,
    ops: str,
    memory: str | None,
    hosts: str | None,
    through: str,
    print_commands: bool,
    stored: TextIO | None,
    as_json: bool,
    csv: Path | None,
    picture: Path | None,
    textfile: Path | None,
    python: str | None,
    device: str,
    duration: str,
    beside_jobs: bool,
    state_dir: Path | None,
    if_idle: bool,
    **rest: Any,
) -> int:
    """Time collectives, NCCL on GPUs and gloo on CPUs, and check their values.

    Times are those of the slowest rank in each repetition; bandwidths come from their median, by the factors of
    nccl-tests. Ctrl-C prints what was measured so far. Exit code 1: a value was wrong, a rank failed, or a node is
    busy.
    """
    frame = probe_settings(python, device, duration, beside_jobs)
    request = CollectivesRequest(
        nproc=nproc or 0,
        ops=chosen_ops(ops),
        sizes=() if sizes is None else payloads(sizes),
        memory=None if memory is None else size(memory, "--memory"),
        **rest,
    )
    if picture:
        check_matplotlib()
    output = OutputFiles(as_json=as_json, csv=csv, plot=picture, textfile=textfile)
    check_places(output)
    names = () if hosts is None else read_hosts(hosts).names
    kept = checked_variables()
    if print_commands:
        return _printed(request, names, frame, kept)
    measurement = Measurement(request, callbacks(output, kept))
    if stored is not None:
        return _measured(measurement, output, kept, lambda: _read(measurement, stored))

    def keep() -> None:
        if not beside_jobs:  # else the figures are of two
            record(measurement, names, kept, state_dir, lambda line: click.echo(line, err=True))
            _say_elsewhere(measurement)

    try:
        return _live(measurement, names, through, frame, output, keep)
    except BusyError as error:
        if not if_idle:
            raise
        click.echo(f"{error.message}; no failure, because of --if-idle", err=True)
        return ExitCode.FINE


def _live(
    measurement: Measurement,
    names: tuple[str, ...],
    through: str,
    frame: ProbeSettings,
    output: OutputFiles,
    keep: Callable[[], None],
) -> int:
    """Measure over the nodes `names`; without any, on this node."""
    kept = checked_variables()
    if not names:
        with open_session(frame) as session:
            return _measured(measurement, output, kept, lambda: measurement.run(session), keep)
    travelling = {**kept, **measurement.variables()}
    nodes = Nodes(names, through, frame.python or sys.executable, travelling)
    with open_probe_tools() as tools, only_probe(frame.lock):
        run = lambda: measurement.run_on(nodes, frame, tools.context.spawner)
        return _measured(measurement, output, kept, run, keep)


def _measured(
    measurement: Measurement,
    output: OutputFiles,
    kept: Mapping[str, str],
    run: Callable[[], ChildExit],
    keep: Callable[[], None] = lambda: None,
) -> int:
    """Measure, show and write; whatever ends it, what there is by then comes out. `keep` is called where it has run to its end."""
    try:
        ended = run()
        if ended.outcome == "done" and measurement.results:
            keep()
    finally:
        write(measurement, output)
    check_ended(ended, measurement, kept)
    wrong = any(result.correct is False for result in measurement.results)
    return int(ExitCode.FOUND if wrong else ExitCode.FINE)


def _say_elsewhere(measurement: Measurement) -> None:
    """On stderr, what the largest payload reached beside what was published for this hardware; nothing where none was."""
    if line := beside_others(measurement.about.gpu, measurement.results, measurement.gigabits):
        click.echo(line, err=True)


def _printed(
    request: CollectivesRequest,
    names: tuple[str, ...],
    frame: ProbeSettings,
    kept: Mapping[str, str],
) -> int:
    if not names or not request.nproc or frame.device == "auto":
        raise UsageError(
            "--print-commands asks no node what it has", "add --hosts a,b --nproc 8 --device cuda"
        )
    for line in Measurement(request).torchrun(names, frame, PORT, kept):
        click.echo(line)
    return int(ExitCode.FINE)


def _read(measurement: Measurement, stored: TextIO) -> ChildExit:
    """What ranks have said elsewhere; one that failed there fails here, too."""
    failures: list[Event] = []
    done = False
    for line in stored:
        for event in events([line.encode()]):
            measurement.on_event(event)
            done = done or event["event"] == "done"
            if (kind := FAILURES.get(event["event"])) is not None:
                failures.append(msgspec.structs.asdict(checked_event(event, kind)))
            if event["event"] == "stranger":
                return ChildExit(outcome="cancelled", reason=clean(str(event.get("reason")), 300))
            if event["event"] == "late":
                return ChildExit(outcome="late", reason="it did not end within its --duration")
    cut = measurement.results and not done and "it ended before all was measured"
    why = failure_cause(failures) or cut or ""
    return ChildExit(outcome="failed" if why else "done", reason=why)


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug probe collectives`: time collectives, NCCL on GPUs and gloo on CPUs, and check their values."""
    return command
