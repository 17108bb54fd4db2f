"""Asks the configured schedulers at their intervals, and keeps the last good answer of each for the snapshot.

Each question runs in a worker thread of its own, so one that hangs holds up nothing else. The
search for orphan processes is started here, too, because it must know which jobs are alive.
"""

import logging
import queue
import random
import time
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from mldebug.config.schema import Config, ExpectedJob, JobsConfig
from mldebug.core.plugin_options import Plugin
from mldebug.core.plugins import create
from mldebug.core.redact import safe_line
from mldebug.hardware.gpu.readings import NodeGpus
from mldebug.jobs.schedulers.expected_jobs import JobPattern, watched_state
from mldebug.jobs.schedulers.model import (
    JobStanding,
    Orphan,
    Queue,
    QueueError,
    QueueNode,
    SchedulerState,
    WatchedState,
)
from mldebug.status.snapshot import Snapshot
from mldebug_agents.jobs.orphans import OrphanFinder, OrphanRequest
from mldebug_agents.jobs.schedulers import Scheduler
from mldebug_agents.system.context import Context
from mldebug_agents.system.spawn import ProgramStarter
from mldebug_agents.system.workers import Result, Worker

log = logging.getLogger("mldebug")

ORPHANS = "orphans"
LOOK_EVERY, LOOK_DEADLINE = 30.0, 20.0
WORKER = "scheduler:"
DEADLINE = 60.0
NODES_EVERY = 5  # of so many questions the second is for nodes
JITTER = 0.2  # of the interval, so that many agents do not ask at one moment
STALE = 3.0  # intervals after which nothing is concluded from an answer any more
MOST_NODES = 200


class SchedulerMonitor:
    """The schedulers that this agent asks, and the processes on this node that outlived their job (orphans)."""

    def __init__(
        self, config: Config, context: Context, inbox: "queue.SimpleQueue[Result | None]"
    ) -> None:
        self._context, self._inbox, self._config = context, inbox, config
        self._schedulers: dict[str, PolledScheduler] = {}
        finder = OrphanFinder(context.host, context.reader)
        self._worker = Worker(ORPHANS, finder.look, inbox, LOOK_DEADLINE)
        self._due = 0.0
        self._orphans: tuple[Orphan, ...] | None = None
        self._gpus: dict[int, dict[str, int | None]] = {}  # as in `OrphanRequest`
        self.reload(config)

    def reload(self, config: Config) -> None:
        """Use a changed configuration. Schedulers whose settings are the same keep their answers."""
        self._config = config
        wanted, before = config.schedulers, self._schedulers
        self._schedulers = {}
        for name, plugin in wanted.items():
            scheduler = before.get(name)
            same = scheduler is not None and scheduler.plugin == plugin
            fresh = (name, plugin, self._context.node, self._context.spawner, self._inbox)
            self._schedulers[name] = (
                scheduler if scheduler is not None and same else PolledScheduler(*fresh)
            )

    def tick(self) -> None:
        """Start what is due: questions to schedulers, the search for orphans."""
        for scheduler in self._schedulers.values():
            scheduler.tick()
        now, jobs = time.monotonic(), self._config.jobs
        if not jobs.orphans:
            self._orphans = None
        elif now >= self._due and not self._worker.busy:
            self._due = now + min(LOOK_EVERY, max(1.0, jobs.orphan_grace / 2))
            order = OrphanRequest(alive=self._alive(), gpus=self._gpus, grace=jobs.orphan_grace)
            self._worker.order(order)

    def on_result(self, result: Result) -> bool:
        """Handle a worker's result. Returns False where it comes neither from a scheduler nor from the search for orphans."""
        if result.worker == ORPHANS:
            self._orphans = result.value
            return True
        if not result.worker.startswith(WORKER):
            return False
        one = self._schedulers.get(result.worker.removeprefix(WORKER))
        if one is not None:  # else it was taken out of the configuration
            one.on_result(result)
        return True

    def show(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the schedulers, the orphaned processes and the workers that look for them added.

        The GPU processes in the snapshot are remembered for the next search for orphans.
        """
        self._gpus = _holders(snapshot.gpus)
        schedulers = self._schedulers.values()
        workers = (
            *(scheduler.worker.state() for scheduler in schedulers if scheduler.asks),
            self._worker.state(),
        )
        return msgspec.structs.replace(
            snapshot,
            schedulers=tuple(scheduler.state(self._config.jobs) for scheduler in schedulers),
            orphans=self._orphans,
            sources=(*snapshot.sources, *workers),
        )

    def _alive(self) -> frozenset[str] | None:
        """Numbers of living jobs of all Slurms together; None where there is no Slurm, or one of them could not be asked."""
        alive = [scheduler.alive() for scheduler in self._schedulers.values() if scheduler.plugin.kind == "slurm" and scheduler.asks]  # fmt: skip
        if not alive or any(jobs is None for jobs in alive):
            return None
        return frozenset(job for jobs in alive if jobs is not None for job in jobs)


def _holders(gpus: NodeGpus | None) -> dict[int, dict[str, int | None]]:
    held: dict[int, dict[str, int | None]] = {}
    for gpu in gpus.gpus if gpus else ():
        for process in gpu.processes or ():
            held.setdefault(process.pid, {})[gpu.uuid] = process.memory_bytes
    return held


class PolledScheduler:
    """One configured scheduler: when it is asked next, and its last good answer.

    Used by the main loop's thread only.
    """

    def __init__(
        self,
        name: str,
        plugin: Plugin,
        node: str,
        starter: ProgramStarter,
        inbox: "queue.SimpleQueue[Result | None]",
    ) -> None:
        self.name, self.plugin, self._node = name, plugin, node
        scheduler: Scheduler = create("schedulers", plugin.kind, plugin.options)
        self._interval: float = plugin.options.interval
        self.worker = Worker(
            WORKER + name, lambda nodes: scheduler.ask(starter, nodes=nodes), inbox, DEADLINE
        )
        self.asks = any(fnmatchcase(node, one) for one in plugin.options.only_on)
        self._due = time.monotonic() + random.uniform(0, min(5.0, self._interval * JITTER))  # noqa: S311 - no secret
        self._count = 0
        self._answer: Queue | None = None
        self._at: float | None = None  # unix
        self._steady = 0.0  # monotonic, of the last good answer
        self._nodes: tuple[QueueNode, ...] = ()
        self._trouble, self._failing = "", 0
        self._failures: dict[str, int] = {}
        self._under_way = False

    def tick(self) -> None:
        """Order the next question once the interval is over, unless one is under way or this node
        is none of those that ask.
        """
        now = time.monotonic()
        if not self.asks or now < self._due or self._under_way:
            return
        self._due = now + self._interval * random.uniform(1, 1 + JITTER)  # noqa: S311 - no secret
        self._under_way = self.worker.order(self._count % NODES_EVERY == 1)
        self._count += 1

    def on_result(self, result: Result) -> None:
        """Keep what the scheduler (Slurm, for instance) answered when it was asked for its jobs, or that it could not be asked."""
        self._under_way = False
        if isinstance(result.value, Queue):
            self._take(result.value)
            return
        error = result.error
        reason = error.reason if isinstance(error, QueueError) else "error"
        message = safe_line(str(error) or type(error).__name__, 300)
        if not self._trouble:
            log.error("scheduler %s: %s", self.name, message)
        self._trouble, self._failing = message, self._failing + 1
        self._failures[reason] = self._failures.get(reason, 0) + 1

    def _take(self, answer: Queue) -> None:
        self._answer, self._at, self._steady = answer, time.time(), time.monotonic()
        self._trouble, self._failing = "", 0
        if answer.nodes is not None:
            self._nodes = answer.nodes
        if answer.trouble:
            self._failures["nodes"] = self._failures.get("nodes", 0) + 1
            log.warning("scheduler %s: %s", self.name, safe_line(answer.trouble, 300))

    def alive(self) -> frozenset[str] | None:
        """The numbers of all Slurm jobs that are not over.

        None where that is not known: the scheduler is another one, its last answer failed or covers only some jobs, or there was
        none for `STALE` intervals.
        """
        old = time.monotonic() - self._steady > STALE * self._interval
        if self.plugin.kind != "slurm" or self._answer is None or self._trouble or old:
            return None
        if self._answer.only_of:
            return None
        jobs = self._answer.jobs
        return frozenset(job.number for job in jobs if job.standing is not JobStanding.OVER)

    def state(self, settings: JobsConfig) -> SchedulerState:
        """The last good answer, and how asking went, for the snapshot. `settings`: which jobs are expected to run."""
        return SchedulerState(
            name=self.name,
            kind=self.plugin.kind,
            asks=self.asks,
            success_at=self._at,
            seconds=self.worker.state().seconds if self._at is not None else None,
            by=self._answer.by if self._answer else "",
            trouble=self._trouble,
            failing=self._failing,
            failures=dict(self._failures),
            watched=self._watched(settings),
            nodes=self._nodes[:MOST_NODES],
            node_events=tuple(self._alerted_nodes()),
        )

    def _watched(self, settings: JobsConfig) -> tuple[WatchedState, ...]:
        if self._answer is None or self._at is None:
            return ()
        return tuple(
            watched_state(name, _pattern(one), self._answer, self._at, settings.before_limit)
            for name, one in _of(settings.expected, self.name).items()
        )

    def _alerted_nodes(self) -> list[str]:
        """Names of nodes for which events are raised; a node's name may be short on one side."""
        wanted: Any = getattr(self.plugin.options, "node_events", ())
        own = self._node.partition(".")[0]
        patterns = [one for one in wanted if one != "own"]
        mine = "own" in wanted
        return [
            node.name
            for node in self._nodes[:MOST_NODES]
            if any(fnmatchcase(node.name, p) for p in patterns)
            or (mine and node.name.partition(".")[0] == own)
        ]


def _of(expected: Mapping[str, ExpectedJob], scheduler: str) -> dict[str, ExpectedJob]:
    return {name: one for name, one in expected.items() if one.scheduler in ("", scheduler)}


def _pattern(job: ExpectedJob) -> JobPattern:
    return msgspec.convert(msgspec.structs.asdict(job), JobPattern)
