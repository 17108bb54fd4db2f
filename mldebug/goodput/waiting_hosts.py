"""Who slows a run down whose hosts do nothing but wait for their GPUs.

Which GPU is the slow one, such hosts do not show: each waits from one step to the next. So a rank is told only where a step takes longer than it
used to in this run, and within `NEAR` of the time when that began something else began on the GPU of this rank alone:

- another program was first found computing there, by a reading before which it did not, and the driver shows that none computes on the GPU of
  any other rank: this rank is slow;
- its own process took a tenth more memory, and has that much more than every other rank: its *work* has become larger, and none is to blame.

How fast each GPU is has nobody measured, so both are likely and no more. Pure.
"""

from collections.abc import Callable, Sequence

import msgspec

from mldebug.goodput.causes import GPU_NEIGHBOUR, LARGER, UNEVEN, OtherRanks
from mldebug.goodput.comparison.rank_differences import FEW
from mldebug.goodput.evidence import RankEvidence, RankShares
from mldebug.goodput.speed_trend import SlowerSteps
from mldebug.goodput.straggler import (
    MOST,
    ON_GPUS,
    STRETCHES,
    Excess,
    SampledStretch,
    Slowness,
    SlowRank,
    slow_rank,
)

NEAR = 60.0  # seconds: full readings of the GPUs are half as far apart, and a step may take as long
ON_GPU = "gpu"  # kind of `Excess`


def with_gpu_cause(found: Slowness, slower: SlowerSteps, world_size: int) -> Slowness:
    """Name in a comparison of all ranks (`found`) that has found no slow one those on whose GPU something began when the run's steps
    became slower: another program, or more memory of the rank's own. Returns it unchanged where there are none.

    `slower.since`: unix time.
    """
    shares = found.shares
    if found.ranks or found.stretches < STRETCHES or not 2 <= len(shares) >= world_size:
        return found
    if not wait_for_gpus(shares):
        return found
    most = max((one.evidence.gpu_memory or 0 for one in shares), default=0)
    beside = _struck(shares, slower, GPU_NEIGHBOUR, lambda one: bool(one.gpu_neighbour), lambda one: one.gpu_neighbour_since)  # fmt: skip
    ranks = beside or _struck(shares, slower, UNEVEN, lambda one: LARGER * (one.gpu_memory or 0) > most, lambda one: one.gpu_memory_since)  # fmt: skip
    if not ranks:
        return found
    return msgspec.structs.replace(
        found,
        ranks=ranks,
        loss=1 - 1 / slower.times,
        slower=slower.times,
        since=slower.since,
        why_nobody="",
    )


def _struck(
    shares: Sequence[RankShares],
    slower: SlowerSteps,
    cause: str,
    is_it: Callable[[RankEvidence], bool],
    since: Callable[[RankEvidence], float],
) -> tuple[SlowRank, ...]:
    """The few ranks for which `is_it` holds; none where `cause` is not found for each of them, or it did not begin (`since`, unix time) as the steps
    became slower.
    """
    struck = [one for one in shares if is_it(one.evidence)]
    others = OtherRanks([one.evidence for one in shares if not is_it(one.evidence)])
    if not 0 < len(struck) <= max(1, len(shares) // FEW):
        return ()
    loss = 1 - 1 / slower.times
    ranks = tuple(slow_rank(one, Excess(kind=ON_GPU, own=one.on_gpu), others, loss) for one in struck)  # fmt: skip
    began = all(abs(since(one.evidence) - slower.since) <= NEAR for one in struck)
    return ranks if began and all(one.cause == cause for one in ranks) else ()


def needs_readings(row: Sequence[SampledStretch]) -> bool:
    """Whether to sample a run whose steps have become slower once more.

    That is so where its hosts only wait for their GPUs and the GPUs have hardly been read since the change, so that a program that has
    begun to compute there is not yet found in most periods of `row`.
    """
    if len(row) >= MOST or not wait_for_gpus(row[-1].ranks):
        return False
    newest = {one.rank for one in row[-1].ranks if one.evidence.gpu_neighbour}
    known = sum(bool(one.evidence.gpu_neighbour) for each in row for one in each.ranks)
    return len(row) < STRETCHES or (bool(newest) and 2 * known <= len(row) * len(newest))


def wait_for_gpus(shares: Sequence[RankShares]) -> bool:
    """Whether all hosts wait for their GPUs at least half of the time, so that their stacks do not tell which is slow."""
    return min((one.on_gpu for one in shares), default=0.0) >= ON_GPUS
