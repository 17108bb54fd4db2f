"""The agent's main loop: the one thread that owns decisions and incidents. It never blocks on anything but its inbox.

watch --NodeLook--> decide (StallWatch per run) --orders--> capture, write --results--> incidents --> snapshot
"""

import logging
import os
import queue
import resource
import time
from collections import Counter
from collections.abc import Callable

import msgspec

from mldebug import __version__
from mldebug.config import Config
from mldebug.incident import Incident, add_capture, end, judge, say, write_report
from mldebug.model import Job, Judgement, NodeCapture
from mldebug.report.build import make_id
from mldebug.report.html import render_html
from mldebug.snapshot import RunState, Snapshot
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import Decision, Stage
from mldebug.stall.watch import StallWatch
from mldebug_agents.ledger import Ledger
from mldebug_agents.notify import Notifier
from mldebug_agents.runner import Result, Worker
from mldebug_agents.sources.ranks import Discovery
from mldebug_agents.watch import JobLook, NodeLook, Watch
from mldebug_agents.workbench import Workbench

log = logging.getLogger("mldebug")

LOOK_DEADLINE, CAPTURE_DEADLINE, WRITE_DEADLINE = 20.0, 60.0, 20.0
BEAT = 1.0  # seconds between two turns of the loop without a message


class Run:
    """One run under watch: its decision logic, and what was seen last."""

    def __init__(self, job: Job, watch: StallWatch) -> None:
        self.job = job
        self.watch = watch
        self.decision: Decision | None = None
        self.seen: JobLook | None = None
        self.classes: dict[int, str] = {}
        self.capture: NodeCapture | None = (
            None  # taken at the confirmation, kept whatever the ranks do
        )
        self.incident: Incident | None = None
        self.judgement: Judgement | None = None


class Node:
    """The agent of one node. `publish` receives every new snapshot."""

    def __init__(
        self,
        config: Config,
        bench: Workbench,
        ledger: Ledger,
        publish: Callable[[Snapshot], None],
        notifier: Notifier | None = None,
    ) -> None:
        self.config = config
        self.bench = bench
        self.ledger = ledger
        self.publish = publish
        self.notifier = notifier or Notifier()
        self.started_at = time.time()
        self.stopping = False
        self.runs: dict[str, Run] = {}
        self.found = Discovery()
        self.incidents: Counter[str] = Counter()
        self.last_report: dict[str, str] = {}
        self.reports_lost = 0
        self._inbox: queue.Queue[Result] = queue.Queue()
        self._watch = Watch(bench)
        self._workers = {
            "watch": Worker("watch", self._watch.look, self._inbox, LOOK_DEADLINE),
            "capture": Worker("capture", self._capture, self._inbox, CAPTURE_DEADLINE),
            "write": Worker("write", lambda work: work(), self._inbox, WRITE_DEADLINE),
        }
        self._wanted: set[str] = set()
        self._due = time.monotonic()
        self._saved_at = 0.0

    # --- the loop ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Watch until told to stop."""
        self.notifier.send("READY=1", "STATUS=watching")
        while not self.stopping:
            self._turn()
        self.notifier.send("STOPPING=1")
        self._remember()

    def stop(self) -> None:
        """Leave the loop at the next turn; safe in a signal handler."""
        self.stopping = True

    def _turn(self) -> None:
        now = time.monotonic()
        if now >= self._due and not self._workers["watch"].busy:
            wanted, self._wanted = tuple(self._wanted), set()
            self._workers["watch"].order(wanted)
            self._due = now + self.config.stall.interval
        try:
            result = self._inbox.get(timeout=min(BEAT, max(0.05, self._due - now)))
        except queue.Empty:
            result = None
        if result is not None:
            self._handle(result)
        self.notifier.send("WATCHDOG=1")
        self.publish(self.snapshot())
        if now - self._saved_at > 10.0:
            self._saved_at = now
            self._remember()

    def _handle(self, result: Result) -> None:
        if result.error is not None:
            log.warning(
                "%s failed: %s: %s", result.worker, type(result.error).__name__, result.error
            )
            self.reports_lost += result.worker == "write"
        elif result.worker == "watch":
            self._looked(result.value)
        elif result.worker == "capture":
            self._captured(*result.value)

    # --- decisions ---------------------------------------------------------------------------------

    def _looked(self, look: NodeLook) -> None:
        self.found = look.found
        seen = {one.job.id: one for one in look.jobs}
        for one in look.jobs:
            run = self.runs.get(one.job.id) or self._meet(one.job)
            run.job, run.seen = one.job, one
            if one.classes:
                run.classes = {rank: found.name for rank, found in one.classes.items()}
            if may_stall(one):
                self._decide(run, run.watch.look(one.look))
        for gone in [job_id for job_id in self.runs if job_id not in seen]:
            self._ended(self.runs.pop(gone))

    def _meet(self, job: Job) -> Run:
        log.info("run %s (%s): %d ranks found", job.id, job.name, len(job.ranks))
        stall = self.config.stall
        settings = StallSettings(
            timeout=stall.timeout,
            busy_timeout=stall.busy_timeout,
            init_timeout=stall.init_timeout,
            interval=stall.interval,
        )
        run = self.runs[job.id] = Run(job, StallWatch(settings, self.ledger.memory(job.id)))
        run.incident = self.ledger.incident(job.id)
        if run.incident is not None and run.incident.captures:
            run.judgement = judge(run.incident)
        return run

    def _decide(self, run: Run, decision: Decision) -> None:
        if run.decision is None or run.decision.stage is not decision.stage:
            log.info("%s: %s: %s", run.job.name, decision.stage, decision.sentence)
        run.decision = decision
        if decision.sample:
            self._wanted.add(run.job.id)
        self._due = min(self._due, time.monotonic() + decision.next_look)
        if decision.open:
            self._open(run, decision)
        if decision.capture:
            self._workers["capture"].order((run.job, self.found, decision.quiet))
        if decision.stage is Stage.RECOVERED:
            self._close(run, "recovered", decision.sentence)
        elif decision.stage is Stage.ENDED:
            self._close(run, "ended", decision.sentence)
        elif decision.stage in (Stage.WATCHING, Stage.QUIET):
            run.classes, run.capture = {}, None

    def _ended(self, run: Run) -> None:
        log.info("run %s (%s) is over", run.job.id, run.job.name)
        self._close(run, "ended", "all ranks are gone")
        self.ledger.forget(run.job.id)

    # --- incidents ---------------------------------------------------------------------------------

    def _open(self, run: Run, decision: Decision) -> None:
        if run.incident is not None and run.incident.key == decision.key:
            return  # known from before our restart: the same stall keeps its id
        now, here = time.time(), time.monotonic()
        since = (
            None
            if decision.stalled_since is None
            else now - max(0.0, here - decision.stalled_since)
        )
        incident = Incident(
            id=make_id(now, run.job.id),
            key=decision.key,
            job_id=run.job.id,
            detected_at=now,
            stalled_since=since,
            timeout=decision.timeout,
            why=decision.why_timeout,
            sentence=decision.sentence,
        )
        run.incident = say(incident, now, f"incident opened: {decision.sentence}")
        if run.capture is not None:
            self._take(run, run.capture)

    def _capture(self, order: tuple[Job, Discovery, float]) -> tuple[str, NodeCapture]:
        """In the worker: take a capture of one job, and say how long it has been quiet."""
        job, found, quiet = order
        taken = self.bench.capturer().capture(job, found.children, found.remarks, found.gaps)
        return job.id, msgspec.structs.replace(taken, quiet_seconds=quiet)

    def _captured(self, job_id: str, capture: NodeCapture) -> None:
        run = self.runs.get(job_id)
        if run is None:
            return
        run.capture = capture
        if run.incident is not None and run.incident.state == "open":
            self._take(run, capture)

    def _take(self, run: Run, capture: NodeCapture) -> None:
        if run.incident is None:
            return
        first = not run.incident.captures
        run.incident = add_capture(run.incident, capture)
        run.judgement = judge(run.incident)
        if first:
            kind = f"stall/{run.judgement.diagnosis.verdict}"
            self.incidents[kind] += 1
            self.last_report[kind] = run.incident.id
            log.warning("%s: %s", run.job.name, run.judgement.diagnosis.summary)
        self._write(run.incident, run.judgement, run.job.uid)

    def _close(self, run: Run, state: str, why: str) -> None:
        if run.incident is None:
            return
        if run.incident.captures and run.judgement is not None:
            closed = end(
                run.incident, "recovered" if state == "recovered" else "ended", time.time(), why
            )
            self._write(closed, run.judgement, run.job.uid)
        run.incident, run.judgement, run.capture = None, None, None
        self.ledger.keep(run.job.id, run.watch.memory(), None)

    def _write(self, incident: Incident, judgement: Judgement, uid: int) -> None:
        def work() -> None:
            report = write_report(incident, judgement, time.time())
            evidence = {
                f"capture-{number}-{capture.node}.json": msgspec.json.encode(capture)
                for number, capture in enumerate(incident.captures, 1)
            }
            self.ledger.archive.save(report, render_html(report), evidence, owner_uid=uid)
            self.ledger.archive.prune()

        if not self._workers["write"].order(work):
            self.reports_lost += 1

    def _remember(self) -> None:
        for run in self.runs.values():
            self.ledger.keep(run.job.id, run.watch.memory(), run.incident)

    # --- what others see ---------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """All that is known now, as one value."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return Snapshot(
            node=self.bench.node,
            at=time.time(),
            started_at=self.started_at,
            runs=tuple(run_state(run) for run in self.runs.values()),
            sources=tuple(worker.state() for worker in self._workers.values()),
            incidents=dict(self.incidents),
            last_report=dict(self.last_report),
            reports_lost=self.reports_lost + self.ledger.lost,
            remarks=self.found.remarks,
            gaps=self.found.gaps,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            rss_bytes=_rss(),
            version=__version__,
        )


def may_stall(seen: JobLook) -> bool:
    """A lone process that never told a step may be a notebook or a server: idling is its work."""
    return seen.job.launcher != "single" or seen.step is not None


def run_state(run: Run) -> RunState:
    """One run as people see it."""
    decision, seen, job = run.decision, run.seen, run.job
    return RunState(
        id=job.id,
        name=job.name,
        launcher=job.launcher,
        attempt=job.attempt,
        user=job.user,
        world_size=job.world_size,
        ranks={rank.rank: rank.pid for rank in job.ranks},
        lost=tuple(lost.rank for lost in job.lost),
        classes=dict(run.classes),
        stage=str(decision.stage) if decision else "watching",
        sentence=decision.sentence if decision else "",
        quiet_seconds=round(decision.quiet, 1) if decision else 0.0,
        timeout_seconds=decision.timeout if decision else 0.0,
        why_timeout=decision.why_timeout if decision else "",
        step=seen.step if seen else None,
        loss=seen.loss if seen else None,
        step_seconds=seen.step_seconds if seen else None,
        log=seen.log if seen else "",
        incident=run.incident.id if run.incident else "",
        verdict=str(run.judgement.diagnosis.verdict) if run.judgement else "",
        report=run.judgement.diagnosis.summary if run.judgement else "",
    )


def _rss() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
