"""Say whether a job may start on these nodes."""

import os
import secrets
import socket
import sys
import time
from pathlib import Path

import click
import msgspec
from rich.text import Text

from mldebug.cli.console import Console, print_line
from mldebug.cli.param_types import FILE, FOLDER, JOB
from mldebug.cluster.hostfile import read_hosts
from mldebug.cluster.wire import NodeReply, encode
from mldebug.config.schema import Config, load_config
from mldebug.core.errors import ExitCode, MldebugError, UsageError
from mldebug.core.plugins import NoOptions
from mldebug.core.progress import progress_line
from mldebug.core.redact import clean
from mldebug.core.units import format_size, parse_size
from mldebug.diagnosis.exits.model import words_of_status
from mldebug.jobs.run_records.model import RunRecord, without_numbers
from mldebug.probes.last_good_run import changes_since
from mldebug.probes.ports import check_wanted
from mldebug.probes.preflight.findings import CheckedNode, NodeFindings, Preflight, judge, words
from mldebug.probes.preflight.rendezvous import parse_endpoint
from mldebug_agents.agent.node_tools import NodeTools, open_tools
from mldebug_agents.cluster.fanout.abandonment import end_without_reader, ended_by_signals
from mldebug_agents.cluster.fanout.messages import MOST_TOGETHER, FanoutRequest, answer_seconds
from mldebug_agents.cluster.fanout.progress_line import Waiting
from mldebug_agents.cluster.node_findings import NodesChecked, check_nodes
from mldebug_agents.probes.preflight.node_look import (
    MeetingRequest,
    PreflightRequest,
    look_at_node,
    measure_node,
)
from mldebug_agents.probes.tools import ProbeTools
from mldebug_agents.web.client import ask_nearest, record_of_run, recorded_runs

WELL = words_of_status(0)
WAIT, WAIT_LOADED = "90s", "3m"  # the load alone takes a minute, beside what each node needs anyway

MOST_SHOWN = 24  # findings: all fits one page


@click.command("preflight")
@click.option("--folder", "folders", type=FOLDER, multiple=True, metavar="FOLDER", help="The job writes there, the first time its checkpoints. Repeatable.")  # fmt: skip
@click.option("--checkpoint", metavar="SIZE", help="Of one checkpoint: 400GiB. The first --folder must have room for two.")  # fmt: skip
@click.option("--gpus", type=click.IntRange(0, 1024), help="Fail with fewer GPUs on a node.")
@click.option("--ib", "ports", metavar="PORTS", help="Fail with fewer active ports: 8, or 8x400 (Gb/s).")  # fmt: skip
@click.option("--python", type=FILE, default="", help="The training environment's Python, whose packages are compared.")  # fmt: skip
@click.option("--load", is_flag=True, help="Also measure each GPU, and NCCL between them, for a minute; nobody may compute there.")  # fmt: skip
@click.option(
    "--job", type=JOB, help="Compare each node with the last run of this job there that ended well."
)
@click.option("--rendezvous", metavar="HOST:PORT", help="Where the ranks will meet: whether its port is free, and the nodes reach it and each other.")  # fmt: skip
@click.option("--slurm-job", metavar="ID", help="On all nodes of this Slurm job, by srun.")
@click.option("--hosts", metavar="NODES", help="On these nodes: node[1-40], or a hostfile; by ssh.")
@click.option("--there", type=FILE, default="", help="The Python with mldebug on other nodes; default: this one's path.")  # fmt: skip
@click.option("--wait", metavar="DURATION", help="How long a node has to answer.  [default: 90s, with --load 3m]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print an object with all that was found.")
@click.option("--send", is_flag=True, hidden=True)  # what the nodes are asked for
@click.option(
    "--meeting", hidden=True
)  # how many nodes come to the rendezvous, and what their greetings bear
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
def command(
    folders: tuple[str, ...], checkpoint: str | None, gpus: int | None, ports: str | None, python: str, load: bool, job: str | None, rendezvous: str | None,
    slurm_job: str | None, hosts: str | None, there: str, wait: str | None, as_json: bool, send: bool, meeting: str | None, config: Path | None,
) -> None:  # fmt: skip
    """Say whether a job may start here, or on all its nodes.

    Checked on each node: folders (there, writable, room), /dev/shm, GPUs, RDMA ports, the training environment, whether the nodes
    reach each other. Compared between nodes: packages, driver, GPUs, variables, clocks. Without --load nothing is put on the GPUs.

    Exit code 0: go; 1: something stands against it.
    """
    own = load_config(config)
    wanted = PreflightRequest(
        folders=tuple(dict.fromkeys(map(_whole, folders))), checkpoint=_size(checkpoint), gpus=gpus, ports=_ports(ports),
        python=_whole(python) if "/" in python else python, load=load, job=job or "",
        meeting=_meeting(rendezvous, meeting or ""),
    )  # fmt: skip
    if slurm_job is not None and hosts is not None:
        raise UsageError("use --slurm-job or --hosts, not both", "choose one of them")
    if send:
        name = (
            os.environ.get("SLURMD_NODENAME") if slurm_job else ""
        )  # Slurm's, which may not be the host's own
        _send(own, wanted, name or socket.gethostname())
        return
    _check_named(slurm_job, hosts)
    if slurm_job or hosts:
        wanted = _for_all(wanted, hosts)
        request = FanoutRequest(
            target=slurm_job or hosts or "", python=there or sys.executable, arguments=_arguments(wanted), timeout=answer_seconds(wait or (WAIT_LOADED if load else WAIT)),
            together=wanted.meeting is not None,
        )  # fmt: skip
        with Waiting(quiet=as_json) as progress:
            checked = check_nodes(own, "slurm" if slurm_job else "ssh", request, progress)
    else:
        checked = _here(own, wanted)
    found = judge(checked.answers, checked.silent)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        _show(found)
    sys.exit(ExitCode.FINE if found.go else ExitCode.FOUND)


def _here(config: Config, wanted: PreflightRequest) -> NodesChecked:
    sent = time.time()
    with progress_line("checking this node") as line:
        with open_tools(config) as tools:
            findings = _look(tools, config, wanted)
        if wanted.load:
            line.now("measuring the GPUs under load")
        findings = _measured(findings, wanted)
    answer = CheckedNode(findings=findings, sent=sent, came=time.time())
    return NodesChecked(answers=(answer,), silent={})


def _look(tools: NodeTools, config: Config, wanted: PreflightRequest, name: str = "") -> NodeFindings:  # fmt: skip
    gpus = ProbeTools(tools.context, tools.gpus, tools.capture.finder)
    found = look_at_node(gpus, tools.filesystem_probe, wanted, name)
    if not wanted.job:
        return found
    good, why = _last_good(config, wanted.job)
    return msgspec.structs.replace(found, since_good=changes_since(good, found) if good else (why,))


def _measured(findings: NodeFindings, wanted: PreflightRequest) -> NodeFindings:
    """With what a short load on the GPUs shows; what keeps it from being measured is a finding, too."""
    if not wanted.load:
        return findings
    began = time.monotonic()
    checks = measure_node(wanted)
    more = time.monotonic() - began
    return msgspec.structs.replace(
        findings, checks=(*findings.checks, *checks), clock=time.time(), seconds=findings.seconds + more
    )  # fmt: skip


def _send(config: Config, wanted: PreflightRequest, node: str) -> None:
    """Print what this node found, for the mldebug that asked. `node`: the name by which it asked."""
    with ended_by_signals(), open_tools(config) as tools:
        end_without_reader(sys.stdout.fileno())  # a thread: after the process starter has forked
        findings = _look(tools, config, wanted, node)
    findings = _measured(findings, wanted)
    for line in encode(NodeReply(node=node, findings=findings)):
        sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _arguments(wanted: PreflightRequest) -> tuple[str, ...]:
    """What is asked of `mldebug` on each node."""
    found = ["preflight", "--send"]
    for folder in wanted.folders:
        found += ["--folder", folder]
    if wanted.checkpoint:
        found += ["--checkpoint", format_size(wanted.checkpoint)]
    if wanted.gpus is not None:
        found += ["--gpus", str(wanted.gpus)]
    if wanted.ports:
        found += ["--ib", wanted.ports]
    if wanted.python:
        found += ["--python", wanted.python]
    if wanted.job:
        found += ["--job", wanted.job]
    if wanted.load:
        found.append("--load")
    if wanted.meeting:
        found += ["--rendezvous", wanted.meeting.where.words]
        found += ["--meeting", f"{wanted.meeting.nodes}:{wanted.meeting.token}"]
    return tuple(found)


def _meeting(rendezvous: str | None, meeting: str) -> MeetingRequest | None:
    """What was asked for. `meeting`: `NODES:TOKEN`, where another mldebug has asked; srun tells each node how many they are."""
    if rendezvous is None:
        return None
    try:
        where = parse_endpoint(rendezvous)
    except ValueError as error:
        raise UsageError(f"--rendezvous: {error}", "write it like node1:29500") from None
    nodes, _, token = meeting.partition(":")
    count = nodes if nodes != "0" else os.environ.get("SLURM_STEP_NUM_NODES", "1")
    return MeetingRequest(where=where, nodes=int(count) if count.isdigit() else 1, token=token)


def _for_all(wanted: PreflightRequest, hosts: str | None) -> PreflightRequest:
    """With how many nodes meet; 0: as many as the step of Slurm has."""
    if wanted.meeting is None:
        return wanted
    count = len(read_hosts(hosts).names) if hosts else 0
    if count > MOST_TOGETHER:
        raise UsageError(f"{count:,} hosts are too many to meet", f"without --rendezvous, or at most {MOST_TOGETHER:,}")  # fmt: skip
    meeting = msgspec.structs.replace(wanted.meeting, nodes=count, token=secrets.token_hex(8))
    return msgspec.structs.replace(wanted, meeting=meeting)


def _last_good(config: Config, job: str) -> tuple[RunRecord | None, str]:
    """The record of the newest run of this job that ended well here; or None, and why there is none."""
    near = ask_nearest(config.agent.state_dir)
    if near.answer.snapshot is None:
        return None, near.answer.trouble or "no agent runs here, so there is no earlier run to compare with"  # fmt: skip
    try:
        well = [one for one in recorded_runs(near.state_dir) if one.outcome == WELL]
        runs = [one for one in well if one.name == job] or [
            one
            for one in well
            if job == one.script or without_numbers(job) == without_numbers(one.name)
        ]
        if not runs:
            return None, f"no run of {clean(job, 60)} that ended well is recorded here"
        newest = max(runs, key=lambda one: one.started_at)
        return record_of_run(near.state_dir, newest.run), ""
    except MldebugError as error:
        return None, f"the last good run is not known: {error.message}"


def _show(found: Preflight) -> None:
    console = Console()
    print_line(console, Text(clean(found.verdict, 500), style="bold"))
    for one in found.findings[:MOST_SHOWN]:
        print_line(console, Text(f"  {'✘' if one.level == 'failed' else '·'} {clean(words(one), 400)}"))  # fmt: skip
    if len(found.findings) > MOST_SHOWN:
        print_line(console, Text(f"  and {len(found.findings) - MOST_SHOWN} more: --json has all"))
    for node in found.answers[:1] if len(found.answers) == 1 else ():
        _show_checks(console, node)


def _show_checks(console: Console, node: NodeFindings) -> None:
    for check in node.checks:
        if check.state != "failed":
            sign = "✔" if check.state == "fine" else "-"
            print_line(console, Text(f"  {sign} {clean(check.sentence, 400)}"))


def _check_named(*targets: str | None) -> None:
    """Raise UsageError for an empty list of nodes: without one, this node alone would be checked, and found fit."""
    if any(one is not None and not one.strip() for one in targets):
        raise UsageError("no nodes are named", "is the shell variable empty that should name them?")


def _whole(path: str) -> str:
    """The path from the root: who opens it works in another folder."""
    if not path:
        raise UsageError("--folder is empty", "is the shell variable empty that should name it?")
    return os.path.abspath(path)


def _size(words: str | None) -> int:
    try:
        return parse_size(words) if words else 0
    except ValueError as error:
        raise UsageError(f"--checkpoint: {error}", "write it like 400GiB") from None


def _ports(words: str | None) -> str | None:
    try:
        if words is not None:
            check_wanted(words)
    except ValueError as error:
        raise UsageError(f"--ib {error}", "write it like 8 or 8x400") from None
    return words


def create(_: NoOptions) -> click.Command:
    """Build the command `mldebug preflight`: say whether a job may start on these nodes."""
    return command
