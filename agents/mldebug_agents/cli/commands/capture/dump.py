"""Capture all ranks here now and name the culprit."""

import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import msgspec

from mldebug.cli.console import Console
from mldebug.cli.param_types import FILE, JOB
from mldebug.cluster.messages import (
    CLUSTER_PATH,
    DUMP_DEADLINE,
    DUMP_PATH,
    MAX_REPORT,
    MAX_VIEW,
    ClusterView,
)
from mldebug.cluster.wire import encode
from mldebug.config.schema import Config, load_config
from mldebug.core.errors import ExitCode, MldebugError, UsageError
from mldebug.core.model import Verdict
from mldebug.core.plugins import NoOptions
from mldebug.core.progress import progress_line
from mldebug.core.report_model import Report
from mldebug.core.units import duration_words, parse_duration
from mldebug.incidents.report.html import render_html
from mldebug.incidents.report.sanitize import tidy_report
from mldebug.incidents.report.text import print_report
from mldebug_agents.agent.node_tools import open_tools
from mldebug_agents.cluster.fanout.abandonment import end_without_reader, ended_by_signals
from mldebug_agents.cluster.fanout.messages import FanoutRequest, answer_seconds
from mldebug_agents.cluster.fanout.progress_line import Waiting
from mldebug_agents.cluster.node_captures import capture_all, reply
from mldebug_agents.cluster.peers.reach import run_elsewhere
from mldebug_agents.incidents.manual import (
    STORE_TIMEOUT,
    Taken,
    choose,
    look_beside,
    take,
    within,
)
from mldebug_agents.web.client import ask_nearest
from mldebug_agents.web.control_requests import post_to_agent

MAX_WATCH = 60.0
DEFAULT_WAIT = "60s"


@click.command("dump")
@click.argument("name", required=False, type=JOB, metavar="[JOB]")
@click.option(
    "--pid",
    type=click.IntRange(min=1),
    metavar="PID",
    help="The job of this process (a rank, a worker or a launcher).",
)
@click.option(
    "--job",
    type=JOB,
    help="The job with this id or name, on all its nodes where agents are joined; default: every job on this node.",
)
@click.option(
    "--native/--no-native",
    default=None,
    help="C frames of all ranks (each stands still for 0.03 to 1 s).",
)
@click.option(
    "--watch",
    metavar="DURATION",
    help="How long to look for movement, 2s by default; 0s: one look.",
)
@click.option("--json", "as_json", is_flag=True, help="Print report.json, one line per job.")
@click.option(
    "--html",
    type=click.Path(dir_okay=False, path_type=Path, readable=False),
    help="Write report.html here too.",
)
@click.option(
    "--slurm-job", metavar="ID", help="On all nodes of this Slurm job, by srun; no agent is needed."
)
@click.option(
    "--hosts", metavar="NODES", help="On these nodes: node[1-40,42], or a hostfile; with --ssh."
)
@click.option("--ssh", is_flag=True, help="Reach --hosts by ssh.")
@click.option(
    "--cluster",
    "everywhere",
    is_flag=True,
    help="On all nodes of --job, by their agents, or not at all.",
)
@click.option(
    "--python", type=FILE, help="The Python with mldebug there; default: this one's path."
)
@click.option("--wait", metavar="DURATION", help="How long a node has to answer, 60s by default.")
@click.option("--send", is_flag=True, hidden=True)  # what the nodes are asked for
@click.option("--config", type=click.Path(path_type=Path, readable=False), help="Config file.")
def dump(
    name: str | None,
    pid: int | None,
    job: str | None,
    native: bool | None,
    watch: str | None,
    as_json: bool,
    html: Path | None,
    slurm_job: str | None,
    hosts: str | None,
    ssh: bool,
    everywhere: bool,
    python: str | None,
    wait: str | None,
    send: bool,
    config: Path | None,
) -> None:
    """Capture all ranks here, or on all nodes of a job, now and name the culprit.

    JOB is the same as --job JOB.

    Exit code 0: nothing is stuck, or no job runs here; 1: a stall was found; 3: a right or a tool is missing to look at the job.
    """
    job = _only_job(name, job)
    own = adjusted(load_config(config), native, watch)
    if send:
        _send(own, slurm_job, job)
        return
    if everywhere:
        sys.exit(_by_agents(own, job, as_json, html, here_only=config is not None))
    far = _transport(slurm_job, hosts, ssh, pid)
    if not far and pid is None and native is None and watch is None and job is not None:
        run = _elsewhere(own, job, here_only=config is not None)
        if run is not None:
            sys.exit(_by_agents(own, run, as_json, html, here_only=config is not None))
    if far:
        arguments = _arguments(native, watch, job)
        request = FanoutRequest(
            target=slurm_job or hosts or "",
            python=python or sys.executable,
            arguments=arguments,
            timeout=answer_seconds(DEFAULT_WAIT if wait is None else wait),
        )
        with Waiting(quiet=as_json) as progress:
            taken = capture_all(own, far, request, socket.gethostname(), progress)
    else:
        with progress_line("looking at all ranks on this node"):
            taken = _here(own, pid, job, html, here_only=config is not None)
    if html and len(taken) > 1:
        raise UsageError(f"--html takes one job, {len(taken)} were found", "add --job NAME")
    for one in taken:
        _show(one, as_json, html)
    sys.exit(_exit_code(taken))


def _exit_code(taken: Sequence[Taken]) -> ExitCode:
    """FOUND where something is stuck, MISSING where the stacks of a whole job could not be had, for want of a right or a tool."""
    if any(one.judgement.stalled for one in taken):
        return ExitCode.FOUND
    return ExitCode.MISSING if any(_is_blind(one.report) for one in taken) else ExitCode.FINE


def _is_blind(report: Report) -> bool:
    has_stacks = any(thread.frames for rank in report.ranks for thread in rank.threads)
    return not has_stacks and any(gap.way_out for gap in report.gaps)


def _only_job(name: str | None, job: str | None) -> str | None:
    if name and job and name != job:
        raise UsageError(f"two jobs are named: {name} and {job}", "name one")
    return name or job


def _by_agents(
    config: Config, job: str | None, as_json: bool, html: Path | None, *, here_only: bool
) -> ExitCode:
    """The agent of this node asks for it; the report lies with the one that coordinates, too."""
    if job is None:
        raise UsageError(
            "--cluster needs to know which job", "add --job NAME; see `mldebug status --cluster`"
        )
    state_dir = ask_nearest(config.agent.state_dir, here_only=here_only).state_dir
    report = post_to_agent(
        state_dir, DUMP_PATH, Report, timeout=DUMP_DEADLINE + 5.0, most=MAX_REPORT, job=job
    )
    report = tidy_report(report)  # another node has made it
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        print_report(report, Console())
        click.echo(f"\nFull report: {report.id} on {report.node}")
    if html:
        _copy(render_html(report), html)
    found = report.diagnosis.verdict is not Verdict.UNKNOWN
    return ExitCode.FOUND if found else ExitCode.FINE


def _elsewhere(config: Config, job: str, *, here_only: bool) -> str | None:
    """The run of that name, where the agents know ranks of it on other nodes; None: this node's alone are looked at."""
    state_dir, answer = ask_nearest(config.agent.state_dir, here_only=here_only)
    if answer.snapshot is None or not answer.snapshot.cluster:
        return None
    try:
        view = post_to_agent(state_dir, CLUSTER_PATH, ClusterView, most=MAX_VIEW)
    except MldebugError as error:
        click.echo(f"mldebug: other nodes are not asked: {error.message}", err=True)
        return None
    return run_elsewhere(job, answer.snapshot, view)


def _here(
    config: Config, pid: int | None, job: str | None, html: Path | None, *, here_only: bool
) -> list[Taken]:
    """Of the jobs on this node."""
    with open_tools(config) as tools:
        found = tools.capture.finder.find()
        jobs = choose(found, pid, job)
        if html and len(jobs) > 1:
            raise UsageError(
                f"--html takes one job, {len(jobs)} run here", f"add --job {jobs[0].id}"
            )
        beside = look_beside(tools.capture, tools.gpus, found, here_only=here_only)
        return [take(tools.capture, one, found, beside) for one in jobs]


def _send(config: Config, slurm_job: str | None, job: str | None) -> None:
    """Print what this node knows, for the mldebug that asked; nothing is stored."""
    with ended_by_signals(), open_tools(config) as tools:
        end_without_reader(sys.stdout.fileno())  # a thread: after the process starter has forked
        answer = reply(tools.capture, tools.gpus, slurm_job, job)
    for line in encode(answer):
        sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


def _transport(slurm_job: str | None, hosts: str | None, ssh: bool, pid: int | None) -> str:
    """Which way to other nodes was asked for; "" for none."""
    if slurm_job is not None and (hosts is not None or ssh):
        raise UsageError("use --slurm-job or --hosts, not both", "choose one of them")
    if ssh and hosts is None:
        raise UsageError("--ssh needs --hosts, which names the nodes", "add --hosts node[1-40]")
    if hosts is not None and not ssh:
        raise UsageError("--hosts needs --ssh, by which it reaches the nodes", "add --ssh")
    if pid is not None and (hosts or slurm_job):
        raise UsageError(
            "--pid names a process of this node, and other nodes are to be looked at, too",
            "name the job with --job, by its script",
        )
    return "slurm" if slurm_job is not None else "ssh" if ssh else ""


def _arguments(native: bool | None, watch: str | None, job: str | None) -> tuple[str, ...]:
    """What is asked of `mldebug` on each node."""
    found = ["dump", "--send"]
    if native is not None:
        found.append("--native" if native else "--no-native")
    if watch is not None:
        found += ["--watch", watch]
    if job is not None:
        found += ["--job", job]
    return tuple(found)


def adjusted(config: Config, native: bool | None, watch: str | None) -> Config:
    """The configuration with the options `--native` and `--watch` in place of its values.

    Raises UsageError for an impossible `--watch`.
    """
    capture = config.capture
    if native is not None:
        capture = msgspec.structs.replace(capture, native="always" if native else "never")
    if watch is not None:
        try:
            seconds = parse_duration(watch)
            if not 0 <= seconds <= MAX_WATCH:
                raise ValueError(f"it may be 0 s to {duration_words(MAX_WATCH)}")
            deadline = max(capture.deadline, seconds + 30.0)
            capture = msgspec.structs.replace(capture, watch=seconds, deadline=deadline)
        except ValueError as error:
            raise UsageError(f"--watch {watch!r}: {error}", "write it like 2s or 1m") from error
    return msgspec.structs.replace(config, capture=capture)


def _show(taken: Taken, as_json: bool, html: Path | None) -> None:
    """The answer first, then what became of the files."""
    if as_json:
        click.echo(msgspec.json.encode(taken.report).decode())
    else:
        print_report(taken.report, Console())
    if taken.trouble:
        click.echo(f"mldebug: {taken.trouble}", err=True)
    place, why = (
        within(STORE_TIMEOUT, lambda: _copy(taken.html, html)) if html else (taken.html_path, "")
    )
    if place and not as_json:
        click.echo(f"\nFull report: {place}")
    if why:
        raise MldebugError(f"{html} cannot be written: {why}", "give --html another place")


def _copy(text: str, html: Path) -> Path:
    html.write_text(text, encoding="utf-8")
    return html


def create(options: NoOptions) -> click.Command:
    """Build the command `mldebug dump`: capture all ranks here now and name the culprit."""
    return dump
