"""A rank on whose GPU another program begins to compute, as the steps of a run become slower: named, and everybody else is not. One whose own
process takes more memory there at that time has more work, and nobody is named.

The shares are those of two H200s with a program of matrix products on the second, or twice the rows in the second's batch: both hosts waited for
their GPUs 97 to 100 % of the time.
"""

from collections.abc import Callable, Sequence

import msgspec
import pytest

from mldebug.core.model import Confidence, Job, RankIdentity, Verdict
from mldebug.goodput.evidence import RankEvidence, RankShares
from mldebug.goodput.sample_rows import SampleRows
from mldebug.goodput.shared_samples import SharedFinding, believed_finding
from mldebug.goodput.slowdown import judge_slowdown
from mldebug.goodput.speed_trend import LEAST, RECENT, SlowerSteps, SpeedTrend
from mldebug.goodput.straggler import MOST, SampledStretch, Slowness

BEGAN = 10_000.0  # unix time when the steps became slower
SLOWER = SlowerSteps(BEGAN, 2.1)
OTHER = "python3 (pid 900)"
WAITS = (0.97, 0.99, 1.0, 0.98)
ALONE = RankEvidence(gpu_neighbour="")
BESIDE = RankEvidence(gpu_neighbour=OTHER, gpu_neighbour_since=BEGAN + 20)
USUAL = RankEvidence(gpu_neighbour="", gpu_memory=14_856_224_768, gpu_clock=1.80e9)
GROWN = RankEvidence(
    gpu_neighbour="",
    gpu_memory=21_030_240_256,
    gpu_memory_since=BEGAN + 20,
    gpu_clock=1.47e9,
    gpu_limits=("sw_power_cap",),
)


def stretch(at: int, evidence: Sequence[RankEvidence], on_gpu: float = 1.0) -> SampledStretch:
    """One of the stretches after the strike, `at`: the first, second, third; `on_gpu`: the part of the waiting."""
    ranks = tuple(
        RankShares(rank=n, samples=100, waiting=wait, on_gpu=on_gpu * wait, evidence=one)
        for n, (wait, one) in enumerate(zip(WAITS[: len(evidence)], evidence, strict=True))
    )
    when = BEGAN + 30 + 6 * at
    return SampledStretch(at=when, seconds=5.0, ranks=ranks, world_size=len(evidence))


def judged(
    evidence: Sequence[RankEvidence] | Callable[[int], Sequence[RankEvidence]],
    slower: SlowerSteps | None = SLOWER,
    on_gpu: float = 1.0,
) -> Slowness:
    """What two rows of stretches show. `evidence`: of each rank, in all stretches or by their number."""
    rows = SampleRows()
    for at in range(2 * MOST):
        each = evidence(at) if callable(evidence) else evidence
        found = rows.add(stretch(at, each, on_gpu), known=False, slower=slower)
        if found is not None:
            return found
    raise AssertionError("two rows are never complete")


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_rank_whose_gpu_another_program_uses_is_named_with_the_cause(ranks: int) -> None:
    found = judged([BESIDE if n == 1 else ALONE for n in range(ranks)])
    (one,) = found.ranks
    assert (one.rank, one.cause, one.excess.kind) == (1, "gpu_neighbour", "gpu")
    assert (found.since, found.slower) == (BEGAN, 2.1)
    assert found.loss == pytest.approx(1 - 1 / 2.1)
    identities = tuple(
        RankIdentity(rank=n, world_size=ranks, pid=100 + n, node="a1") for n in range(ranks)
    )
    job = Job(id="j", name="train.py", launcher="torchrun", world_size=ranks, ranks=identities)
    diagnosis = judge_slowdown(job, found).diagnosis
    assert (diagnosis.verdict, diagnosis.confidence) == (Verdict.STRAGGLER, Confidence.MEDIUM)
    assert [one.rank for one in diagnosis.culprits] == [1]
    assert diagnosis.summary.startswith("Rank 1 slows the run down: a step takes 2.1 times as long as it used to, ")  # fmt: skip
    assert diagnosis.summary.endswith(f"; it shares its GPU with {OTHER}, which computes there")
    assert not any("waited least" in line for line in diagnosis.evidence)
    assert "nvidia-smi" in diagnosis.next_steps[0]
    assert believed_finding(SharedFinding(row="1", found=found)) is not None


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_with_more_work_is_told_and_nobody_blamed(ranks: int) -> None:
    found = judged([GROWN if n == 1 else USUAL for n in range(ranks)])
    assert [(one.rank, one.cause) for one in found.ranks] == [(1, "uneven")]
    identities = tuple(RankIdentity(rank=n, world_size=ranks, pid=100 + n, node="a1") for n in range(ranks))  # fmt: skip
    job = Job(id="j", name="train.py", launcher="torchrun", world_size=ranks, ranks=identities)
    diagnosis = judge_slowdown(job, found).diagnosis
    assert (diagnosis.verdict, diagnosis.culprits) == (Verdict.UNKNOWN, ())
    assert diagnosis.summary.startswith("The work of the ranks is uneven, and none is to blame: rank 1 slows the run down: a step takes 2.1 times")  # fmt: skip
    assert diagnosis.summary.endswith("; it has more work than the others: 19.6 GiB on its GPU, the others 13.8 GiB")  # fmt: skip
    assert any("since its memory there grew" in line for line in diagnosis.evidence)
    assert believed_finding(SharedFinding(row="1", found=found)) is not None


def grown(**other: float) -> RankEvidence:
    return msgspec.structs.replace(GROWN, **other)


MEMORY_CONTROLS: dict[str, Sequence[RankEvidence]] = {
    "memory that grew on each GPU": [GROWN, GROWN],
    "memory that grew long before": [USUAL, grown(gpu_memory_since=BEGAN - 600)],
    "memory that grew long after": [USUAL, grown(gpu_memory_since=BEGAN + 300)],
    "more memory since ever": [USUAL, grown(gpu_memory_since=0.0)],
    "memory that grew to what others have": [GROWN, grown(gpu_memory=20_500_000_000, gpu_memory_since=BEGAN + 20)],
    "others of which it is not known": [msgspec.structs.replace(USUAL, gpu_memory=None), GROWN],
}  # fmt: skip


@pytest.mark.parametrize("name", MEMORY_CONTROLS)
def test_no_work_is_uneven_for(name: str) -> None:
    assert judged(MEMORY_CONTROLS[name]).ranks == ()


def test_a_program_beside_comes_before_more_work() -> None:
    """Its own memory may grow as it shares its GPU: who is slow then, is not its work."""
    both = msgspec.structs.replace(GROWN, gpu_neighbour=OTHER, gpu_neighbour_since=BEGAN + 20)
    assert [one.cause for one in judged([USUAL, both]).ranks] == ["gpu_neighbour"]


def since(seconds: float) -> RankEvidence:
    return msgspec.structs.replace(BESIDE, gpu_neighbour_since=seconds)


UNKNOWN = RankEvidence()
CONTROLS: dict[str, Sequence[RankEvidence]] = {
    "a program on each GPU": [BESIDE, BESIDE],
    "a program on two of four GPUs": [BESIDE, BESIDE, ALONE, ALONE],
    "nobody beside the ranks": [ALONE, ALONE],
    "GPUs of which nothing is known": [UNKNOWN, UNKNOWN],
    "another rank of which it is not known": [UNKNOWN, BESIDE],
    "a program that was there long before": [ALONE, since(BEGAN - 600)],
    "a program of which nobody knows since when": [ALONE, since(0.0)],
    "a program that came long after": [ALONE, since(BEGAN + 300)],
}


@pytest.mark.parametrize("name", CONTROLS)
def test_nobody_is_named_for(name: str) -> None:
    found = judged(CONTROLS[name])
    assert (found.ranks, found.loss, found.slower) == ((), 0.0, 0.0)
    assert found.why_nobody


def test_a_program_beside_a_run_that_is_no_slower_is_nobody_s_fault() -> None:
    assert judged([ALONE, BESIDE], slower=None).ranks == ()


def test_hosts_that_do_something_else_are_compared_by_what_they_do() -> None:
    assert judged([ALONE, BESIDE], on_gpu=0.3).ranks == ()


def test_a_program_that_is_found_in_the_second_stretch_is_found_in_most() -> None:
    assert [one.rank for one in judged(lambda at: [ALONE, BESIDE if at else ALONE]).ranks] == [1]


def test_a_row_goes_on_while_a_program_has_just_been_found() -> None:
    """The GPUs are read every few seconds while a run is compared; that of the third stretch alone would prove nothing."""
    assert [one.rank for one in judged(lambda at: [ALONE, BESIDE if at >= 2 else ALONE]).ranks] == [1]  # fmt: skip


def test_a_program_that_comes_and_goes_is_not_named() -> None:
    assert judged(lambda at: [ALONE, ALONE if at % 3 else BESIDE]).ranks == ()


def trend(steps: Sequence[float]) -> SpeedTrend:
    """A look every 5 s; `steps`: seconds that each step took until then."""
    result, done = SpeedTrend(), 0.0
    result.add(0, 0.0)
    for look, step in enumerate(steps, 1):
        done += 5000.0 / step
        result.add(int(done), 5.0 * look)
    return result


def test_slower_steps_are_dated_and_remembered_until_they_are_as_fast_again() -> None:
    usual, slow = [1.0] * 30, [2.0] * 4
    assert trend(usual).slower is None
    began = trend([*usual, *slow]).slower
    assert began is not None
    assert (began.since, began.times) == (150.0, pytest.approx(2.0, rel=0.01))
    long = trend([*usual, *[2.0] * 300])
    assert not long.is_slower, "it has become usual"
    assert long.slower is not None
    assert long.slower.since == 150.0
    assert trend([*usual, *slow, *[1.0] * RECENT]).slower is None
    assert trend([1.0] * (LEAST - 1) + slow).slower is None, "too little is known of what is usual"
