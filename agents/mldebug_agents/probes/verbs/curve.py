"""Time collectives over 2, 4, 8 and more nodes: where the network no longer keeps up."""

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from mldebug.cli.param_types import INTERFACE, WordListParam
from mldebug.cluster.hostfile import read_hosts
from mldebug.core.errors import ExitCode, UsageError
from mldebug.core.plugins import NoOptions
from mldebug.core.ranksets import fold_nodes
from mldebug.probes.baselines import beside_others
from mldebug.probes.collectives import OPS
from mldebug.probes.curve import CurvePoint, as_csv, counts, table
from mldebug_agents.probes.environment import checked_variables
from mldebug_agents.probes.guard import only_probe
from mldebug_agents.probes.history.recording import record
from mldebug_agents.probes.measurement import (
    Callbacks,
    CollectivesRequest,
    Measurement,
    check_ended,
)
from mldebug_agents.probes.multi_node import WAYS, Nodes
from mldebug_agents.probes.options import (
    Number,
    adding,
    chosen_ops,
    payloads,
    probe_options,
    probe_settings,
)
from mldebug_agents.probes.output import (
    OutputFiles,
    Put,
    check_matplotlib,
    check_places,
    plot_curve,
    title,
    write_files,
)
from mldebug_agents.probes.session import ProbeSettings
from mldebug_agents.probes.tools import open_probe_tools

_FILE = click.Path(path_type=Path, dir_okay=False)
_OPTIONS = (
    click.option("--hosts", metavar="LIST", required=True, help="The nodes, taken in the order of their names: a,b or n[1-16]."),
    click.option("--through", type=click.Choice(WAYS), default="ssh", show_default=True, help="How they are reached."),
    click.option("--nproc", type=click.IntRange(1, 64), help="Ranks on each node. Default: one for each GPU, 2 on CPUs."),
    click.option("--ops", type=WordListParam(OPS), metavar="LIST", default="all_reduce", show_default=True, help="Which collectives."),
    click.option("--sizes", metavar="LIST", default="256MiB", show_default=True, help="Payloads: 1KiB,1GiB, or 1KiB-1GiB for each doubling."),
    click.option("--repeats", type=click.IntRange(1, 1000), default=20, show_default=True, help="Timed repetitions at most."),
    click.option("--timeout", type=Number(1, 3600), default=60.0, show_default=True, help="Seconds that one operation may take."),
    click.option("--interface", type=INTERFACE, default="", help="Network interface that the ranks talk over."),
    click.option("--json", "as_json", is_flag=True, help="Print a list with an object for each number of nodes."),
    click.option("--csv", type=_FILE, help="Write a table there, too."),
    click.option("--plot", "picture", type=_FILE, help="Draw the curve there (needs matplotlib)."),
    click.option("--state-dir", type=click.Path(path_type=Path), help="Whose history it joins. Default: the agent's of this user."),
)  # fmt: skip


@click.command("curve")
@adding(*_OPTIONS)
@probe_options
def command(
    hosts: str,
    through: str,
    nproc: int | None,
    ops: str,
    sizes: str,
    as_json: bool,
    csv: Path | None,
    picture: Path | None,
    state_dir: Path | None,
    python: str | None,
    device: str,
    duration: str,
    beside_jobs: bool,
    **rest: Any,
) -> int:
    """Time collectives over 2, 4, 8 and more nodes: where the network no longer keeps up.

    Measured over the first 2 of the nodes, the first 4 and so on, at last over all. Ctrl-C shows what was measured so
    far. Exit code 1: a value was wrong, a rank failed, or a node is busy.
    """
    frame = probe_settings(python, device, duration, beside_jobs)
    request = CollectivesRequest(
        nproc=nproc or 0, ops=chosen_ops(ops), sizes=payloads(sizes), **rest
    )
    names = read_hosts(hosts).names
    if len(names) < 2:
        raise UsageError("a curve needs two nodes at least", "mldebug probe curve --hosts n1,n2")
    if picture:
        check_matplotlib()
    output = OutputFiles(as_json=as_json, csv=csv, plot=picture, textfile=None)
    check_places(output)
    points: list[CurvePoint] = []
    about: list[str] = []
    try:
        for measurement, some in _measured(request, names, through, frame):
            about[:] = [title(measurement.about)]
            points.append(CurvePoint(nodes=len(some), results=tuple(measurement.results)))
            if not beside_jobs:
                kept = checked_variables()
                record(measurement, some, kept, state_dir, _say)
            if line := beside_others(
                measurement.about.gpu, measurement.results, measurement.gigabits
            ):
                _say(f"over {len(some)} nodes: {line}")
    finally:
        if points:
            _show(points, output, about[0])
    wrong = any(one.correct is False for point in points for one in point.results)
    return int(ExitCode.FOUND if wrong else ExitCode.FINE)


def _measured(
    request: CollectivesRequest, names: Sequence[str], through: str, frame: ProbeSettings
) -> Iterator[tuple[Measurement, tuple[str, ...]]]:
    """Each measurement that has run to its end, with the nodes it was over. Raises MldebugError for one that has not."""
    kept, until = checked_variables(), time.monotonic() + frame.duration
    with open_probe_tools() as tools, only_probe(frame.lock):
        for count in counts(len(names)):
            some = tuple(names[:count])
            measurement = Measurement(request, Callbacks(skipped=_say))
            travelling = {**kept, **measurement.variables()}
            nodes = Nodes(some, through, frame.python or sys.executable, travelling)
            left = msgspec.structs.replace(frame, duration=max(1.0, until - time.monotonic()))
            _say(f"over {count} nodes: {fold_nodes(some)}")
            check_ended(measurement.run_on(nodes, left, tools.context.spawner), measurement, kept)
            yield measurement, some


def _say(line: str) -> None:
    click.echo(line, err=True)


def _show(points: Sequence[CurvePoint], output: OutputFiles, heading: str) -> None:
    if output.as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(points), indent=2).decode())
    else:
        for line in table(points):
            click.echo(line)
    wanted: list[tuple[Path | None, Put]] = [
        (output.csv, lambda path: path.write_text(as_csv(points), encoding="utf-8")),
        (output.plot, lambda path: plot_curve(points, path, heading)),
    ]
    write_files([(path, put) for path, put in wanted if path is not None])


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug probe curve`: time collectives over 2, 4, 8 and more nodes."""
    return command
