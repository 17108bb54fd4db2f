"""The hang fingerprint of each run: what its GPUs do at each look, compared with what they did while it trained.

What was learned survives a restart of the agent. Belongs to the main loop's thread.
"""

from collections.abc import Collection, Iterator, Mapping

import msgspec

from mldebug.core.model import Role
from mldebug.hardware.gpu.fingerprint import ALL_SMS, Fingerprint, RunBaselines
from mldebug.hardware.gpu.rank_join import RankGpuMap
from mldebug.hardware.gpu.readings import GpuActivity, NodeGpus, NodeWatch
from mldebug.hardware.gpu.samples import GpuSign, RankSign, moves, sign_of
from mldebug.hardware.gpu.sentences import sentence
from mldebug.stall.checkpoint_writes import WriteRate
from mldebug.stall.signals import RankLook
from mldebug_agents.state.key_value_store import KeyValueStore
from mldebug_agents.watch.job_watch import JobLook

RESTS_FOR = 12.0  # seconds between a quick and a full reading up to which the counters of the full one count: two of them while a stall is suspected
MEMO = "gpus/"  # and the job's id: the name of what is remembered of a run


class _Before(msgspec.Struct):
    """What the next look at a run is compared with."""

    looked: bool = False
    step: int | None = None
    writes: dict[int, WriteRate] = {}  # by rank


class Levels:
    """Keeps, for each run, what its GPUs usually do and the newest fingerprint: how what they do now compares with that."""

    def __init__(self, memory: KeyValueStore) -> None:
        self._memory = memory
        self._runs: dict[str, RunBaselines] = {}
        self._prints: dict[str, Fingerprint] = {}
        self._before: dict[str, _Before] = {}

    def complete(
        self, look: JobLook, watch: NodeWatch, joined: RankGpuMap, full: NodeGpus | None = None
    ) -> JobLook:
        """The look at a job, with the progress that the GPU of each rank shows added. `watch`: the newest quick GPU
        reading; one that is not newer than the last is not counted again. `full`: the newest full one, whose hardware
        counters count where they show that a GPU moved nothing. Without known GPUs the look is returned unchanged.
        """
        fingerprint = self._fingerprint(look, watch, joined, full)
        if fingerprint is None:
            return look
        ranks = tuple(_with_progress(rank, fingerprint) for rank in look.look.ranks)
        return msgspec.structs.replace(look, look=msgspec.structs.replace(look.look, ranks=ranks))

    def sentence(self, job_id: str) -> str:
        """What the GPUs of a run did at the last look, in one sentence; "" where nothing is known."""
        fingerprint = self._prints.get(job_id)
        return sentence(fingerprint) if fingerprint else ""

    def states(self, job_id: str) -> Fingerprint | None:
        """The fingerprint of a run at the last look; None where nothing is known."""
        return self._prints.get(job_id)

    def store(self) -> None:
        """Hand what was learned of the GPUs of all runs to the state store, so that it survives a restart of the agent."""
        for job_id, levels in self._runs.items():
            self._memory.remember(MEMO + job_id, msgspec.json.encode(levels))

    def keep_only(self, job_ids: Collection[str]) -> None:
        """Forget what was learned of all runs but these, in memory and in the state store."""
        self._runs = {one: levels for one, levels in self._runs.items() if one in job_ids}
        self._prints = {one: kept for one, kept in self._prints.items() if one in job_ids}
        self._before = {one: kept for one, kept in self._before.items() if one in job_ids}
        for name in self._memory.memos(MEMO):
            if name.removeprefix(MEMO) not in job_ids:
                self._memory.remember(name, b"")

    # --- inside ------------------------------------------------------------------------------------

    def _fingerprint(
        self, look: JobLook, watch: NodeWatch, joined: RankGpuMap, full: NodeGpus | None
    ) -> Fingerprint | None:
        before = self._prints.get(look.job.id)
        if before is not None and before.at >= watch.at:
            return before  # nothing new was read since
        ranks = _rank_signs(look, self._before.setdefault(look.job.id, _Before()))
        signs = tuple(_signs(ranks, watch, joined, _at_rest(full, watch.at)))
        if not signs:
            self._prints.pop(look.job.id, None)
            return None
        levels = self._levels(look.job.id)
        fingerprint = self._prints[look.job.id] = levels.look(watch.at, signs, look.job.world_size)
        return fingerprint

    def _levels(self, job_id: str) -> RunBaselines:
        if job_id not in self._runs:
            stored = self._memory.memo(MEMO + job_id)
            self._runs[job_id] = _decoded(stored) if stored else RunBaselines()
        return self._runs[job_id]


def _decoded(stored: bytes) -> RunBaselines:
    """What another version stored is no reason to fail."""
    try:
        return msgspec.json.decode(stored, type=RunBaselines)
    except msgspec.MsgspecError:
        return RunBaselines()


def _rank_signs(look: JobLook, before: _Before) -> dict[int, RankSign]:
    """What is known of each rank beside its GPU. Steps are the job's: where it makes one, all its ranks do."""
    stepping = None
    if before.looked and look.step is not None:
        stepping = look.step != before.step
    before.looked, before.step = True, look.step
    return {
        rank.rank: RankSign(
            rank=rank.rank,
            stepping=stepping,
            written_bytes_per_second=_rate(rank, look.look.at, before.writes),
            waiting=None if rank.role is None else rank.role is Role.WAITING,
        )
        for rank in look.look.ranks
    }


def _rate(rank: RankLook, now: float, rates: dict[int, WriteRate]) -> float | None:
    return rates.setdefault(rank.rank, WriteRate()).take(now, rank.written_bytes)


def _at_rest(full: NodeGpus | None, now: float) -> dict[str, GpuActivity]:
    """By uuid, the counters of GPUs that moved nothing in the whole time between the last two full readings.

    Those of a GPU that moved something tell of a time before this look, when the job may still have worked. A kernel on all
    multiprocessors is none of a collective, and may compute within the registers and caches: nothing is said of it, nor where
    they are not counted.
    """
    if full is None or abs(now - full.at) > RESTS_FOR:  # it is often the newer one of the two
        return {}
    return {
        gpu.uuid: gpu.activity
        for gpu in full.gpus
        if gpu.activity is not None
        and moves(gpu.activity) is False
        and gpu.activity.sm_active_ratio is not None
        and gpu.activity.sm_active_ratio < ALL_SMS
    }


def _signs(
    ranks: Mapping[int, RankSign],
    watch: NodeWatch,
    joined: RankGpuMap,
    resting: Mapping[str, GpuActivity],
) -> Iterator[GpuSign]:
    """One sign for each GPU that a rank of the run uses: of several ranks the first."""
    gpus = {one.uuid: one for one in watch.gpus}
    for rank in joined.ranks:
        gpu = gpus.pop(rank.uuid, None)
        if gpu is not None:
            beside = ranks.get(rank.rank) or RankSign(rank=rank.rank)
            shared = gpu.uuid in joined.shared
            yield sign_of(gpu, rank=beside, activity=resting.get(gpu.uuid), shared=shared)


def _with_progress(rank: RankLook, fingerprint: Fingerprint) -> RankLook:
    gpu = fingerprint.of_rank(rank.rank)
    return rank if gpu is None else msgspec.structs.replace(rank, device_progress=gpu.progress)
