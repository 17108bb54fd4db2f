"""The node's memory as the main loop knows it: orders readings, keeps the last one, and logs when an alarm begins."""

import logging
import time
from collections.abc import Mapping

import msgspec

from mldebug.config.schema import MemoryConfig
from mldebug.hardware.host_memory.state import NodeMemory, alarms
from mldebug.status.snapshot import Snapshot
from mldebug_agents.hardware.host_memory.reader import MemoryOrder
from mldebug_agents.system.workers import Result, Worker
from mldebug_agents.watch.runs import Run

log = logging.getLogger("mldebug")

DEADLINE = 10.0


class HostMemoryMonitor:
    """Keeps the last readings of this node's memory, and has a worker take new ones."""

    def __init__(self, worker: Worker) -> None:
        """`worker`: has a `MemoryWatch` look."""
        self.worker = worker
        self._due = 0.0
        self._memory: NodeMemory | None = None
        self._alarmed: set[tuple[str, str]] = set()

    def tick(self, runs: Mapping[str, Run], settings: MemoryConfig) -> None:
        """Order a new reading of the memory if one is due; where `settings` turn this off, forget the last one."""
        now = time.monotonic()
        if not settings.watch:
            self._memory = None
        elif now >= self._due and not self.worker.busy:
            self._due = now + settings.interval
            jobs = tuple(run.job for run in runs.values())
            self.worker.order(MemoryOrder(jobs=jobs, horizon=settings.alarm, pss=settings.pss))

    def on_result(self, result: Result) -> None:
        """Handle the worker's result and log new memory alarms; after a failure the old reading is dropped."""
        self._memory = result.value if isinstance(result.value, NodeMemory) else None
        if self._memory is None:
            return
        now = {(one.level.scope, one.level.name) for one in self._memory.levels if one.alarm}
        if now - self._alarmed:
            for sentence in alarms(self._memory):
                log.warning("%s", sentence)
        self._alarmed = now

    def show(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the memory readings and the worker's state added."""
        sources = (*snapshot.sources, self.worker.state())
        return msgspec.structs.replace(snapshot, memory=self._memory, sources=sources)
