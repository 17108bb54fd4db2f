"""When something is full: slopes, saves that repeat, thresholds."""

import random

import pytest

from mldebug.storage.filesystems.forecast import Forecast, Point, forecast
from mldebug.storage.filesystems.fullness import fullness, fullness_alerts
from mldebug.storage.filesystems.limits import (
    UsageLimit,
    default_limit,
    nearest_rule,
    parse_limit,
    usable,
)

GIB = 1 << 30
MINUTE = 60.0


def sawtooth(
    saves: int, period: float, size: float, kept: float, takes: float = 120.0
) -> list[Point]:
    """Looks every 30 s: a save grows for `takes` seconds; when it is whole an old one goes, so that `kept` stays."""
    points = []
    for look in range(int(saves * period / 30)):
        at = look * 30.0
        number, phase = divmod(at, period)
        written = size * min(1.0, max(0.0, phase - 300) / takes)
        gone = size - kept if phase > 300 + takes + 60 else 0.0
        points.append(Point(at, number * kept + written - gone))
    return points


@pytest.mark.parametrize("rate", [1e3, 5e6, 3e9])
def test_even_growth_is_foretold_within_a_fifth(rate: float) -> None:
    noise = random.Random(1)
    points = [Point(t * 30.0, rate * t * 30.0 * noise.uniform(0.98, 1.02)) for t in range(60)]
    prediction = forecast(points, free=rate * 3600)
    assert prediction.seconds_left == pytest.approx(3600, rel=0.2)
    assert prediction.trusted


def test_saves_that_stay_are_counted() -> None:
    prediction = forecast(sawtooth(6, 28 * MINUTE, 412 * GIB, 412 * GIB), free=1000 * GIB)
    assert prediction.saves_left == 3
    assert prediction.checkpoint_bytes == pytest.approx(412 * GIB, rel=0.05)
    assert prediction.period == pytest.approx(28 * MINUTE, rel=0.05)
    assert prediction.seconds_left is not None
    assert 2 * 28 * MINUTE <= prediction.seconds_left <= 3 * 28 * MINUTE


def test_saves_of_which_a_part_stays_are_foretold_within_a_fifth() -> None:
    size, kept, period = 400 * GIB, 100 * GIB, 20 * MINUTE
    points = sawtooth(8, period, size, kept)
    free = 1500 * GIB
    prediction = forecast(points, free)
    fits, at = free, 8 * period
    saves = 0
    while fits >= size:  # what really happens
        fits, saves = fits - kept, saves + 1
    truth = at + saves * period + 420 - points[-1].at
    assert prediction.seconds_left == pytest.approx(truth, rel=0.2)


def test_checkpoints_that_rotate_fill_nothing() -> None:
    prediction = forecast(sawtooth(8, 20 * MINUTE, 400 * GIB, 0.0), free=500 * GIB)
    assert prediction.seconds_left is None
    assert prediction.saves_left is None


def test_what_grows_slowly_beside_checkpoints_that_rotate_is_foretold() -> None:
    """Logs: 3 % of a save with each one, so that the 20th does not fit any more."""
    size, period = 400 * GIB, 20 * MINUTE
    prediction = forecast(sawtooth(9, period, size, 0.03 * size), free=size * (1 + 0.03 * 19.5))
    assert prediction.saves_left == pytest.approx(20, abs=2)
    assert prediction.seconds_left == pytest.approx(20 * period, rel=0.2)


def test_checkpoints_that_rotate_and_differ_a_little_fill_nothing() -> None:
    sizes, period = random.Random(4), 20 * MINUTE
    tops = [400 * GIB * sizes.uniform(0.97, 1.03) for _ in range(9)]
    points = []
    for look in range(int(9 * period / 30)):
        number, phase = divmod(look * 30.0, period)
        written = tops[int(number)] * min(1.0, max(0.0, phase - 300) / 120)
        points.append(Point(look * 30.0, 0.0 if phase > 480 else written))
    assert forecast(points, free=900 * GIB).saves_left is None


def test_half_a_save_on_the_disk_is_no_alarm() -> None:
    points = sawtooth(8, 20 * MINUTE, 400 * GIB, 0.0)
    points += [Point(points[-1].at + 30.0 * n, 60 * GIB * n) for n in range(1, 6)]
    assert forecast(points, free=200 * GIB).saves_left is None


def test_a_rotating_save_that_does_not_fit_any_more_is_foretold() -> None:
    assert forecast(sawtooth(8, 20 * MINUTE, 400 * GIB, 0.0), free=300 * GIB).saves_left == 1


def test_a_burst_does_not_bend_the_slope() -> None:
    points = [Point(t * 30.0, 0.0 if t != 50 else 9e12) for t in range(100)]
    assert forecast(points, free=1e12).seconds_left is None


def test_little_is_not_enough_and_nothing_is_foretold_far_ahead() -> None:
    assert forecast([Point(0.0, 0.0), Point(30.0, 1e9)], free=1e9) == Forecast()
    points = [Point(t * 30.0, 1e6 * t) for t in range(10)]
    assert not forecast(points, free=1e12).trusted


@pytest.mark.parametrize(
    ("text", "limit"),
    [("0.85", UsageLimit(ratio=0.85)), ("40TiB left", UsageLimit(left=40 << 40)), ("1.5 GiB left", UsageLimit(left=3 << 29))],
)  # fmt: skip
def test_a_limit_is_a_share_or_a_rest(text: str, limit: UsageLimit) -> None:
    assert parse_limit(text) == limit


@pytest.mark.parametrize("text", ["85", "0", "left", "40 left", "nan", "-1", ""])
def test_anything_else_is_no_limit(text: str) -> None:
    with pytest.raises(ValueError):
        parse_limit(text)


def test_a_rest_is_what_counts_on_a_large_disk() -> None:
    assert parse_limit("40TiB left").passed(0.5, 39 << 40)
    assert not parse_limit("40TiB left").passed(0.99, 41 << 40)


def test_the_nearest_folder_says_what_counts() -> None:
    rules = {"/data": "0.9", "/data/tmp": "0.5"}
    assert nearest_rule(rules, "/data/tmp/x") == "0.5"
    assert nearest_rule(rules, "/data2") is None
    assert default_limit("/gpfsssd/scratch/rech") == UsageLimit(ratio=0.75)
    assert default_limit("/work") == UsageLimit(ratio=0.85)
    assert usable({}, "/l", "lustre") == 0.8
    assert usable({"/l": 0.9}, "/l/x", "lustre") == 0.9
    assert usable({}, "/g", "gpfs") == 1.0


def test_alarms_are_sentences_that_say_what_happens_then() -> None:
    now = fullness(100 * GIB, 9 * GIB, 9 * GIB, 1000, 100, 1.0)
    ahead = Forecast(seconds_left=7200.0, trusted=True)
    last = Forecast(
        saves_left=1, checkpoint_bytes=20.0 * GIB, period=1680.0, seconds_left=720.0, trusted=True
    )
    result = fullness_alerts(
        "/data (nfs01:/data)", now, (UsageLimit(ratio=0.85), 0.85), (last, ahead), (86400.0, 3)
    )
    assert [one.sentence for one in result] == [
        "/data (nfs01:/data) is 91.0% full, 9 GiB left; the alarm is set to 85%",
        "/data (nfs01:/data) has used 90.0% of its inodes, 100 left: without them no file can be made, whatever space there is",
        "/data (nfs01:/data): 20 GiB every 28 min: the next save, due in 12 min, will not fit",
        "/data (nfs01:/data): no inode will be left in 2 h, and no file can be made",
    ]
    (rest,) = fullness_alerts(
        "/d", now, (UsageLimit(left=40 << 30), 1.0), (Forecast(), Forecast()), (1.0, 1)
    )
    assert rest.sentence.endswith("9 GiB left; the alarm is set to less than 40GiB left")
