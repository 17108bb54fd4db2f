"""Keeps the records of the runs of this node, also after their end and over restarts of the agent.

Belongs to the main loop's thread. Bounded: `MOST` records, in turns those of each user and each job of the user, for `AGE` seconds.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping

import msgspec

from mldebug.core.model import Job, shared_fields
from mldebug.core.ranksets import fold_nodes
from mldebug.hardware.gpu.readings import NodeGpus
from mldebug.jobs.owners import in_turns, owner_of
from mldebug.jobs.run_records.model import RunRecord, StoredRecord, without_numbers
from mldebug.status.snapshot import Snapshot
from mldebug_agents.jobs.ranks.libraries import Libraries, Program
from mldebug_agents.jobs.run_records.reader import RecordOrder, StartedWith, machine_facts
from mldebug_agents.state.key_value_store import KeyValueStore, hashed_name
from mldebug_agents.state.settled_clock import SettledClock
from mldebug_agents.system.workers import Result, Worker

log = logging.getLogger("mldebug")

WORKER, DEADLINE = "run records", 30.0
MEMO = "run-record:"
MOST = 64  # records
AGE = 30 * 86400.0  # seconds
STEADY = (
    20.0  # seconds for which a run must have lived: many fail at once, and have nothing to compare
)
STORE_EVERY = 120.0  # seconds between two notes of when a run was seen last
ENDED = 60.0  # seconds without the run
LARGEST = 200_000  # bytes of one record
TABLES = ("arguments", "environment", "packages")  # which may be so large


class RunRecordMonitor:
    """The records of this node's runs. `wall`, `steady`: unix time and monotonic seconds."""

    def __init__(
        self,
        worker: Worker,
        store: KeyValueStore,
        node: str,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        """`worker`: has a `RunRecordReader` look. `node`: this node's name, for runs of which nobody tells the nodes."""
        self.worker = worker
        self._store, self._node, self._wall, self._steady = store, node, wall, steady
        self._clock = SettledClock(wall, steady)
        self._records: dict[str, StoredRecord] = {}
        self._met: dict[str, float] = {}  # run -> when it was found: steady seconds
        self._ordered: set[str] = set()
        self._last: dict[
            str, tuple[float, float]
        ] = {}  # run -> steady and unix time it was seen last
        self._outcomes: dict[str, str] = {}
        self._machine: dict[str, str] = {}
        self._restored = False
        self._store_due = 0.0

    def tick(
        self,
        jobs: Mapping[str, Job],
        programs: Mapping[int, Program],
        exits: Callable[[str], Mapping[int, str]],
    ) -> None:
        """Order the record of a run that has none yet, one at a time, and note which runs are over.

        `programs`: by pid. `exits`: how the ranks of a run have ended so far, in words by rank.
        """
        self._restore()
        if not self._restored:
            return
        steady, wall = self._steady(), self._wall()
        for id, job in jobs.items():
            if job.ranks:
                self._met.setdefault(id, steady)
                self._last[id] = steady, wall
        for id in self._last:
            if words := exits(id):
                self._outcomes[id] = _outcome(words)
        self._order_next(jobs, programs, steady)
        self._note_exits(jobs, steady)
        if steady >= self._store_due:
            self._store_due = steady + STORE_EVERY
            self._note_times()
            self._tidy(wall)

    def on_result(self, result: Result) -> bool:
        """Keep what the worker has read. False where the result comes from another worker."""
        if result.worker != WORKER:
            return False
        job: Job = result.order.job
        found = result.value
        if not isinstance(found, StartedWith):
            found = StartedWith(run=job.id, gaps=(f"it could not be read: {result.error}",))
        first = min(job.ranks, key=lambda one: one.rank)
        _, wall = self._last.get(job.id, (0.0, self._wall()))
        self._put(
            RunRecord(
                **(shared_fields(found, RunRecord) | {"machine": found.machine | self._machine}),
                name=job.name,
                user=job.user,
                uid=job.uid,
                script=first.script,
                launcher=job.launcher,
                world_size=job.world_size,
                rank=first.rank,
                nodes=job.node_list or fold_nodes(job.nodes or (self._node,)),
                started_at=first.started_at or job.started_at,
                last_at=wall,
            )
        )
        return True

    def show(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the records and the worker's state; takes the GPUs of the node from it for records to come."""
        if snapshot.gpus is not None:
            self._machine = _gpu_facts(snapshot.gpus)
        return msgspec.structs.replace(
            snapshot,
            run_records=tuple(self._records.values()),
            sources=(*snapshot.sources, self.worker.state()),
        )

    # --- inside ------------------------------------------------------------------------------------

    def _order_next(
        self, jobs: Mapping[str, Job], programs: Mapping[int, Program], steady: float
    ) -> None:
        if self.worker.busy:
            return
        for id in in_turns([*jobs], lambda id: owner_of(jobs[id])):
            job = jobs[id]
            if id in self._records or id in self._ordered or not job.ranks:
                continue
            first = min(job.ranks, key=lambda one: one.rank)
            known = programs.get(first.pid)
            libraries = known.libraries if known else Libraries()
            if libraries.torch or steady - self._met.get(id, steady) >= STEADY:
                self._ordered.add(id)
                self.worker.order(RecordOrder(job=job, libraries=libraries))
                return

    def _note_exits(self, jobs: Mapping[str, Job], steady: float) -> None:
        """Write down how the runs without a rank ended, at once: the next run of a job may be compared with it seconds later."""
        gone = [(id, at, wall) for id, (at, wall) in self._last.items() if id not in jobs]
        for id, at, wall in gone:
            over = steady - at > ENDED
            if (stored := self._records.get(id)) is not None:
                outcome = self._outcomes.get(id, stored.summary.outcome)
                if (over, outcome) != (stored.summary.is_over, stored.summary.outcome):
                    record = stored.record()
                    self._put(msgspec.structs.replace(record, last_at=wall, is_over=over, outcome=outcome))  # fmt: skip
            if over:
                for known in (self._last, self._met, self._outcomes):
                    known.pop(id, None)
                self._ordered.discard(id)

    def _note_times(self) -> None:
        """Write down until when each run was seen."""
        for id, (_, wall) in self._last.items():
            if (stored := self._records.get(id)) is not None:
                self._put(msgspec.structs.replace(stored.record(), last_at=wall, is_over=False))

    def _put(self, record: RunRecord) -> None:
        stored = StoredRecord.of(record)
        if len(stored.encoded) > LARGEST:
            stored = StoredRecord.of(_without_tables(record))
        if stored != self._records.get(record.run):
            self._records[record.run] = stored
            self._store.remember(hashed_name(MEMO, record.run), stored.encoded)

    def _tidy(self, wall: float) -> None:
        """Forget what is old by a clock that has settled, and of too many records the oldest ones of the user who has most."""
        newest = sorted(self._records.values(), key=lambda one: -one.summary.last_at)
        oldest = wall - AGE if self._clock.settled() else -math.inf
        young = [one for one in newest if one.summary.last_at >= oldest]
        by_job = in_turns(young, _job_of)
        kept = {one.summary.run for one in in_turns(by_job, lambda one: one.uid)[:MOST]}
        for id in self._records.keys() - kept:
            del self._records[id]
            self._store.remember(hashed_name(MEMO, id), b"")

    def _restore(self) -> None:
        if self._restored or not self._store.opened:
            return
        self._restored = True
        for name in self._store.memos(MEMO):
            try:
                record = msgspec.json.decode(self._store.memo(name), type=RunRecord)
                self._records[record.run] = StoredRecord.of(record)
                if not record.is_over:  # else it is, unless it is found again
                    self._last[record.run] = self._steady(), record.last_at
            except msgspec.MsgspecError:
                log.warning("a stored record of a run cannot be read, and is forgotten")
                self._store.remember(name, b"")


def _job_of(one: StoredRecord) -> tuple[int, str, str]:
    return one.uid, without_numbers(one.summary.name), one.summary.script


def _without_tables(record: RunRecord) -> RunRecord:
    gaps = tuple(f"{table}: more than there is room for" for table in TABLES)
    return msgspec.structs.replace(record, arguments=(), environment={}, packages={}, gaps=gaps)


def _outcome(words: Mapping[int, str]) -> str:
    """How most of the ranks ended that told it: `exit 1 (7 of 8 ranks)`."""
    ((most, count), *others) = Counter(words.values()).most_common()
    return f"{most} ({count} of {len(words)} ranks)" if others else most


def _gpu_facts(gpus: NodeGpus) -> dict[str, str]:
    return machine_facts(Counter(one.name for one in gpus.gpus), gpus.driver_version)
