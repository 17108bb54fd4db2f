"""Whose report goes when there are too many."""

import os
import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from mldebug.incidents.pruning import StoredReport, excess
from mldebug.incidents.report_store import ReportStore
from shared.incidents import samples

ADA, BOB = 1000, 1001


def report(day: int, owner: int = ADA, size: int = 10, hand: bool = False) -> StoredReport:
    end = "-manual" if hand else ""
    return StoredReport(
        id=f"202601{day:02d}T000000Z-1a2b3c{end}", owner=owner, size=size, made_at=float(day)
    )


def gone(
    *kept: StoredReport, reports: int = 100, size: int = 10_000, oldest: float = 0.0
) -> list[int]:
    """The days whose reports go, in order."""
    named = excess(kept, oldest_allowed=oldest, max_reports=reports, max_bytes=size)
    return [int(one[6:8]) for one in named]


def test_nothing_is_nothing() -> None:
    assert gone() == []


def test_of_one_owner_the_oldest_goes_first() -> None:
    assert gone(*map(report, (3, 1, 4, 2)), reports=2) == [1, 2]


def test_those_taken_by_hand_go_before_what_the_agent_wrote() -> None:
    kept = (report(1), report(2, hand=True), report(3), report(4, hand=True), report(5))
    assert gone(*kept, reports=3) == [2, 4]


def test_a_number_after_manual_is_by_hand_and_a_job_of_that_name_is_not() -> None:
    one = report(1, hand=True)
    assert replace(one, id=f"{one.id}-02").by_hand
    assert not replace(one, id=f"{one.id}-job").by_hand


def test_who_takes_many_loses_his_own() -> None:
    mine = [report(day, ADA) for day in (1, 2)]
    his = [report(day, BOB, hand=True) for day in range(3, 29)]
    assert gone(*mine, *his, reports=10) == list(range(3, 21))


def test_who_fills_the_disk_loses_his_own_and_not_the_older_ones_of_others() -> None:
    mine = [report(day, ADA) for day in (1, 2)]
    assert gone(*mine, report(3, BOB, 9_000), report(4, BOB, 9_000), report(5, BOB)) == [3]


def test_a_newest_report_that_was_blown_up_costs_nobody_else_his() -> None:
    mine = [report(day, ADA) for day in (1, 2)]
    assert gone(*mine, report(3, BOB), report(4, BOB, 1 << 50)) == []


def test_too_old_goes_whoever_has_it_but_never_the_newest() -> None:
    assert gone(report(1, ADA), report(2, BOB), report(3, ADA), oldest=9.0) == [1, 2]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_there_is_the_bounds_hold_and_who_has_little_keeps_it(seed: int) -> None:
    dice = random.Random(seed)
    kept = [
        StoredReport(id=f"{n:04d}", owner=dice.choice((1, 1, 1, 2, 3)), size=dice.randrange(1, 60), made_at=1.0)
        for n in range(60)
    ]  # fmt: skip
    little = [StoredReport(id=f"0000-{n}", owner=4, size=5, made_at=1.0) for n in range(2)]
    kept = [*little, *kept]
    named = set(excess(kept, oldest_allowed=0.0, max_reports=30, max_bytes=600))
    left = [one for one in kept if one.id not in named]
    assert len(left) <= 30
    assert sum(one.size for one in left[:-1]) + min(left[-1].size, 150) <= 600
    assert kept[-1] in left
    assert left[:2] == little


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_on_disk_the_owner_is_whose_folder_it_is(tmp_path: Path) -> None:
    archive = ReportStore(
        tmp_path, max_age_days=9_999, max_reports=3, clock=lambda: samples.TAKEN_AT
    )
    made = samples.report(samples.sleeping())
    for day, owner in ((1, ADA), (2, BOB), (3, BOB), (4, BOB)):
        archive.save(replace(made, id=report(day).id), "", {}, owner_uid=owner)
    assert archive.prune() == (report(2).id,)
