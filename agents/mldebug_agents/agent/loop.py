"""The agent's main loop: the one thread that owns decisions and incidents. It never blocks on anything but its inbox.

watch --NodeLook--> decide (StallWatch per run) --orders--> capture, write --results--> incidents --> snapshot
"""

import logging
import os
import queue
import time
from collections.abc import Callable

import msgspec

from mldebug import __version__
from mldebug.config.schema import Config
from mldebug.core.errors import MldebugError
from mldebug.core.model import Job, NodeCapture
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.stall.rules import StallSettings
from mldebug.stall.sentences import stage_words
from mldebug.stall.signals import Stage, StallDecision
from mldebug.status.snapshot import Snapshot
from mldebug_agents.agent.capture_queue import Order, Orders
from mldebug_agents.agent.monitors import Boards, Seen
from mldebug_agents.agent.recovery import Past
from mldebug_agents.agent.workbench import Workbench
from mldebug_agents.capture.nccl_ras.child import RasReply
from mldebug_agents.capture.nccl_ras.client import GLANCE as RAS_GLANCE
from mldebug_agents.cluster.peers.controller import PeersController
from mldebug_agents.incidents.exits.exit_evidence import ExitEvidence
from mldebug_agents.incidents.exits.exit_tracker import ExitTracker
from mldebug_agents.incidents.exits.failed_attempts import FailedAttempts
from mldebug_agents.incidents.exits.pidfds import ExitWatch
from mldebug_agents.incidents.manager import Incidents
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.state.store import StateStore
from mldebug_agents.system.host import Host
from mldebug_agents.system.service.clock import Clock
from mldebug_agents.system.service.reload import needs_restart, stuck_remarks
from mldebug_agents.system.service.sd_notify import SystemdNotifier, reloading, status_text
from mldebug_agents.system.service.usage import Usage
from mldebug_agents.system.workers import Result, Worker
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.ras_watch import RasWatch, RunToAsk
from mldebug_agents.watch.runs import Run, run_state, unjudged
from mldebug_agents.watch.watch import NodeLook, Watch

log = logging.getLogger("mldebug")

LOOK_DEADLINE, CAPTURE_DEADLINE, CONFIG_DEADLINE, EXITS_DEADLINE = 20.0, 60.0, 10.0, 20.0
RAS_DEADLINE = 10.0
AT_ONCE = 4  # jobs captured at the same time
GLANCE = 1.0  # seconds that a capture watches: the run has been watched for long when it is taken
BEAT = 1.0  # seconds between two turns of the loop without a message
SOON, SOONEST = 1.0, 0.2  # seconds to the next look after a rank has failed, after any exit


class Node:
    """The agent of one node. `publish` receives every new snapshot."""

    def __init__(
        self,
        config: Config,
        bench: Workbench,
        ledger: StateStore,
        publish: Callable[[Snapshot], None],
        notifier: SystemdNotifier | None = None,
        read_config: Callable[[], Config] | None = None,
        clock: Clock | None = None,
        members: Callable[["Node"], PeersController | None] = lambda _: None,
    ) -> None:
        self.config = config
        self.bench = bench
        self.ledger = ledger
        self.publish = publish
        self.notifier = notifier or SystemdNotifier()
        self.clock = clock or Clock()
        self.started_at = self.clock.now()
        self.stopping = False
        self.runs: dict[str, Run] = {}
        self.found = Discovery()
        self._usage = Usage(Host())
        self._inbox: queue.SimpleQueue[Result | None] = queue.SimpleQueue()  # None only wakes
        self._watch = Watch(bench)
        self._workers = {
            "watch": Worker("watch", self._watch.look, self._inbox, LOOK_DEADLINE),
            "capture": Worker("capture", self._capture, self._inbox, CAPTURE_DEADLINE, AT_ONCE),
            "exits": Worker("exits", lambda work: work(), self._inbox, EXITS_DEADLINE),
            "ras": Worker("ras", self._ask_ras, self._inbox, RAS_DEADLINE, AT_ONCE),
        }
        self._ras = RasWatch(self._workers["ras"].order)
        self.boards = Boards(config, bench, ledger, self._inbox)
        self._config = Worker(
            "config", lambda _: (read_config or (lambda: config))(), self._inbox, CONFIG_DEADLINE
        )
        self.incidents = Incidents(ledger, self.clock)
        self.incidents.heard = self.boards.notices.incident
        self.incidents.renamed = self.boards.notices.renamed
        self._orders = Orders(self._workers["capture"].order, self.incidents)
        self.stories = FailedAttempts(self.incidents, self._capture_now, ledger.forget)
        self._exits = ExitWatch(
            bench.host, lambda gone: self._inbox.put(Result("exit", None, gone, None))
        )
        self.endings = ExitTracker(
            ExitEvidence(bench),
            self._exits,
            self._workers["exits"].order,
            self.stories,
            ledger.keep_ends,
        )
        self._past = Past(
            *(ledger, bench, self.incidents, self.stories, self.endings), self._capture_now
        )
        self.members = members(self)
        self._wanted: set[str] = set()
        self._due = time.monotonic()
        self._started = time.monotonic()
        self._looks = 0
        self._ready = self._asked_to_reload = False

    # --- the loop ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Watch until told to stop; raises where the state dir turns out, late, to be another agent's.

        Also where the helper process is gone: what goes on without it sees nothing and says that all is well.
        """
        while not self.stopping:
            self._turn()
        self.notifier.send("STOPPING=1", "STATUS=stopping")
        self._exits.close()
        self._past.store(self.runs)

    def stop(self) -> None:
        """Leave the loop at the next turn; safe in a signal handler."""
        self.stopping = True
        self._inbox.put(None)

    def ask_to_reload(self) -> None:
        """Read the configuration again soon; safe in a signal handler."""
        self._asked_to_reload = True
        self._inbox.put(None)

    def _turn(self) -> None:
        now = time.monotonic()
        if trouble := self.bench.spawner.trouble:
            raise MldebugError(trouble, "systemd does so by itself")
        self._past.turn(self.runs, self._stall_settings(), looked=bool(self._looks))
        if now >= self._due and not self._workers["watch"].busy:
            wanted, self._wanted = tuple(self._wanted), set()
            self._workers["watch"].order(wanted)
            pace = self.config.stall.interval
            self._due = now + (min(SOON, pace) if self.endings.eager else pace)
        try:
            result = self._inbox.get(timeout=min(BEAT, max(0.05, self._due - now)))
        except queue.Empty:
            result = None
        if result is not None:
            self._handle(result)
        self.endings.turn()
        if self.config.capture.nccl_ras:
            self._ras.turn(self.runs)
        if self.members is not None:
            self.members.turn(self.runs)
        self.boards.turn(self._seen())
        self._reread()
        if not any(run.incident for run in self.runs.values()):
            self.clock.settle()
        self._tell()

    def _seen(self) -> Seen:
        return Seen(self.runs, self.found, self.config, bool(self._looks))

    def _tell(self) -> None:
        """Whoever listens: systemd, and the server. Ready is who has looked once, or cannot after long trying."""
        self.notifier.send("WATCHDOG=1")
        if not (self._ready or self._looks or time.monotonic() - self._started > LOOK_DEADLINE):
            return
        snapshot = self.snapshot()
        self.boards.notices.look(snapshot, {*self.ledger.open_incidents(), *self.incidents.cases})
        self.publish(snapshot)
        self.notifier.status(status_text(snapshot))
        if not self._ready:
            self._ready = True
            self.notifier.send("READY=1")

    def _handle(self, result: Result) -> None:
        if result.worker == "config":
            self._reloaded(result)
        elif result.worker == "ras":
            self._ras.told(result)
        elif self.boards.told(result, self._seen()):
            pass  # it stands on a board now
        elif self.members is not None and result.worker in self.members.tells:
            self.members.told(result)
        elif result.error is not None and result.worker == "capture":
            run = self.runs.get(result.order.job.id)
            self._orders.failed(run, result.order, result.error)
            if self.members is not None and result.order.again:
                self.members.failed(result.order.job.id, result.error)
        elif result.error is not None:
            log.warning(
                "%s failed: %s: %s", result.worker, type(result.error).__name__, result.error
            )
        elif result.worker == "watch":
            self._looks += 1
            self._looked(result.value)
        elif result.worker == "capture":
            self._captured(*result.value)
        elif result.worker == "exit":
            self.endings.exited(result.value)
            self._due = min(self._due, time.monotonic() + SOONEST)
        elif result.worker == "exits" and isinstance(result.value, AttemptExit):
            self.endings.told(self.boards.ending(result.value))

    # --- the configuration -------------------------------------------------------------------------

    def _reread(self) -> None:
        if self._asked_to_reload and not self._config.busy:
            self._asked_to_reload = False
            self.notifier.send(*reloading())
            self._config.order(None)

    def _reloaded(self, result: Result) -> None:
        if isinstance(result.error, MldebugError):
            for problem in result.error.message.splitlines():
                log.error("config: %s", problem)
        if result.error is not None:
            log.error("the configuration stays as it was: the new one cannot be obeyed")
        else:
            self.reload(result.value)
        self.notifier.send("READY=1")

    def reload(self, config: Config) -> None:
        """Go on under another configuration; what was learned of the runs stays."""
        for name in needs_restart(self.config, config):
            log.warning("config: %s has changed, and is obeyed after a restart of the agent", name)
        self.config = config
        self.bench.reload(config)
        self.boards.reload(config)
        for run in self.runs.values():
            run.watch.reload(self._stall_settings())
        self._due = time.monotonic()
        log.info("the configuration was read again")

    def _stall_settings(self) -> StallSettings:
        stall = self.config.stall
        return StallSettings(
            timeout=stall.timeout,
            busy_timeout=stall.busy_timeout,
            init_timeout=stall.init_timeout,
            interval=stall.interval,
        )

    # --- decisions ---------------------------------------------------------------------------------

    def _looked(self, look: NodeLook) -> None:
        self.found = look.found
        seen = {one.job.id: one for one in look.jobs}
        for one in look.jobs:
            run = self.runs.get(one.job.id) or self._meet(one.job)
            run.see(one)
            self.endings.follow(run, look.found.children)
            one = self._ras.complete(self.endings.complete(one))
            one = self.members.complete(one) if self.members is not None else one
            self._see(run, self.boards.complete(one))
        for gone in [job_id for job_id in self.runs if job_id not in seen]:
            self._ended(self.runs.pop(gone))

    def _meet(self, job: Job) -> Run:
        log.info("run %s (%s): %d ranks found", job.id, job.name, len(job.ranks))
        run = self.runs[job.id] = self._past.meet(job, self._stall_settings())
        return run

    def _see(self, run: Run, one: JobLook) -> None:
        run.see(one)
        if one.classes:
            run.classes = {rank: found.name for rank, found in one.classes.items()}
            run.roles = {rank: found.role for rank, found in one.classes.items()}
            run.frames = one.frames
        run.unjudged = unjudged(one, self.config.stall.exclude)
        if not run.unjudged:
            self._decide(run, run.watch.look(one.look))
        elif run.incident is not None and run.incident.kind == "stall":
            self.incidents.close(run, "ended", run.unjudged)

    def _decide(self, run: Run, decision: StallDecision) -> None:
        if run.decision is None or run.decision.stage is not decision.stage:
            log.info("%s: %s: %s", run.job.name, stage_words(decision.stage), decision.sentence)
        run.decision = decision
        if decision.sample:
            self._wanted.add(run.job.id)
        self._due = min(self._due, time.monotonic() + decision.next_look)
        if decision.open:
            hold = self.members is not None and self.members.holds(run)
            self.incidents.open(run, decision, hold=hold)
        if decision.capture:
            self._orders.ask(run, Order(run.job, self.found, decision))
        else:
            self._orders.look(run, self.found)
        over = decision.stage in (Stage.RECOVERED, Stage.ENDED)
        held = over and self.members is not None and self.members.release(run)
        if decision.stage is Stage.RECOVERED and held:
            self.incidents.withdraw(run, decision.sentence)
        elif decision.stage is Stage.RECOVERED:
            self.incidents.close(run, "recovered", decision.sentence)
        elif decision.stage is Stage.ENDED:
            self.incidents.close(run, "ended", decision.sentence)
        elif decision.stage in (Stage.WATCHING, Stage.QUIET):
            run.classes, run.roles, run.frames = {}, {}, {}
            run.capture, run.missed = None, ()
            if run.incident is None:
                self._orders.forget(run)

    def _ended(self, run: Run) -> None:
        log.info("run %s (%s) is over", run.job.id, run.job.name)
        self._orders.forget(run)
        if run.incident is not None and run.incident.kind == "stall":
            self.stories.explained(run)
            self.incidents.close(run, "ended", "all ranks are gone")
        self.endings.over(run)

    # --- captures --------------------------------------------------------------------------------

    def _capture(self, order: Order) -> tuple[str, NodeCapture]:
        """In the worker: take a capture of one job, and say how long it has been quiet."""
        job, found, told = order.job, order.found, order.told
        taken = self.bench.capturer(GLANCE).capture(
            *(job, found.children, found.remarks, found.gaps),
            quiet=told.quiet if told else None,
            resumed=told is not None and told.resumed,
        )
        if told is None:
            return job.id, taken
        return job.id, msgspec.structs.replace(taken, usual_gap_seconds=told.usual_gap)

    def _ask_ras(self, order: RunToAsk) -> RasReply:
        """In the worker: the sums of all launches of one job."""
        return self.bench.ras.ask(order.job, whole=False, seconds=RAS_GLANCE)

    def ask_capture(self, run: Run) -> None:
        """Other nodes want it captured now."""
        self._capture_now(run)

    @property
    def inbox(self) -> "queue.SimpleQueue[Result | None]":
        """Where results go; safe from any thread."""
        return self._inbox

    def _capture_now(self, run: Run) -> None:
        """A rank has ended and others live on, or an incident of before has no capture: what do they do?"""
        self._orders.ask(run, Order(run.job, self.found))

    def _captured(self, job_id: str, capture: NodeCapture) -> None:
        run = self.runs.get(job_id)
        if run is not None:
            if capture.job.attempt == run.job.attempt:
                run.watch.await_answer(bool(capture.awaited))
            capture = msgspec.structs.replace(capture, step=run.seen.step if run.seen else None)
            capture = self.boards.capture(capture)
            if self.members is not None and self.members.holding(run):
                run.capture = capture  # nobody knows yet under which id it is told
            else:
                self.incidents.captured(run, capture)
            if self.members is not None:
                self.members.captured(run, capture)

    # --- what others see ---------------------------------------------------------------------------

    def _others(self) -> tuple[Worker, ...]:
        return self.members.workers if self.members is not None else ()

    def snapshot(self) -> Snapshot:
        """All that is known now, as one value."""
        return self.boards.show(self._bare())

    def _bare(self) -> Snapshot:
        return Snapshot(
            node=self.bench.node,
            at=time.time(),
            started_at=self.started_at,
            pid=os.getpid(),
            runs=tuple(run_state(run, self.endings.exits(id)) for id, run in self.runs.items()),
            sources=(
                *(one.state() for one in (*self._workers.values(), *self._others())),
                *self.ledger.states(),
            ),
            incidents=dict(self.incidents.counts),
            last_report=dict(self.incidents.last_report),
            reports_lost=self.ledger.lost,
            reports_waiting=self.ledger.waiting,
            state_dir_losses=self.ledger.losses,
            remarks=(
                *self.found.remarks,
                *stuck_remarks((*self.bench.spawner.leftovers, *self.bench.gpus.leftovers())),
            ),
            gaps=self.found.gaps,
            unanswered=self.bench.unanswered.counts,
            cpu_seconds=self._usage.cpu_seconds(),
            rss_bytes=self._usage.rss_bytes(),
            children=self._usage.children(),
            cluster=self.members.sentence if self.members is not None else "",
            cluster_refused=self.members.refusals.counts if self.members is not None else {},
            series_budget=self.config.metrics.series_budget,
            version=__version__,
        )
