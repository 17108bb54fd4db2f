"""Is this node fit to train? Driver, memory, matmul, copies, NCCL, disk."""

import click
import msgspec

from mldebug.cli.param_types import FOLDER, WordListParam
from mldebug.core.errors import ExitCode, MldebugError, UsageError
from mldebug.core.plugins import NoOptions
from mldebug.core.redact import clean
from mldebug.probes.baselines import shipped
from mldebug.probes.checks import Acceptance, NodeCheck, accept
from mldebug.probes.ports import check_wanted
from mldebug_agents.probes.environment import checked_variables
from mldebug_agents.probes.node_stages import STAGES, WITHOUT_TORCH, NodeProbe
from mldebug_agents.probes.node_stages import NodeRequirements as Shown
from mldebug_agents.probes.options import probe_options, probe_settings
from mldebug_agents.probes.session import ProbeSettings, open_session
from mldebug_agents.probes.tools import open_probe_tools


@click.command("node")
@click.option(
    "--stages", type=WordListParam(STAGES), metavar="NAMES", help=f"Only these: {','.join(STAGES)}."
)
@click.option(
    "--require-gpus", type=click.IntRange(0, 1024), help="Fail with fewer GPUs than that."
)
@click.option(
    "--require-ib", metavar="PORTS", help="Fail with fewer active ports: 8, or 8x400 (Gb/s)."
)
@click.option(
    "--disk",
    type=FOLDER,
    metavar="FOLDER",
    default="",
    help="Measure how fast a file is written there.",
)
@click.option(
    "--dcgm",
    type=click.IntRange(1, 4),
    default=1,
    show_default=True,
    help="Level of `dcgmi diag -r`, where it is installed; from 2 on it loads the GPUs.",
)
@click.option(
    "--drain-reason", is_flag=True, help="Print only one line, and only where a check failed."
)
@click.option("--json", "as_json", is_flag=True, help="Print an object with every check.")
@probe_options
def command(
    stages: str | None, require_gpus: int | None, require_ib: str | None, disk: str, dcgm: int,
    drain_reason: bool, as_json: bool, python: str | None, device: str, duration: str, beside_jobs: bool,
) -> int:  # fmt: skip
    """Is this node fit to train?

    Each stage has a deadline and is told with its time. GPUs are compared with others of their model on this node, and with
    what was published of it. Exit code 0: fit; 1: a check failed, the node is busy, or there was no time; 3: PyTorch is
    missing.
    """
    shown = Shown(
        stages=_stages(stages), gpus=require_gpus, ports=_ports(require_ib), disk=disk, dcgm=dcgm, cpus_only=device == "cpu"
    )  # fmt: skip
    quiet = drain_reason or as_json
    probe = NodeProbe(shown, shipped(), lambda check: click.echo(_line(check), err=quiet))
    try:
        _probe(probe, shown, probe_settings(python, device, duration, beside_jobs))
    except (KeyboardInterrupt, SystemExit):  # what was found by then drains a node, too
        probe.cut = "it was interrupted"
        _show(probe, as_json, drain_reason)
        raise
    acceptance = _show(probe, as_json, drain_reason)
    if probe.cut:
        raise MldebugError(probe.cut, probe.way_out)
    return ExitCode.FINE if acceptance.fit else ExitCode.FOUND


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug probe node`: is this node fit to train? Driver, memory, matmul, copies, NCCL, disk."""
    return command


def _show(probe: NodeProbe, as_json: bool, drain_reason: bool) -> Acceptance:
    acceptance = accept(probe.node, probe.checks, probe.cut)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(acceptance), indent=2).decode())
    elif not drain_reason:
        click.echo(clean(acceptance.verdict, 500))
    elif acceptance.drain_reason:
        click.echo(clean(acceptance.drain_reason, 100))
    return acceptance


def _probe(probe: NodeProbe, shown: Shown, settings: ProbeSettings) -> None:
    """Do all stages."""
    if set(shown.stages) <= set(WITHOUT_TORCH) and shown.dcgm == 1:
        with open_probe_tools() as tools:
            probe.look(tools)
        return
    checked_variables()
    with open_session(settings) as session:
        probe.look(session.tools)
        probe.load(session)


def _line(check: NodeCheck) -> str:
    took = f" ({check.seconds:.1f} s)" if check.seconds else ""
    return clean(f"{check.state:<8}{check.sentence}{took}", 600)


def _stages(text: str | None) -> tuple[str, ...]:
    names = STAGES if text is None else tuple(text.split(","))
    for name in names:
        if name not in STAGES:
            raise UsageError(f"there is no stage {name[:40]!r}", f"choose from: {','.join(STAGES)}")
    return tuple(stage for stage in STAGES if stage in names)


def _ports(text: str | None) -> str | None:
    if text is not None:
        try:
            check_wanted(text)
        except ValueError as error:
            raise UsageError(f"--require-ib {error}") from None
    return text
