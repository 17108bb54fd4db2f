"""The agent's main loop: the one thread that owns decisions and incidents. It never blocks on anything but its inbox.

watch --NodeLook--> decide (StallWatch per run) --orders--> capture, write --results--> incidents --> snapshot
"""

import logging
import os
import queue
import resource
import time
from collections.abc import Callable

import msgspec

from mldebug import __version__
from mldebug.config import Config
from mldebug.model import Job, NodeCapture
from mldebug.snapshot import Snapshot
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import Decision, Stage
from mldebug.stall.watch import StallWatch
from mldebug_agents.incidents import Incidents
from mldebug_agents.ledger import Ledger
from mldebug_agents.notify import Notifier
from mldebug_agents.runner import Result, Worker
from mldebug_agents.runs import Run, may_stall, run_state
from mldebug_agents.sources.ranks import Discovery
from mldebug_agents.watch import NodeLook, Watch
from mldebug_agents.workbench import Workbench

log = logging.getLogger("mldebug")

LOOK_DEADLINE, CAPTURE_DEADLINE, WRITE_DEADLINE = 20.0, 60.0, 20.0
BEAT = 1.0  # seconds between two turns of the loop without a message


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
        self.reports_lost = 0
        self._inbox: queue.Queue[Result] = queue.Queue()
        self._watch = Watch(bench)
        self._workers = {
            "watch": Worker("watch", self._watch.look, self._inbox, LOOK_DEADLINE),
            "capture": Worker("capture", self._capture, self._inbox, CAPTURE_DEADLINE),
            "write": Worker("write", lambda work: work(), self._inbox, WRITE_DEADLINE),
        }
        self.incidents = Incidents(ledger, self._workers["write"].order)
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
        self.incidents.recall(run)
        return run

    def _decide(self, run: Run, decision: Decision) -> None:
        if run.decision is None or run.decision.stage is not decision.stage:
            log.info("%s: %s: %s", run.job.name, decision.stage, decision.sentence)
        run.decision = decision
        if decision.sample:
            self._wanted.add(run.job.id)
        self._due = min(self._due, time.monotonic() + decision.next_look)
        if decision.open:
            self.incidents.open(run, decision)
        if decision.capture:
            self._workers["capture"].order((run.job, self.found, decision.quiet))
        if decision.stage is Stage.RECOVERED:
            self.incidents.close(run, "recovered", decision.sentence)
        elif decision.stage is Stage.ENDED:
            self.incidents.close(run, "ended", decision.sentence)
        elif decision.stage in (Stage.WATCHING, Stage.QUIET):
            run.classes, run.capture = {}, None

    def _ended(self, run: Run) -> None:
        log.info("run %s (%s) is over", run.job.id, run.job.name)
        self.incidents.close(run, "ended", "all ranks are gone")
        self.ledger.forget(run.job.id)

    # --- captures --------------------------------------------------------------------------------

    def _capture(self, order: tuple[Job, Discovery, float]) -> tuple[str, NodeCapture]:
        """In the worker: take a capture of one job, and say how long it has been quiet."""
        job, found, quiet = order
        taken = self.bench.capturer().capture(job, found.children, found.remarks, found.gaps)
        return job.id, msgspec.structs.replace(taken, quiet_seconds=quiet)

    def _captured(self, job_id: str, capture: NodeCapture) -> None:
        run = self.runs.get(job_id)
        if run is not None:
            self.incidents.captured(run, capture)

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
            incidents=dict(self.incidents.counts),
            last_report=dict(self.incidents.last_report),
            reports_lost=self.reports_lost + self.incidents.lost + self.ledger.lost,
            remarks=self.found.remarks,
            gaps=self.found.gaps,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            rss_bytes=_rss(),
            version=__version__,
        )


def _rss() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
