"""A run's rhythm and the timeout that follows from it."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mldebug.stall.timeouts import GapMemory, ProgressGaps

EVIDENCE = 450.0


def learned(*gaps: float, memory: GapMemory | None = None) -> ProgressGaps:
    found = ProgressGaps(memory)
    for gap in gaps:
        found.add(gap)
    return found


@pytest.mark.parametrize(
    ("gaps", "seconds"),
    [
        ([], 240),
        ([1.0] * 4, 45),
        ([1.0] * 5, 30),
        ([1.0] * 6, 30),
        ([20.0] * 3, 75),
        ([90.0] * 3, 135),
        ([200.0, 200.0, 5.0], 45),
        ([1.0] * 2 + [5.0, 5.0, 10.0], 50),
        ([1.0] * 2 + [5.0, 15.0, 5.0, 5.0], 30),
        ([1.0] * 2 + [5.0, 15.0, 15.0, 5.0, 5.0], 30),
        ([1.0] * 2 + [5.0, 12.0, 15.0, 5.0, 5.0], 75),
        ([1.0] * 3 + [1.0, 9.0, 4.0], 45),
        ([1.0] * 3 + [1.0, 4.0] * 4, 45),
        ([1.0] * 3 + [1.0, 4.0] * 5, 30),
        ([10.0] * 50, 50),
        ([47.0] * 50, 235),
        ([60.0] * 50, 240),
        ([100.0] * 50, 240),
        ([160.0] * 50, 240),
        ([300.0] * 50, 450),
        ([300.0] * 3, 450),
        ([900.0] * 20, 1350),
    ],
)
def test_five_times_the_99th_percentile_between_30_and_240(
    gaps: list[float], seconds: float
) -> None:
    assert learned(*gaps).timeout(EVIDENCE).seconds == pytest.approx(seconds)


def test_one_outlier_in_two_hundred_is_no_rhythm_but_is_survived() -> None:
    gaps = learned(*[2.0] * 100, 40.0, *[2.0] * 99)

    assert gaps.timeout(EVIDENCE).seconds == pytest.approx(60, rel=0.03)
    assert gaps.timeout(EVIDENCE).why == "the run has survived a gap of 39.2 s"


def test_a_rare_long_gap_never_waits_until_the_evidence_is_dead() -> None:
    gaps = learned(*[2.0] * 100, 1200.0, *[2.0] * 99)

    assert gaps.timeout(EVIDENCE).seconds == EVIDENCE


def test_a_long_gap_fades() -> None:
    gaps = learned(*[2.0] * 10, 200.0, *[2.0] * 20_000)

    assert gaps.timeout(EVIDENCE).seconds == 30


@pytest.mark.parametrize("compiles", [7.5, 60.0, 200.0])
def test_the_first_gaps_of_an_attempt_are_no_rhythm(compiles: float) -> None:
    gaps = learned(compiles, 20.0, *[0.04] * 4)
    assert gaps.timeout(EVIDENCE).seconds == 30
    gaps.begin_attempt()
    gaps.add(compiles)
    assert gaps.timeout(EVIDENCE).seconds == 30


def test_until_there_is_a_rhythm_they_are_all_that_is_known() -> None:
    gaps = learned(300.0, 310.0)
    assert gaps.timeout(EVIDENCE).seconds == pytest.approx(457.5)
    assert gaps.usual == 305.0


@pytest.mark.parametrize(
    ("start", "seconds"), [(1.0, 45), (20.0, 75), (60.0, 75), (100.0, 120), (300.0, 240)]
)
def test_before_the_first_gap_no_step_took_longer_than_the_first(start: float, seconds: float) -> None:  # fmt: skip
    gaps = ProgressGaps()
    gaps.begin(start)
    assert gaps.timeout(EVIDENCE).seconds == seconds
    gaps.begin_attempt()
    assert gaps.timeout(EVIDENCE).seconds == 240


def test_one_look_at_a_quick_job_ends_its_start() -> None:
    gaps = ProgressGaps()
    gaps.add(5.0, steps=125)
    assert gaps.memory.gaps == []
    gaps.add(0.04, steps=125)
    assert gaps.memory.gaps == [0.04, 0.04]


@pytest.mark.parametrize(("outlier", "seconds"), [(15.0, 30), (60.0, 90), (300.0, 450)])
def test_one_outlier_among_few_is_survived_and_no_rhythm(outlier: float, seconds: float) -> None:
    gaps = learned(*[1.0] * 12, outlier, *[1.0] * 5)
    assert gaps.timeout(EVIDENCE).seconds == pytest.approx(seconds, rel=0.01)


def test_irregular_steps() -> None:
    gaps = learned(*[0.05 + 2.95 * (n * 7 % 11) / 10 for n in range(300)])

    assert gaps.timeout(EVIDENCE).seconds == 30


def test_a_ramp_is_followed() -> None:
    """Each new gap is shorter than the timeout before it, all the way from 1 s to 150 s."""
    gaps = learned(*[1.0] * 50)
    for step in range(1500):
        gap = 1.0 + step * 0.1
        assert gap < gaps.timeout(EVIDENCE).seconds
        gaps.add(gap)


def test_false_alarms_widen_at_most_twofold() -> None:
    gaps = learned(*[1.0] * 50)
    gaps.false_alarm(pause=33, timeout=30)
    assert gaps.timeout(EVIDENCE).seconds == pytest.approx(30 * 1.25 * 1.1)

    gaps.false_alarm(pause=500, timeout=40)
    assert gaps.timeout(EVIDENCE).seconds == 60
    assert gaps.timeout(EVIDENCE).why.endswith("x 2 after false alarm")


def test_the_slowest_usual_gaps_tell_how_far_the_rhythm_reaches() -> None:
    gaps = learned(*[2.0] * 150, *[400.0] * 10)

    assert gaps.reach(420)
    assert not gaps.reach(450)
    assert not learned().reach(0.1)


def test_a_pause_below_the_timeout_never_narrows() -> None:
    gaps = learned(*[1.0] * 50)
    gaps.false_alarm(pause=1, timeout=30)

    assert gaps.timeout(EVIDENCE).seconds == 30


@pytest.mark.parametrize("nonsense", [0.0, -1.0, float("nan"), float("inf")])
def test_nonsense_teaches_nothing(nonsense: float) -> None:
    assert learned(nonsense).memory == GapMemory()


def test_memory_survives() -> None:
    gaps = learned(*[10.0] * 50)
    stored = msgspec.json.decode(msgspec.json.encode(gaps.memory), type=GapMemory)

    assert ProgressGaps(stored).timeout(EVIDENCE) == gaps.timeout(EVIDENCE)


@given(st.lists(st.floats(0.001, 10_000), max_size=260))
def test_bounds_hold_for_any_rhythm(pauses: list[float]) -> None:
    seconds = learned(*pauses).timeout(EVIDENCE).seconds

    assert seconds >= 30
    assert seconds <= max(EVIDENCE, 1.5 * max(pauses, default=0))
