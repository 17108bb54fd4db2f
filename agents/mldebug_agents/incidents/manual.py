"""A capture that a person or an action asks for: choose the job, capture it now, judge it, write the report."""

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from mldebug.core.errors import AccessError, MldebugError, NothingFoundError, UsageError
from mldebug.core.model import Job, Judgement, NodeCapture, QueriedNodes
from mldebug.core.redact import clean
from mldebug.core.report_model import Report, ReportTrigger, Stall
from mldebug.core.text import plural
from mldebug.diagnosis.diagnose import diagnose
from mldebug.hardware.ports.neighbours import ports_to_compare
from mldebug.incidents.pruning import BY_HAND
from mldebug.incidents.report.build import build_report, make_id
from mldebug.incidents.report.html import render_html
from mldebug.incidents.report_store import ReportStore
from mldebug.incidents.stored_evidence import QUERIED_FILE
from mldebug.jobs.known_issues.match import remarks
from mldebug.status.gpu_view import GpuOverview
from mldebug_agents.capture.tools import CaptureTools
from mldebug_agents.hardware.gpu.node_reader import NodeReader
from mldebug_agents.hardware.one_shot import OneShotReader
from mldebug_agents.hardware.ports.monitor import wanted_ports
from mldebug_agents.hardware.ports.reader import PortOrder, PortReader
from mldebug_agents.incidents.report_writer import owner_of
from mldebug_agents.incidents.step_watch import StepWatch
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.system.context import Context
from mldebug_agents.web.client import ask_nearest

STORE_TIMEOUT = 10.0
BESIDE = 3.0  # seconds for GPUs and kernel log, from the begin of the first capture
AGAIN = 2.0  # seconds between two looks at the GPUs: one tells what they did in the second before
MAX_LISTED = 4  # jobs listed in an error
BY_NOBODY = "captured by hand: nobody waited for a timeout"
WHY = {"alert": "an alert or an action asked for it: nobody waited for a timeout"}
MAX_TURNS = 100  # reports of one job in one second


class Taken(NamedTuple):
    """The result of a capture that was asked for by hand: its report, page and judgement.

    `html_path` is None where the report could not be stored, and `trouble` says why.
    """

    report: Report
    html: str
    judgement: Judgement
    html_path: Path | None
    trouble: str


class Named(NamedTuple):
    """A report with its final id, and its HTML page."""

    report: Report
    html: str


def choose(found: Discovery, pid: int | None, wanted: str | None) -> tuple[Job, ...]:
    """Return the jobs that a person asked for: with process `pid` as rank, child or launcher, and with `wanted` as name or
    beginning of the id; without both, all.

    Raises UsageError, which lists the jobs on this node, where none matches, and another MldebugError where there is no job
    that this user can see.
    """
    jobs = found.all
    if not jobs:
        raise _nothing_found(found, pid, wanted)
    if pid is not None:
        jobs = tuple(job for job in jobs if pid in _pids(job, found))
    if wanted is not None:
        jobs = tuple(job for job in jobs if job.id.startswith(wanted) or job.name == wanted)
    if not jobs:
        raise UsageError(f"no job here matches {wanted or pid}{_why(found, pid)}", _have(found))
    return jobs


def _why(found: Discovery, pid: int | None) -> str:
    """What discovery found odd about this process."""
    odd = [remark.message for remark in found.remarks if pid in remark.pids]
    return f": {odd[0]}" if odd else ""


def _have(found: Discovery) -> str:
    jobs = [
        f"{job.id} ({job.name}, {plural(len(job.ranks), 'rank')})" for job in found.all[:MAX_LISTED]
    ]
    more = len(found.all) - len(jobs)
    tail = f" and {more} more: `mldebug status` shows all" if more else ""
    return f"jobs on this node: {', '.join(jobs)}{tail}"


def _pids(job: Job, found: Discovery) -> set[int]:
    ranks = {rank.pid for rank in job.ranks}
    children = {child.pid for pid in ranks for child in found.children.get(pid, ())}
    return ranks | children | ({job.launcher_pid} if job.launcher_pid else set())


def _nothing_found(found: Discovery, pid: int | None, wanted: str | None) -> MldebugError:
    if why := _why(found, pid):
        return UsageError(
            f"process {pid} is no rank{why}",
            "correct what it was started with: `mldebug status` shows all",
        )
    hidden = [gap for gap in found.gaps if gap.way_out]
    if hidden:
        return AccessError(
            f"no training job can be seen on this node: {hidden[0].reason}", hidden[0].way_out
        )
    named = wanted or (f"process {pid}" if pid is not None else "")
    kind = UsageError if named else NothingFoundError
    return kind(
        f"no training job runs on this node{f', so {clean(named, 80)} is none' if named else ''}",
        "is it on another node, or in a container? `mldebug status` shows what is seen here",
    )


def look_beside(
    tools: CaptureTools, gpus: NodeReader, found: Discovery, *, here_only: bool
) -> OneShotReader:
    """Begin to read GPUs and kernel log in the background while ranks are captured; the capture
    waits for it at most `BESIDE` seconds.

    `here_only`: ask only the agent of the configured state dir, not the node's service.
    """
    state_dir = tools.context.config.agent.state_dir
    return OneShotReader(
        tools.context,
        gpus,
        found,
        BESIDE,
        lambda: ask_nearest(state_dir, here_only=here_only).answer.snapshot,
        again=AGAIN,
    )


def take(
    tools: CaptureTools, job: Job, found: Discovery, beside: OneShotReader | None = None
) -> Taken:
    """Capture one job now and write the report.

    If the state dir cannot be written, the report is returned all the same.
    """
    detected = time.time()
    return write_down(tools, look(tools, job, found, beside), detected)


def look(
    tools: CaptureTools, job: Job, found: Discovery, beside: OneShotReader | None = None
) -> NodeCapture:
    """Capture one job now, with the steps that it makes meanwhile.

    Of a job that waits for nodes only the launcher is captured.
    """
    if job.waits is not None:
        return tools.capturer().capture(job, {}, (), found.gaps)
    traps = tools.known_issues.of(
        job, found.programs, read=False
    )  # it may hang: its settings must do
    noted = (*found.remarks, *remarks(job, traps))
    if tools.context.config.capture.flight_recorder:
        tools.flight_recorders.update(found)
    tools.traces.update(found)
    steps = StepWatch(tools, job)
    capture = tools.capturer().capture(job, found.children, noted, found.gaps)
    capture = msgspec.structs.replace(capture, steps=steps.between())
    if beside is None:
        return capture
    return with_hardware(with_ports(capture, tools.context, found), beside.take())


def with_ports(capture: NodeCapture, context: Context, found: Discovery) -> NodeCapture:
    """The capture with the network ports that are up and that jobs here may use, to be compared with those of other nodes."""
    order = PortOrder(wanted=wanted_ports(found.programs.values()))
    ports = PortReader(context.host, context.reader).look(order)
    return msgspec.structs.replace(capture, ports=ports_to_compare(ports))


def with_hardware(capture: NodeCapture, gpus: GpuOverview) -> NodeCapture:
    """The capture with what was read of GPUs: faults and state of the GPUs of its ranks, and which devices the job's processes use.

    What could not be read is listed in the capture's `gaps`, with the reason.
    """
    gaps = [one for one in (gpus.gpu_gap, gpus.kernel_gap) if one is not None]
    return msgspec.structs.replace(
        capture,
        faults=gpus.faults(capture.job),
        devices=gpus.devices(capture.job.id),
        gpus=gpus.states.get(capture.job.id, ()),
        gaps=(*capture.gaps, *gaps),
    )


def write_down(tools: CaptureTools, capture: NodeCapture, detected: float) -> Taken:
    """Judge a capture of this node and write the report. `detected`: unix time at which the capture was asked for."""
    return write_case(tools.context.config.agent.state_dir, (capture,), detected)


def write_case(
    state_dir: Path,
    captures: tuple[NodeCapture, ...],
    detected: float,
    queried: QueriedNodes | None = None,
    node: str | None = None,
    trigger: ReportTrigger = "manual",
    more: Mapping[str, bytes] | None = None,
) -> Taken:
    """Judge captures of one job, build the report and store it. A state dir that hangs or cannot be
    written costs the file, never the answer.

    `queried`: all nodes that were asked for a capture; `node`: who asked, where that is not the
    node of the first capture; `detected`: unix time; `more`: further evidence files, by name.
    """
    judgement = diagnose(captures, queried)
    first = captures[0]
    report = build_report(
        judgement,
        captures,
        kind="manual",
        trigger=trigger,
        detected_at=detected,
        reported_at=time.time(),
        stall=Stall(timeout_seconds=None, why=WHY.get(trigger, BY_NOBODY)),
        versions=first.versions,
        report_id=make_id(detected, f"{first.job.id[:40]}-{BY_HAND}"),
        queried=queried,
        node=node,
    )
    stored: list[Named] = []

    def save() -> Path:
        archive = ReportStore(state_dir)
        stored.append(store(archive, report, captures, queried, more or {}))
        archive.prune()
        return archive.folder / stored[0].report.id / "report.html"

    path, why = within(STORE_TIMEOUT, save)
    named = stored[0] if path else Named(report, render_html(report))
    trouble = f"the report was not stored in {state_dir}: {why}" if why else ""
    return Taken(named.report, named.html, judgement, path, trouble)


def evidence(captures: tuple[NodeCapture, ...], queried: QueriedNodes | None) -> dict[str, bytes]:
    """Return the evidence files of a report, by name, from which the same report can be made again."""
    files = {f"capture-{one.node}.json": msgspec.json.encode(one) for one in captures}
    return files if queried is None else files | {QUERIED_FILE: msgspec.json.encode(queried)}


def store(
    archive: ReportStore,
    report: Report,
    captures: tuple[NodeCapture, ...],
    queried: QueriedNodes | None = None,
    more: Mapping[str, bytes] | None = None,
) -> Named:
    """Store the report under an id that no other has: further reports of the same second get a number.

    Raises MldebugError where that many are there.
    """
    files, owner = {**evidence(captures, queried), **(more or {})}, owner_of(captures)
    for turn in range(1, MAX_TURNS):
        report_id = report.id if turn == 1 else f"{report.id}-{turn:02d}"
        named = msgspec.structs.replace(report, id=report_id)
        html = render_html(named)
        if archive.save_new(named, html, files, owner_uid=owner):
            return Named(named, html)
    raise MldebugError(f"{MAX_TURNS} reports of this second are there already", "wait a second")


def within(timeout: float, write: Callable[[], Path]) -> tuple[Path | None, str]:
    """Run a write in a thread, for at most `timeout` seconds; a thread that hangs is left behind.

    Returns (path, "") or (None, why there is none).
    """
    done: list[tuple[Path | None, str]] = []

    def run() -> None:
        try:
            done.append((write(), ""))
        except MldebugError as error:
            done.append((None, error.message))
        except OSError as error:
            done.append((None, error.strerror or str(error)))

    thread = threading.Thread(target=run, name="mldebug-store", daemon=True)
    thread.start()
    thread.join(timeout)
    return done[0] if done else (None, f"no answer in {timeout:g} s")
