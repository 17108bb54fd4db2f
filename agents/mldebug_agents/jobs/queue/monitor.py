"""Schedulers and orphans, as the main loop knows them: orders questions and looks, and shows what came of them."""

import logging
import queue
import time

import msgspec
from mldebug_agents.jobs.queue.orphans import OrphanOrder, OrphanWatch
from mldebug_agents.jobs.queue.poll import WORKER, Asked

from mldebug.config.schema import Config
from mldebug.hardware.gpu.readings import NodeGpus
from mldebug.jobs.schedulers.model import Orphan
from mldebug.status.snapshot import Snapshot
from mldebug_agents.system.context import Context
from mldebug_agents.system.workers import Result, Worker

log = logging.getLogger("mldebug")

ORPHANS = "orphans"
LOOK_EVERY, LOOK_DEADLINE = 30.0, 20.0


class QueueBoard:
    """Of this node."""

    def __init__(
        self, config: Config, context: Context, inbox: "queue.SimpleQueue[Result | None]"
    ) -> None:
        self._context, self._inbox, self._config = context, inbox, config
        self._asked: dict[str, Asked] = {}
        watch = OrphanWatch(context.host, context.reader)
        self._worker = Worker(ORPHANS, watch.look, inbox, LOOK_DEADLINE)
        self._due = 0.0
        self._orphans: tuple[Orphan, ...] | None = None
        self._gpus: dict[int, dict[str, int | None]] = {}  # as in `OrphanOrder`
        self.reload(config)

    def reload(self, config: Config) -> None:
        """Ask others; what is known of those that stay is kept."""
        self._config = config
        wanted, before = config.schedulers, self._asked
        self._asked = {}
        for name, plugin in wanted.items():
            known = before.get(name)
            same = known is not None and known.plugin == plugin
            fresh = (name, plugin, self._context.node, self._context.spawner, self._inbox)
            self._asked[name] = known if known is not None and same else Asked(*fresh)

    def turn(self) -> None:
        """Order what is due."""
        for one in self._asked.values():
            one.turn()
        now, jobs = time.monotonic(), self._config.jobs
        if not jobs.orphans:
            self._orphans = None
        elif now >= self._due and not self._worker.busy:
            self._due = now + min(LOOK_EVERY, max(1.0, jobs.orphan_grace / 2))
            order = OrphanOrder(alive=self._alive(), gpus=self._gpus, grace=jobs.orphan_grace)
            self._worker.order(order)

    def told(self, result: Result) -> bool:
        """A scheduler or the look has come back; False where it was somebody else."""
        if result.worker == ORPHANS:
            self._orphans = result.value
            return True
        if not result.worker.startswith(WORKER):
            return False
        one = self._asked.get(result.worker.removeprefix(WORKER))
        if one is not None:  # else it was taken out of the configuration
            one.told(result)
        return True

    def show(self, snapshot: Snapshot) -> Snapshot:
        """A snapshot with all of it; who holds GPUs is taken from it for the next look."""
        self._gpus = _holders(snapshot.gpus)
        asked = self._asked.values()
        workers = (*(one.worker.state() for one in asked if one.asks), self._worker.state())
        return msgspec.structs.replace(
            snapshot,
            schedulers=tuple(one.state(self._config.jobs) for one in asked),
            orphans=self._orphans,
            sources=(*snapshot.sources, *workers),
        )

    def _alive(self) -> frozenset[str] | None:
        """Of all Slurms together, where at least one has told; nothing where one of them could not be asked."""
        told = [one.alive() for one in self._asked.values() if one.plugin.kind == "slurm" and one.asks]  # fmt: skip
        if not told or any(one is None for one in told):
            return None
        return frozenset(job for one in told if one is not None for job in one)


def _holders(gpus: NodeGpus | None) -> dict[int, dict[str, int | None]]:
    held: dict[int, dict[str, int | None]] = {}
    for gpu in gpus.gpus if gpus else ():
        for one in gpu.processes or ():
            held.setdefault(one.pid, {})[gpu.uuid] = one.memory_bytes
    return held
