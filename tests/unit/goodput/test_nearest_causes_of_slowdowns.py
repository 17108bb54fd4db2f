"""The verdict `straggler` by samples that show one slow rank, and not by those of the nearest other cause.

The other verdicts have their tables in tests/unit/diagnosis/test_nearest_causes.py.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import pytest

from mldebug.core.model import Diagnosis, Job, RankIdentity, Verdict
from mldebug.goodput.evidence import RankEvidence, RankShares
from mldebug.goodput.slowdown import judge_slowdown
from mldebug.goodput.straggler import SampledStretch, find_slow_ranks
from shared.goodput.simulated import noisy, slower, stretch

RANKS, SLOW = 8, 5
JOB = Job(
    id="j", name="train.py", launcher="torchrun", world_size=RANKS,
    ranks=tuple(RankIdentity(rank=n, world_size=RANKS, pid=100 + n, node="n1") for n in range(RANKS)),
)  # fmt: skip
SLOW_MOUNT = RankEvidence(file_waiting=0.6, mount="/data (nfs4)", mount_device="0:52", mount_slow="reads of /data (nfs01:/data) take 48 ms instead of 3 ms since 14:02 UTC")  # fmt: skip


def sampled(which: tuple[int, ...], factor: float = 1.5) -> list[SampledStretch]:
    """Six stretches of eight ranks, of which `which` take so much longer for their steps."""
    return [stretch(n, RANKS, slower(noisy(0.3), which, factor)) for n in range(6)]


def with_shares(row: list[SampledStretch], change: Callable[[RankShares], RankShares]) -> list[SampledStretch]:  # fmt: skip
    return [msgspec.structs.replace(one, ranks=tuple(map(change, one.ranks))) for one in row]


def of_slow(**facts: Any) -> Callable[[RankShares], RankShares]:
    """Adds these shares to the slow rank."""
    return lambda one: msgspec.structs.replace(one, **facts) if one.rank == SLOW else one


def uneven(one: RankShares) -> RankShares:
    """The slow rank has twice the memory of the others on its GPU."""
    return msgspec.structs.replace(one, evidence=RankEvidence(gpu_memory=(40 if one.rank == SLOW else 20) << 30))  # fmt: skip


class Other(NamedTuple):
    """Samples, and the verdict that is theirs."""

    row: list[SampledStretch]
    verdict: Verdict


PIPELINE = [
    SampledStretch(at=float(n), seconds=5.0, ranks=tuple(
        RankShares(rank=rank, samples=100, waiting=0.1 if rank == SLOW else 0.5, exchanging=0.09 if rank == SLOW else 0.45)
        for rank in range(RANKS)
    ))
    for n in range(6)
]  # fmt: skip
ONE_LONG_STEP = [
    SampledStretch(at=float(n), seconds=5.0, ranks=tuple(
        RankShares(rank=rank, samples=100, waiting=0.0 if rank == SLOW else 1.0) for rank in range(RANKS)
    ))
    for n in range(6)
]  # fmt: skip
OWN = {
    "it takes longer for all of it": sampled((SLOW,)),
    "it waits for its DataLoader": with_shares(sampled((SLOW,)), of_slow(loading=0.3)),
    "it gets no CPU": with_shares(sampled((SLOW,)), of_slow(delayed=0.3)),
}
OTHERS = {
    "all are alike": Other(sampled(()), Verdict.UNKNOWN),
    "all are slow alike": Other(sampled(tuple(range(RANKS))), Verdict.UNKNOWN),
    "half of them are": Other(sampled((4, 5, 6, 7)), Verdict.UNKNOWN),
    "in one stretch alone": Other([*sampled(())[:5], sampled((SLOW,))[5]], Verdict.UNKNOWN),
    "too few stretches": Other(sampled((SLOW,))[:2], Verdict.UNKNOWN),
    "it has more work": Other(with_shares(sampled((SLOW,)), uneven), Verdict.UNKNOWN),
    "stages of a pipeline": Other(PIPELINE, Verdict.UNKNOWN),
    "one long step, a checkpoint of one rank": Other(ONE_LONG_STEP, Verdict.UNKNOWN),
    "it waits for a mount that became slow": Other(with_shares(sampled((SLOW,)), of_slow(loading=0.6, evidence=SLOW_MOUNT)), Verdict.STORAGE_FAULT),
}  # fmt: skip


def judged(row: list[SampledStretch]) -> Diagnosis:
    return judge_slowdown(JOB, find_slow_ranks(row)).diagnosis


@pytest.mark.parametrize("name", OWN)
def test_its_own_evidence_gives_it(name: str) -> None:
    found = judged(OWN[name])
    assert (found.verdict, [one.rank for one in found.culprits]) == (Verdict.STRAGGLER, [SLOW]), found.summary  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_the_nearest_other_cause_does_not(name: str) -> None:
    found = judged(OTHERS[name].row)
    assert found.verdict is OTHERS[name].verdict, found.summary
    assert not [one for one in found.culprits if one.kind == "rank" and one.rank != SLOW]
    assert found.culprits == () or found.verdict is Verdict.STORAGE_FAULT
