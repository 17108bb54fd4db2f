"""Recorded reads of the GPUs as news, with the ranks that worked on them."""

from collections.abc import Mapping

from mldebug.hardware.gpu.counters import Counters
from mldebug.hardware.gpu.rank_join import JoinEvidence, RankGpu, RankGpuMap
from mldebug.hardware.gpu.readings import GpuReading, LostGpu, NodeGpus, NodeWatch
from mldebug.status.snapshot import RunState
from mldebug_agents.hardware.gpu.reads import GpuNews

RECORDED = "as recorded"


class RecordedReads:
    """In place of `hardware.reads.GpuReads`. `counted`: the counters were made monotone before they were recorded.

    `view`: what narrowed the recorded agent's own sight of the GPUs; another one would make it learn the GPUs anew.
    """

    def __init__(self, *, counted: bool, view: str = "") -> None:
        self._view = view
        self._counters = None if counted else Counters()

    def watch(self, told: NodeWatch) -> GpuNews:
        """A watch read."""
        return GpuNews(watch=told)

    def full(self, told: NodeGpus, runs: Mapping[str, RunState]) -> GpuNews:
        """A full read, and who worked where as the status tells it."""
        full = self._counters.take(told) if self._counters else told
        joined = {id: _joined(run, full) for id, run in runs.items()}
        return GpuNews(full=full, joined=joined, view=self._view)


def _joined(run: RunState, full: NodeGpus) -> RankGpuMap:
    seen: tuple[GpuReading | LostGpu, ...] = (*full.lost, *full.gpus)
    here, guess = {one.uuid: one for one in seen}, JoinEvidence.ENVIRONMENT
    ranks = tuple(
        RankGpu(
            rank=rank,
            uuid=uuid,
            index=here[uuid].index,
            bus_id=here[uuid].bus_id,
            evidence=guess if rank in run.gpus_guessed else JoinEvidence.COMPUTE_PROCESS,
            words=RECORDED,
        )
        for rank, uuid in sorted(run.gpus.items())
        if uuid in here
    )
    known = {one.rank for one in ranks}
    return RankGpuMap(
        ranks=ranks, unknown={rank: RECORDED for rank in run.ranks if rank not in known}
    )
