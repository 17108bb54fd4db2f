"""Runs the storage collectors (filesystems, quotas, directory sizes, write rates), each in a worker thread of its own.

    main loop --order (time, jobs)--> collector's worker: look --CollectorState--> main loop --> snapshot

A collector may wait, for a bounded time, for a child process that touches what may hang; it never touches that itself.
"""

import logging
import queue
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol

import msgspec

from mldebug.core.model import Gap, Job, NodeCapture
from mldebug.core.redact import clean
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.goodput.straggler import SampledStretch, Slowness
from mldebug.status.snapshot import RunState, Snapshot
from mldebug.storage.filesystems.state import (
    CollectorState,
    Measure,
    Row,
    StorageAlert,
    StorageState,
)
from mldebug_agents.state.key_value_store import KeyValueStore as Store
from mldebug_agents.storage.dir_sizes.collector import DirSizeCollector
from mldebug_agents.storage.filesystems.collector import FilesystemCollector
from mldebug_agents.storage.filesystems.evidence import (
    RecentFills,
    joined_fills,
    stuck_devices,
    with_stuck,
)
from mldebug_agents.storage.slow_mounts import slow_by_device, with_slow_mounts, with_waiters
from mldebug_agents.storage.write_rates.collector import WriteRateCollector
from mldebug_agents.system.workers import Result, Worker

log = logging.getLogger("mldebug")

MEMO = "filesystems"
STORE_EVERY = 300.0  # seconds
DEADLINE = 20.0  # seconds after which a collector counts as stuck


class StorageCollector(Protocol):
    """Reads one subject of storage (filesystems, quotas, trees, writers). `look` is called first, then the other methods, all in the collector's worker thread."""

    name: str  # of the worker, too: "filesystems"

    @property
    def interval(self) -> float:
        """Seconds between two readings of the node (calls of `look`)."""

    def look(self, now: float, jobs: Sequence[Job]) -> None:
        """Read. `now`: unix time by a clock that is not set while the agent runs. What may take more than a few seconds
        belongs in a child process. An exception makes the look a failure.
        """

    def samples(self) -> Iterable[Measure]:
        """Values for Prometheus; unknown values are left out."""

    def status(self) -> dict[str, tuple[Row, ...]]:
        """Rows by heading, for `mldebug status --storage`."""

    def alarms(self) -> Iterable[StorageAlert]:
        """Alerts about problems that a person should solve."""

    def gaps(self) -> Iterable[Gap]:
        """What this collector could not read, each with the reason."""


def look_once(parts: Sequence[StorageCollector], jobs: Sequence[Job]) -> StorageState:
    """Have these collectors read filesystems and folders once, for a command that runs without an agent. `jobs`: those whose folders
    count. Nothing says when a disk will be full, which takes several readings.
    """
    order = _Order(time.time(), time.time(), tuple(jobs))
    return StorageState(parts=tuple(_looking(part)(order) for part in parts))


class _Order(NamedTuple):
    at: float  # unix time
    now: float  # the same, by a clock that nobody sets
    jobs: tuple[Job, ...]


class StorageMonitor:
    """Keeps the last results of all collectors. Belongs to the main loop's thread."""

    def __init__(
        self,
        parts: Sequence[StorageCollector],
        store: Store,
        inbox: "queue.SimpleQueue[Result | None]",
    ) -> None:
        self._epoch = time.time() - time.monotonic()  # a slope must not see that a clock was set
        self._store = store
        self._recalled = False
        self._store_due = 0.0
        self._parts = {part.name: part for part in parts}
        self._workers = {
            part.name: Worker(f"storage-{part.name}", _looking(part), inbox, DEADLINE)
            for part in parts
        }
        self._due = dict.fromkeys(self._parts, 0.0)
        self._states: dict[str, CollectorState] = {}
        self._fills = RecentFills()
        self._alarmed: set[tuple[str, str]] = set()

    @property
    def workers(self) -> tuple[str, ...]:
        """The names of the workers whose results `on_result` takes."""
        return tuple(worker.name for worker in self._workers.values())

    def tick(self, jobs: Sequence[Job], places: Mapping[str, Sequence[str]] = {}) -> None:
        """Order the looks that are due; does not wait for them. `places`: by job, the folders of its checkpoints and of its log, as its ranks see them."""
        self._recall()
        for part in self._parts.values():
            if isinstance(part, FilesystemCollector | DirSizeCollector) and not self._workers[part.name].busy:  # fmt: skip
                part.follow(places)
        now = time.monotonic()
        for name, worker in self._workers.items():
            if now >= self._due[name] and not worker.busy:
                self._due[name] = now + self._parts[name].interval
                worker.order(_Order(time.time(), self._epoch + now, tuple(jobs)))

    def on_result(self, result: Result) -> None:
        """Handle the result of a collector and log its new alerts; an error is logged, and the last result stays."""
        if result.error is not None:
            error = result.error
            log.warning("%s failed: %s: %s", result.worker, type(error).__name__, error)
            return
        self._states[result.value.name] = result.value
        if result.value.name == FilesystemCollector.name:
            self._fills.add(result.value)
        self._keep(result.value.name)
        self._warn()

    def _recall(self) -> None:
        """Give the stored histories to the filesystem collector, once, when the state folder was read and it is idle."""
        part = self._parts.get(FilesystemCollector.name)
        if self._recalled or not self._store.opened or not isinstance(part, FilesystemCollector):
            return
        if not self._workers[part.name].busy:
            self._recalled = True
            part.recall(self._store.memo(MEMO))

    def _keep(self, name: str) -> None:
        """Store the histories now and then, while the filesystem collector is idle."""
        part, now = self._parts[name], time.monotonic()
        if not isinstance(part, FilesystemCollector) or self._workers[name].busy:
            return
        if self._recalled and now >= self._store_due:
            self._store_due = now + STORE_EVERY
            self._store.remember(MEMO, part.memory())

    def show(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the last results of all collectors."""
        if not self._states:
            return snapshot
        runs = tuple(self._joined(run, snapshot.node) for run in snapshot.runs)
        return msgspec.structs.replace(
            snapshot,
            runs=runs,
            storage=StorageState(parts=with_waiters(self._states.values(), runs, snapshot.node)),
            sources=(*snapshot.sources, *(worker.state() for worker in self._workers.values())),
        )

    def complete_samples(self, stretch: SampledStretch) -> SampledStretch:
        """The samples of a run's ranks, with what has become slow on the mounts for which they wait."""
        ranks = with_slow_mounts(stretch.ranks, self._slow())
        return msgspec.structs.replace(stretch, ranks=ranks)

    def _joined(self, run: RunState, node: str) -> RunState:
        """The run with what is slow now: a mount is found to be slow some time after the ranks are seen to wait for it."""
        if run.slowness is None:
            return run
        return msgspec.structs.replace(run, slowness=self.with_mounts(run.slowness, node))

    def with_mounts(self, found: Slowness, node: str = "") -> Slowness:
        """What is found of a run's ranks, with what is slow now on the mounts for which those of `node` wait."""
        shares = with_slow_mounts(found.shares, self._slow(), node)
        return msgspec.structs.replace(found, shares=shares)

    def _slow(self) -> Mapping[str, str]:
        alarms = [one for part in self._states.values() for one in part.alarms]
        return slow_by_device(alarms)

    def capture(self, capture: NodeCapture) -> NodeCapture:
        """The capture, with the seconds for which filesystems that its ranks wait on have not answered the agent."""
        return with_stuck(
            capture, stuck_devices(self._states.get(FilesystemCollector.name), time.time())
        )

    def mounts_of(self, uids: AbstractSet[int]) -> tuple[str, ...]:
        """Mount points of the filesystems that these users may see and that jobs used lately. Any thread may ask."""
        return self._fills.mounts_of(uids)

    def complete_exit(self, attempt: AttemptExit) -> AttemptExit:
        """The exit, with how full the filesystems were that its user may see, and who writes most to each. What was read of them after
        its end stays.
        """
        uids = {identity.uid for identity in attempt.identities}
        fills = self._fills.of_users(uids, time.time())
        fills = joined_fills(fills, attempt.filesystems)
        part = self._parts.get(WriteRateCollector.name)
        if isinstance(part, WriteRateCollector):
            fills = tuple(
                msgspec.structs.replace(one, writer=part.who_filled(one.mount, uids))
                for one in fills
            )
        return msgspec.structs.replace(attempt, filesystems=fills)

    def _warn(self) -> None:
        """Log each alert once, and again when it comes back."""
        alarms = StorageState(parts=tuple(self._states.values())).alarms
        for one in alarms:
            if (one.kind, one.subject) not in self._alarmed:
                log.warning("storage: %s", clean(one.whole, 400))
        self._alarmed = {(one.kind, one.subject) for one in alarms}


def _looking(part: StorageCollector) -> Callable[[_Order], CollectorState]:
    def look(order: _Order) -> CollectorState:
        part.look(order.now, order.jobs)
        return CollectorState(
            name=part.name,
            at=order.at,
            measures=tuple(part.samples()),
            rows=part.status(),
            alarms=tuple(part.alarms()),
            gaps=tuple(part.gaps()),
        )

    return look
