"""What healthy nodes print is no fault, in any order, by the thousand and spread over days."""

import pytest

from mldebug.hardware.health.model import BAD
from mldebug.hardware.health.node_rules import node_health
from mldebug.hardware.health.thresholds import Thresholds
from mldebug.hardware.kernel_log.attribution import RankEvent
from mldebug.hardware.kernel_log.model import KernelEvent
from mldebug.hardware.kernel_log.xids import Tier
from shared.hardware.kernellines import fold, parse_line
from shared.hardware.ordinary_lines import forms, ordinary_lines

LINES = [*ordinary_lines(25)]


def read(lines: list[str], every: float) -> list[KernelEvent]:
    found = [parse_line(f"4,{n},{int(n * every * 1e6)},-;{line}") for n, line in enumerate(lines)]
    return [one for one in found if one is not None]


def faults(lines: list[str], every: float, at: float) -> list[str]:
    events = [RankEvent(burst=burst) for burst in fold(read(lines, every))]
    found = node_health(events, at, Thresholds(), kernel_readable=True)
    return [f"{one.component}: {one.reason}" for one in found if one.state in BAD]


def test_there_are_enough_of_them() -> None:
    assert len(LINES) > 5_000
    assert len(set(LINES)) > 4_000


@pytest.mark.parametrize("line", forms())
def test_a_single_line_is_no_fault(line: str) -> None:
    lines = [
        one
        for one in ordinary_lines(3)
        if one.partition("{")[0].startswith(line.partition("{")[0][:24])
    ]

    assert lines
    assert faults(lines[:3], 10.0, 60.0) == []


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_boot_is_no_fault(seed: int) -> None:
    boot = [*ordinary_lines(1, seed)]

    assert faults(boot, 0.1, 0.1 * len(boot)) == []


def test_days_are_no_fault_at_any_time() -> None:
    """5,000 lines in four days: looked at each hour."""
    every = 4 * 86400 / len(LINES)
    events = [RankEvent(burst=burst) for burst in fold(read(LINES, every))]
    for hour in range(1, 97):
        now = hour * 3600.0
        before = [one for one in events if one.burst.first_at <= now]
        found = node_health(before, now, Thresholds(), kernel_readable=True)
        assert [f"{hour}: {one.component}: {one.reason}" for one in found if one.state in BAD] == []


def test_no_ordinary_line_is_a_fault_of_a_gpu() -> None:
    assert {burst.tier for burst in fold(read(LINES, 1.0))} <= {Tier.INFORMATION, Tier.APPLICATION}
