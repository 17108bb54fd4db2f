"""Who slows a run down whose hosts do nothing but wait for their GPUs: the rank on whose GPU alone another program has begun to compute.

Which GPU is the slow one, such hosts do not show: each waits from one step to the next. So a rank is named only where

- a step takes longer than it used to in this run,
- another program computes on its GPU, and the driver shows that none does on the GPU of any other rank, and
- that program was first found at work within `NEAR` of the time when the steps became slower, by a reading before which it did not work there.

How fast each GPU is has nobody measured, so this is likely and no more. Pure.
"""

from collections.abc import Sequence

import msgspec

from mldebug.goodput.causes import GPU_NEIGHBOUR, OtherRanks
from mldebug.goodput.rank_shares import RankShares
from mldebug.goodput.speed_trend import SlowerSteps
from mldebug.goodput.straggler import (
    FEW,
    MOST,
    ON_GPUS,
    STRETCHES,
    Excess,
    SampledStretch,
    Slowness,
    slow_rank,
)

NEAR = 60.0  # seconds: full readings of the GPUs are half as far apart, and a step may take as long
ON_GPU = "gpu"  # kind of `Excess`


def with_gpu_neighbour(found: Slowness, slower: SlowerSteps, world_size: int) -> Slowness:
    """The comparison of all ranks (`found`), in which nobody stands apart, with the ranks that share their GPUs, as said above.

    `slower`: `since` is unix time here.
    """
    shares = found.shares
    if found.ranks or found.stretches < STRETCHES or not 2 <= len(shares) >= world_size:
        return found
    if not _wait_for_gpus(shares):
        return found
    beside = [one for one in shares if one.evidence.gpu_neighbour]
    others = OtherRanks([one.evidence for one in shares if not one.evidence.gpu_neighbour])
    if not 0 < len(beside) <= max(1, len(shares) // FEW):
        return found
    loss = 1 - 1 / slower.times
    ranks = tuple(slow_rank(one, Excess(kind=ON_GPU, own=one.on_gpu), others, loss) for one in beside)  # fmt: skip
    began = all(abs(one.evidence.gpu_neighbour_since - slower.since) <= NEAR for one in beside)
    if not began or any(one.cause != GPU_NEIGHBOUR for one in ranks):
        return found
    return msgspec.structs.replace(
        found, ranks=ranks, loss=loss, slower=slower.times, since=slower.since, why_nobody=""
    )


def needs_readings(row: Sequence[SampledStretch]) -> bool:
    """Whether a run whose steps have become slower is sampled once more, because its hosts tell nothing, and the GPUs have hardly been read
    since: a program that has begun to compute is not yet found in most of these stretches.
    """
    if len(row) >= MOST or not _wait_for_gpus(row[-1].ranks):
        return False
    newest = {one.rank for one in row[-1].ranks if one.evidence.gpu_neighbour}
    known = sum(bool(one.evidence.gpu_neighbour) for each in row for one in each.ranks)
    return len(row) < STRETCHES or (bool(newest) and 2 * known <= len(row) * len(newest))


def _wait_for_gpus(shares: Sequence[RankShares]) -> bool:
    return min((one.on_gpu for one in shares), default=0.0) >= ON_GPUS
