"""The agent's main loop: the one thread that owns decisions and incidents. It never blocks on anything but its inbox.

watch --NodeLook--> decide (StallWatch per run) --orders--> capture, write --results--> incidents --> snapshot
"""

import logging
import operator
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
from mldebug.status.snapshot import FoundJobs, Snapshot
from mldebug_agents.agent.capture_queue import QueuedCapture
from mldebug_agents.agent.job_defects import JobDefects
from mldebug_agents.agent.loop_parts import LoopParts
from mldebug_agents.agent.monitors import LoopState
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.system.host import Host
from mldebug_agents.system.service.clock import Clock
from mldebug_agents.system.service.reload import needs_restart, stuck_remarks
from mldebug_agents.system.service.sd_notify import SystemdNotifier, reloading, status_text
from mldebug_agents.system.service.usage import Usage
from mldebug_agents.system.workers import Result, Worker
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.runs import Run, run_state
from mldebug_agents.watch.watch import NodeLook

log = logging.getLogger("mldebug")

LOOK_DEADLINE, CAPTURE_DEADLINE, CONFIG_DEADLINE, EXITS_DEADLINE = 20.0, 60.0, 10.0, 20.0
RAS_DEADLINE, SLOWNESS_DEADLINE = 10.0, 120.0
AT_ONCE = 4  # jobs captured at the same time
SAMPLED_AT_ONCE = 2  # jobs whose ranks are sampled at the same time
BEAT = 1.0  # seconds between two turns of the loop without a message
TICK = 0.5  # seconds between two ticks of the monitors at least: several messages come each second
SHOWN = 0.05  # of the main loop's CPU time goes to snapshots at most: with hundreds of runs each costs more than the message before it
SHOWN_EVERY = 2.0  # seconds between two snapshots at most, once there is news
CALM = 5.0  # seconds between two snapshots while there is none, or the interval between two looks where it is less
SOON, SOONEST = 1.0, 0.2  # seconds to the next look after a rank has failed, after any exit


class AgentLoop:
    """The main loop of an agent. `publish` receives every new snapshot (all that the agent shows of the node)."""

    def __init__(
        self,
        config: Config,
        parts: LoopParts,
        publish: Callable[[Snapshot], None],
        apply: Callable[[Config], None],
        notifier: SystemdNotifier | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`apply` makes another configuration the one that all parts read."""
        self.config = config
        self.publish = publish
        self.notifier, self.clock = notifier or SystemdNotifier(), clock or Clock()
        self.started_at = self.clock.now()
        self.stopping = False
        self.runs: dict[str, Run] = {}
        self.found, self._searched = Discovery(), FoundJobs()
        self.monitors, self.incidents, self.peers = parts.monitors, parts.incidents, parts.peers
        self._parts, self._apply = parts, apply
        self._inbox, self._workers = parts.inbox, parts.workers
        self._usage = Usage(Host())
        self._defects = JobDefects()
        self._wanted: set[str] = set()
        self._due = time.monotonic()
        self._started = time.monotonic()
        self._ticked = -TICK  # monotonic: when the monitors were asked what is due
        self._looks = 0
        self._next_snapshot = self._next_calm = 0.0
        self._shown: list[object] = []  # what of the runs the last snapshot showed
        self._ready = self._asked_to_reload = False

    # --- the loop ----------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the main loop until `stop` is called.

        Raises MldebugError where the state dir turns out to be held by another agent, or where the
        helper process that starts all others is gone: without it the agent could see nothing.
        """
        while not self.stopping:
            self._turn()
        self.notifier.send("STOPPING=1", "STATUS=stopping")
        self._parts.exit_watch.close()
        self.monitors.end()
        self._parts.recovery.end(self._all)

    def stop(self) -> None:
        """End the loop at its next turn; safe in a signal handler."""
        self.stopping = True
        self._inbox.put(None)

    def ask_to_reload(self) -> None:
        """Have the configuration read again soon; safe in a signal handler."""
        self._asked_to_reload = True
        self._inbox.put(None)

    def _turn(self) -> None:
        now = time.monotonic()
        if trouble := self._parts.context.spawner.trouble:
            raise MldebugError(trouble, "systemd does so by itself")
        self._parts.recovery.tick(self._all, self._stall_settings(), looked=bool(self._looks))
        if now >= self._due and not self._workers["watch"].busy:
            wanted, self._wanted = tuple(self._wanted), set()
            self._workers["watch"].order(wanted)
            pace = self.config.stall.interval
            self._due = now + (min(SOON, pace) if self._parts.exits.eager else pace)
        try:
            result = self._inbox.get(timeout=min(BEAT, max(0.05, self._due - now)))
        except queue.Empty:
            result = None
        if result is not None:
            self._handle(result)
        self._parts.exits.tick()
        if self.config.capture.nccl_ras:
            self._parts.ras.tick(self.runs)
        if self.config.goodput.stragglers:
            pace, mounts = self.config.goodput.interval, self.monitors.storage.with_mounts
            self._parts.slowness.tick(self.runs, pace, mounts)
        if self.peers is not None:
            self.peers.tick(self._all)
            self._parts.launchers.count(self.peers.present())
        if result is None or now - self._ticked >= TICK:
            self._ticked = now
            self.monitors.tick(self._loop_state())
        self._reread()
        if not any(run.incident for run in self._all.values()):
            self.clock.settle()
        self._publish()

    def _loop_state(self) -> LoopState:
        parts = (self.runs, self.found, self.config, bool(self._looks))
        comparing = self._parts.slowness.is_comparing
        return LoopState(*parts, self._parts.exits.exits, self._defects.catching, comparing)

    def _publish(self) -> None:
        """Tell systemd and the server. The agent is ready once it has looked at the node, or has tried for long in vain."""
        self.notifier.send("WATCHDOG=1")
        if not (self._ready or self._looks or time.monotonic() - self._started > LOOK_DEADLINE):
            return
        now, judged = time.monotonic(), self._judged()
        news = len(judged) != len(self._shown) or any(map(operator.is_not, judged, self._shown))
        if now < self._next_snapshot or (now < self._next_calm and not news):
            return
        self._shown, self._next_calm = judged, now + min(CALM, self.config.stall.interval)
        before = time.thread_time()
        snapshot = self.snapshot()
        self.monitors.notifier.look(
            snapshot, {*self._parts.store.open_incidents(), *self.incidents.remote.cases}
        )
        self.publish(snapshot)
        if self.peers is not None:
            self.peers.show(snapshot)
        self.notifier.status(status_text(snapshot))
        pause = min(SHOWN_EVERY, (time.thread_time() - before) / SHOWN)
        self._next_snapshot = time.monotonic() + pause
        if not self._ready:
            self._ready = True
            self.notifier.send("READY=1")

    def _judged(self) -> list[object]:
        """What changes with each look and each judgement of a run, and with nothing else."""
        found: list[object] = [self._looks]
        for run in self._all.values():
            stage = run.decision.stage if run.decision else None
            found += [run, stage, run.incident, run.judgement]
        return found

    def _handle(self, result: Result) -> None:
        if result.worker == "config":
            self._reloaded(result)
        elif result.worker == "ras":
            self._parts.ras.on_result(result)
        elif result.worker == "slowness":
            self._parts.slowness.on_result(self.monitors.complete_samples(result), self.runs)
        elif self.monitors.on_result(result, self._loop_state()):
            pass  # a monitor has taken it
        elif self.peers is not None and result.worker in self.peers.worker_names:
            self.peers.on_result(result)
        elif result.error is not None and result.worker == "capture":
            run = self.runs.get(result.order.job.id)
            self._parts.capture_queue.failed(run, result.order, result.error)
            if self.peers is not None and result.order.again:
                self.peers.failed(result.order.job.id, result.error)
        elif result.error is not None:
            log.warning(
                "%s failed: %s: %s", result.worker, type(result.error).__name__, result.error
            )
        elif result.worker == "watch":
            self._looks += 1
            self._looked(result.value)
        elif result.worker == "capture":
            with self._defects.catching(result.order.job):
                self._captured(*result.value)
        elif result.worker == "exit":
            self._parts.exits.exited(result.value)
            self._due = min(self._due, time.monotonic() + SOONEST)
        elif result.worker == "exits" and isinstance(result.value, AttemptExit):
            self._parts.exits.on_attempt_exit(self.monitors.complete_exit(result.value))

    # --- the configuration -------------------------------------------------------------------------

    def _reread(self) -> None:
        if self._asked_to_reload and not self._workers["config"].busy:
            self._asked_to_reload = False
            self.notifier.send(*reloading())
            self._workers["config"].order(None)

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
        """Use another configuration from now on.

        What was learned of the runs is kept; keys that need a restart are named in the log.
        """
        for name in needs_restart(self.config, config):
            log.warning("config: %s has changed, and is obeyed after a restart of the agent", name)
        self.config = config
        self._apply(config)
        self.monitors.reload(config)
        for run in self.runs.values():
            run.watch.reload(self._stall_settings())
        self._due = time.monotonic()
        log.info("the configuration was read again")

    def _stall_settings(self) -> StallSettings:
        return msgspec.convert(self.config.stall, StallSettings, from_attributes=True)

    @property
    def _all(self) -> dict[str, Run]:
        """The runs that have ranks here, and those whose launchers wait for nodes."""
        return {**self.runs, **self._parts.launchers.runs}

    # --- decisions ---------------------------------------------------------------------------------

    def _looked(self, look: NodeLook) -> None:
        self.found, self._searched = look.found, look.searched
        self._parts.capture_queue.update(look.found)
        here = {one.job.id for one in look.jobs} | look.later
        for one in look.jobs:
            with self._defects.catching(one.job):
                run = self.runs.get(one.job.id) or self._add_run(one.job)
                run.update(one)
                self._parts.exits.follow(run, look.found.children)
                one = self._parts.ras.complete(self._parts.exits.complete(one))
                one = self.peers.complete(one) if self.peers is not None else one
                self._see(run, self.monitors.complete(one))
        for left_out in look.later & self.runs.keys():
            if self.runs[left_out].watch.pass_over(look.at):
                self._wanted.add(left_out)
        for gone in [job_id for job_id in self.runs if job_id not in here]:
            run = self.runs.pop(gone)
            with self._defects.catching(run.job):
                self._ended(run)
        self._defects.keep(here)
        started = frozenset(one.launcher_pid for one in look.found.jobs if one.launcher_pid)
        self._parts.launchers.look(look.found.waiting, started, self._stall_settings())

    def _add_run(self, job: Job) -> Run:
        log.info("run %s (%s): %d ranks found", job.id, job.name, len(job.ranks))
        run = self.runs[job.id] = self._parts.recovery.add_run(job, self._stall_settings())
        return run

    def _see(self, run: Run, one: JobLook) -> None:
        run.update(one)
        run.exclude(self.config.stall.exclude)
        if not run.unjudged:
            self._decide(run, run.watch.look(one.look))
        elif run.incident is not None and run.incident.kind != "abnormal_end":
            self.incidents.close(run, "ended", run.unjudged)

    def _decide(self, run: Run, decision: StallDecision) -> None:
        if run.decision is None or run.decision.stage is not decision.stage:
            log.info("%s: %s: %s", run.job.name, stage_words(decision.stage), decision.sentence)
        run.decide(decision)
        if decision.sample:
            self._wanted.add(run.job.id)
        self._due = min(self._due, time.monotonic() + decision.next_look)
        if decision.open:
            hold = self.peers is not None and self.peers.holds(run)
            self.incidents.open(run, decision, hold=hold)
        if decision.capture:
            self._parts.capture_queue.ask(run, QueuedCapture(run.job, self.found, decision))
        else:
            self._parts.capture_queue.look(run, self.found)
        over = decision.stage in (Stage.RECOVERED, Stage.ENDED)
        held = over and self.peers is not None and self.peers.release(run)
        if decision.stage is Stage.RECOVERED and held:
            self.incidents.withdraw(run, decision.sentence)
        elif decision.stage is Stage.RECOVERED:
            self.incidents.close(run, "recovered", decision.sentence)
        elif decision.stage is Stage.ENDED:
            self.incidents.close(run, "ended", decision.sentence)
        elif decision.stage in (Stage.WATCHING, Stage.QUIET):
            run.clear_suspicion()
            if run.incident is None:
                self._parts.capture_queue.forget(run)

    def _ended(self, run: Run) -> None:
        log.info("run %s (%s) is over", run.job.id, run.job.name)
        self._parts.capture_queue.forget(run)
        self.incidents.no_longer_slow(run, "ended", "all ranks are gone")
        if run.incident is not None and run.incident.kind == "stall":
            self._parts.failed_attempts.explained(run)
            self.incidents.close(run, "ended", "all ranks are gone")
        self._parts.exits.over(run)

    # --- captures --------------------------------------------------------------------------------

    def _captured(self, job_id: str, capture: NodeCapture) -> None:
        run, launched = self.runs.get(job_id), self._parts.launchers.runs.get(job_id)
        if launched is not None:
            self._parts.launchers.captured(launched, capture)
        if run is not None:
            run.learn(capture)
            capture = msgspec.structs.replace(
                capture, step=run.last_look.step if run.last_look else None
            )
            capture = self.monitors.capture(capture)
            if self.peers is not None and self.peers.holding(run):
                run.keep_capture(capture)  # nobody knows yet under which id it is told
            else:
                self.incidents.captured(run, capture)
            if self.peers is not None:
                self.peers.captured(run, capture)

    # --- what others see ---------------------------------------------------------------------------

    def _looking(self) -> tuple[Worker, ...]:
        return tuple(worker for name, worker in self._workers.items() if name != "config")

    def _others(self) -> tuple[Worker, ...]:
        return self.peers.workers if self.peers is not None else ()

    @property
    def node(self) -> str:
        """The name of this node, as all messages and reports have it."""
        return self._parts.context.node

    def snapshot(self) -> Snapshot:
        """Everything that the agent knows now, as one immutable value."""
        return self.monitors.show(self._bare())

    def _bare(self) -> Snapshot:
        return Snapshot(
            node=self._parts.context.node,
            at=time.time(),
            started_at=self.started_at,
            pid=os.getpid(),
            runs=tuple(
                run_state(run, self._parts.exits.exits(id), self._parts.context.node)
                for id, run in self._all.items()
            ),
            sources=(
                *(one.state() for one in (*self._looking(), *self._others())),
                *self._parts.store.states(),
            ),
            incidents=dict(self.incidents.counts),
            last_report=dict(self.incidents.last_report),
            reports_lost=self._parts.store.lost,
            reports_waiting=self._parts.store.waiting,
            state_dir_losses=self._parts.store.losses,
            remarks=(
                *self.found.remarks,
                *stuck_remarks(self._parts.leftovers()),
            ),
            gaps=(*self.found.gaps, *self._defects.gaps),
            found=self._searched,
            unanswered=self._parts.failure_counts.counts,
            cpu_seconds=self._usage.cpu_seconds(),
            rss_bytes=self._usage.rss_bytes(),
            children=self._usage.children(),
            cluster=self.peers.sentence if self.peers is not None else "",
            cluster_refused=self.peers.refusals.counts if self.peers is not None else {},
            series_budget=self.config.metrics.series_budget,
            version=__version__,
        )
