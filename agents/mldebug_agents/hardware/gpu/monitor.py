"""The GPUs of this node as the main loop knows them: newest readings, health, missing GPUs, and which rank uses which.

Belongs to the main loop's thread. A value that could not be read is absent; an old one is never shown in its place.
"""

import logging
from collections.abc import Iterable, Mapping

import msgspec

from mldebug.core.model import Fault, Job
from mldebug.hardware.gpu.expected import ExpectedGpus, GpuCount
from mldebug.hardware.gpu.positions import remembering
from mldebug.hardware.gpu.rank_gpus import Samples, with_looks
from mldebug.hardware.gpu.rank_join import RankGpuMap
from mldebug.hardware.gpu.readings import (
    GpuEvent,
    GpuReading,
    LostGpu,
    NodeGpus,
    NodeWatch,
    ecc_count,
)
from mldebug.hardware.health.faults import as_sure, faults_of_count, faults_of_memory
from mldebug.hardware.health.gpu_rules import gpu_health
from mldebug.hardware.health.model import ComponentHealth
from mldebug.hardware.health.new_errors import ErrorCount, NewErrors
from mldebug.hardware.health.thresholds import Thresholds
from mldebug_agents.hardware.gpu.memory_growth import MemoryGrowth
from mldebug_agents.hardware.gpu.neighbours import GpuNeighbour
from mldebug_agents.hardware.gpu.reads import GpuNews
from mldebug_agents.state.key_value_store import KeyValueStore

log = logging.getLogger("mldebug")

EXPECTED = "expected_gpus"  # the name of what is remembered
MAX_FAULTS = 64


class GpuMonitor:
    """Keeps the newest readings of the GPUs, what is wrong with them, and which rank uses which. `watch`: the last quick
    reading; `full`: the last full one; None where there is none yet, or the newest one failed.
    """

    def __init__(self, memory: KeyValueStore, node: str) -> None:
        self._memory = memory
        self._node = node
        self._expected: ExpectedGpus | None = None  # until what is remembered can be read
        self.watch: NodeWatch | None = None
        self.full: NodeGpus | None = None
        self.count: GpuCount | None = None
        self.health: tuple[ComponentHealth, ...] = ()
        self.samples: Samples = {}  # the newest looks at each GPU
        self._before: NodeGpus | None = None  # the last full read that went well
        self._joined: dict[str, RankGpuMap] = {}  # also of GPUs that are lost since
        self._neighbours: dict[str, dict[str, GpuNeighbour | None]] = {}
        self._growth = MemoryGrowth()
        self._errors: dict[str, ErrorCount] = {}  # of memory, by uuid
        self._faults: dict[str, list[Fault]] = {}  # of memory, by job

    def update(self, news: GpuNews, limits: Thresholds, configured: int | None) -> None:
        """Keep a successful reading. `limits`: thresholds of the health rules. `configured`: how many GPUs the
        configuration expects; None: the number is learned.
        """
        if news.full is None:
            self.watch = news.watch
            self.samples = with_looks(self.samples, news.watch)
            return
        self.full, self._neighbours = news.full, news.neighbours
        self._growth.update(news.full.gpus, news.full.at)
        for job_id, joined in news.joined.items():
            before = self._joined.get(job_id)
            self._joined[job_id] = remembering(joined, before, {one.uuid for one in news.full.gpus})
        self._count(news, configured)
        self._compare(news.full, limits)
        self._before = news.full

    def failed(self, *, full: bool) -> None:
        """Forget the last reading of this kind, because a new one failed. `full`: the full one, with GPU count and health;
        else the quick one. The last good full reading is kept to compare the next one with.
        """
        if full:
            self.full, self.count, self.health = None, None, ()
        else:
            self.watch, self.samples = None, {}

    def joined(self, job_id: str) -> RankGpuMap:
        """Which rank of the job uses which GPU; empty where nothing is known."""
        return self._joined.get(job_id) or RankGpuMap()

    def neighbours(self, job_id: str) -> Mapping[str, GpuNeighbour | None]:
        """By GPU uuid, the processes of others that compute on the GPUs of this job, for each GPU whose processes the last full reading listed."""
        return self._neighbours.get(job_id, {})

    def grown(self, uuid: str, pid: int) -> float:
        """Unix time when the memory of a process on this GPU was last found to have become larger by a tenth; 0.0: it was not."""
        return self._growth.since(uuid, pid)

    def knows(self, job: Job) -> bool:
        """Whether a process of every rank of the job was found on its GPU; where not, GPUs are guessed by convention (local
        rank = index).
        """
        sure = {rank.rank for rank in self.joined(job.id).ranks if rank.sure}
        return all(one.rank in sure for one in job.ranks)

    def events(self) -> tuple[GpuEvent, ...]:
        """Driver events (such as Xids) that came with the last quick reading of the GPUs."""
        return self.watch.events if self.watch else ()

    def lost(self) -> tuple[LostGpu, ...]:
        """GPUs that did not answer at the last reading: the quick one, else the full one."""
        newest = self.watch or self.full
        return newest.lost if newest else ()

    def faults(self, job_id: str) -> tuple[Fault, ...]:
        """Faults that concern ranks of the job: GPUs missing from this node, and memory errors of GPUs that its ranks use."""
        missing = faults_of_count(self.count, self._ranks(job_id), self._node) if self.count else ()
        return as_sure((*self._faults.get(job_id, ()), *missing), self.joined(job_id).guessed())

    def concerning(self, job_id: str, faults: Iterable[Fault]) -> tuple[Fault, ...]:
        """The faults among `faults` that may concern the job. Left out are faults of a GPU that none of its ranks uses, but
        only where the GPUs of all ranks are known.
        """
        joined = self.joined(job_id)
        sure = bool(joined.ranks) and not joined.unknown
        also = {uuid for rank in joined.ranks for uuid in rank.also}
        return tuple(
            one
            for one in faults
            if one.rank is not None or not sure or one.uuid in also or not (one.uuid or one.bus_id)
        )

    def keep_only(self, job_ids: set[str]) -> None:
        """Forget which GPUs are used by jobs other than those with these ids, and the faults of these GPUs."""
        self._joined = {one: kept for one, kept in self._joined.items() if one in job_ids}
        self._faults = {one: kept for one, kept in self._faults.items() if one in job_ids}

    def accept(self) -> int | None:
        """Take the GPUs that are present now as all that this node should have, and store that. Returns their number; None
        where it is not known now, or is 0.
        """
        if self._expected is None or self.full is None or not self.full.gpus:
            return None
        self._expected.accept(self.full)
        self._memory.remember(EXPECTED, msgspec.json.encode(self._expected))
        here = len(self.full.gpus)
        self.count = GpuCount(present=here, expected=here)
        log.warning("GPUs: the %d that are there now are all that there should be", here)
        return here

    # --- inside ------------------------------------------------------------------------------------

    def _ranks(self, job_id: str) -> dict[str, tuple[int, ...]]:
        joined = self.joined(job_id)
        return {rank.uuid: joined.on_gpu(rank.uuid) for rank in joined.ranks}

    def _compare(self, now: NodeGpus, limits: Thresholds) -> None:
        before = {one.uuid: one for one in self._before.gpus} if self._before else {}
        seconds = now.at - self._before.at if self._before else 0.0
        health: list[ComponentHealth] = []
        for gpu in now.gpus:
            once_up = self._expected.links_once_up(gpu.uuid) if self._expected else ()
            health += gpu_health(gpu, before.get(gpu.uuid), seconds, limits, once_up)
            count = ecc_count(gpu, "uncorrected", "total", "volatile")
            new = self._errors.setdefault(gpu.uuid, ErrorCount()).see(count, now.at)
            self._note_memory(gpu, new)
        self.health = tuple(health)
        here = {one.uuid for one in now.gpus} | {one.uuid for one in now.lost}
        self._errors = {uuid: one for uuid, one in self._errors.items() if uuid in here}

    def _note_memory(self, gpu: GpuReading, new: tuple[NewErrors, ...]) -> None:
        """What only the read before told is told again by this one, or was wrong."""
        for job_id in self._joined:
            faults = self._faults.get(job_id, [])
            faults = [fault for fault in faults if fault.confirmed or fault.uuid != gpu.uuid]
            faults += faults_of_memory(gpu, new, self._ranks(job_id), self._node)
            self._faults[job_id] = faults[-MAX_FAULTS:]

    def _count(self, news: GpuNews, configured: int | None) -> None:
        if self._expected is None:
            if not self._memory.opened:
                return
            self._expected = _expected(self._memory.memo(EXPECTED))
        if news.full is None:
            return
        self.count = self._expected.look(news.full, view=news.view, configured=configured)
        for line in self.count.news:
            log.warning("GPUs: %s", line)
        self._memory.remember(EXPECTED, msgspec.json.encode(self._expected))


def _expected(stored: bytes) -> ExpectedGpus:
    """What another version stored is no reason to fail."""
    try:
        return msgspec.json.decode(stored, type=ExpectedGpus) if stored else ExpectedGpus()
    except msgspec.MsgspecError:
        return ExpectedGpus()
