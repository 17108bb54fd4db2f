"""One scheduler of the configuration: when it is asked, and what its last good answer was.

The question runs in a worker of its own: a controller that hangs holds up nothing else.
"""

import logging
import queue
import random
import time
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Protocol

import msgspec

from mldebug.config.schema import ExpectedJob, JobsConfig
from mldebug.core.plugin_options import Plugin
from mldebug.core.plugins import load
from mldebug.core.redact import safe_line
from mldebug.jobs.schedulers.expected_jobs import Pattern, watch
from mldebug.jobs.schedulers.model import (
    Queue,
    QueueError,
    QueueNode,
    SchedulerState,
    Standing,
    WatchedState,
)
from mldebug_agents.system.spawn import ProgramStarter
from mldebug_agents.system.workers import Result, Worker

log = logging.getLogger("mldebug")

WORKER = "scheduler:"
DEADLINE = 60.0
NODES_EVERY = 5  # of so many questions the second is for nodes
JITTER = 0.2  # of the interval, so that many agents do not ask at one moment
STALE = 3.0  # intervals after which nothing is concluded from an answer any more
MOST_NODES = 200


class Scheduler(Protocol):
    """What a file in `schedulers/` creates; its `Options` have `interval` (seconds) and `only_on`."""

    def ask(self, starter: ProgramStarter, *, nodes: bool) -> Queue:
        """Block until it has answered; `QueueError` where it has not, or not well."""
        ...


class Asked:
    """One scheduler, for the main loop's thread."""

    def __init__(
        self,
        name: str,
        plugin: Plugin,
        node: str,
        starter: ProgramStarter,
        inbox: "queue.SimpleQueue[Result | None]",
    ) -> None:
        self.name, self.plugin, self._node = name, plugin, node
        scheduler: Scheduler = load("schedulers", plugin.kind).create(plugin.options)
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

    def turn(self) -> None:
        """Ask, where it is time."""
        now = time.monotonic()
        if not self.asks or now < self._due or self._under_way:
            return
        self._due = now + self._interval * random.uniform(1, 1 + JITTER)  # noqa: S311 - no secret
        self._under_way = self.worker.order(self._count % NODES_EVERY == 1)
        self._count += 1

    def told(self, result: Result) -> None:
        """It has answered, or not."""
        self._under_way = False
        if isinstance(result.value, Queue):
            self._take(result.value)
            return
        error = result.error
        reason = error.reason if isinstance(error, QueueError) else "error"
        said = safe_line(str(error) or type(error).__name__, 300)
        if not self._trouble:
            log.error("scheduler %s: %s", self.name, said)
        self._trouble, self._failing = said, self._failing + 1
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
        """Numbers of Slurm jobs that are not over; None where that is not known now, or it is no Slurm."""
        old = time.monotonic() - self._steady > STALE * self._interval
        if self.plugin.kind != "slurm" or self._answer is None or self._trouble or old:
            return None
        if self._answer.only_of:
            return None
        jobs = self._answer.jobs
        return frozenset(one.number for one in jobs if one.standing is not Standing.OVER)

    def state(self, settings: JobsConfig) -> SchedulerState:
        """All of it, for snapshots; judged by the moment of the answer."""
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
            node_events=tuple(self._told_of()),
        )

    def _watched(self, settings: JobsConfig) -> tuple[WatchedState, ...]:
        if self._answer is None or self._at is None:
            return ()
        return tuple(
            watch(name, _pattern(one), self._answer, self._at, settings.before_limit)
            for name, one in _of(settings.expected, self.name).items()
        )

    def _told_of(self) -> list[str]:
        """Names may be short on one side."""
        wanted: Any = getattr(self.plugin.options, "node_events", ())
        own = self._node.partition(".")[0]
        patterns = [one for one in wanted if one != "own"]
        mine = "own" in wanted
        return [
            one.name
            for one in self._nodes[:MOST_NODES]
            if any(fnmatchcase(one.name, p) for p in patterns)
            or (mine and one.name.partition(".")[0] == own)
        ]


def _of(expected: Mapping[str, ExpectedJob], scheduler: str) -> dict[str, ExpectedJob]:
    return {name: one for name, one in expected.items() if one.scheduler in ("", scheduler)}


def _pattern(one: ExpectedJob) -> Pattern:
    return msgspec.convert(msgspec.structs.asdict(one), Pattern)
