"""What one owner makes of his report costs him alone: the pages of all others come."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mldebug.core.errors import AccessError, EvidenceError
from mldebug.core.report_model import Report
from mldebug.incidents.report.html import ReportSite
from mldebug.incidents.report.stack_tree import MAX_CULPRITS, branches
from mldebug.incidents.report_entry import read_entry
from mldebug.incidents.report_store import OWNER, ReportStore, report_owner
from mldebug_agents.web import report_cache
from mldebug_agents.web.report_cache import HANGING, ReportCache
from shared.incidents.samples import report, sleeping, tree

MINE, THEIRS = 62_001, 62_002


def nothing_around(_: Report) -> ReportSite:
    return ReportSite()


def stored(root: Path, report_id: str, owner: int) -> None:
    made = msgspec.structs.replace(report(sleeping()), id=report_id)
    folder = ReportStore(root).save(made, "", {})
    os.chown(folder, owner, -1)


@pytest.mark.skipif(os.geteuid() != 0, reason="root gives reports to their owners")
def test_a_report_that_renders_for_ever_keeps_nobody_else_from_his(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """6.9 MB of culprits and spans kept the one lock: all pages were 503 for as long as it was looked at."""
    stored(tmp_path, "20261126T000000Z-bad", THEIRS)
    stored(tmp_path, "20261126T000001Z-good", MINE)
    go, real = threading.Event(), report_cache.render_page

    def slow(made: Report, site: ReportSite) -> Any:
        if made.id.endswith("bad"):
            go.wait(60)
        return real(made, site)

    monkeypatch.setattr(report_cache, "render_page", slow)
    monkeypatch.setattr(report_cache, "PATIENCE", 0.3)
    cache = ReportCache(tmp_path)
    try:
        for _ in range(2 * HANGING):  # he asks again and again
            with pytest.raises(AccessError):
                cache.page("20261126T000000Z-bad", THEIRS, nothing_around)
        monkeypatch.setattr(report_cache, "PATIENCE", 20.0)
        assert (
            "20261126T000001Z-good"
            in cache.page("20261126T000001Z-good", MINE, nothing_around).html
        )
        assert len(cache.entries(None)) == 2
    finally:
        go.set()
    monkeypatch.setattr(report_cache, "PATIENCE", 20.0)
    assert cache.page("20261126T000000Z-bad", THEIRS, nothing_around).html  # his lock is free again


@pytest.mark.skipif(os.geteuid() != 0, reason="root gives reports to their owners")
def test_reports_that_their_owner_changes_all_the_time_keep_nobody_s_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list read all reports of all users that had changed, whoever asked for it: with a hundred large ones it never came."""
    for number in range(20):
        stored(tmp_path, f"20261126T0000{number:02}Z-bad", THEIRS)
    stored(tmp_path, "20261125T000000Z-good", MINE)
    read: list[str] = []

    def slow(folder: Path) -> Any:
        read.append(folder.name)
        if folder.name.endswith("bad"):
            time.sleep(0.1)
            os.utime(folder / "report.json")
        return read_entry(folder)

    monkeypatch.setattr(report_cache, "read_entry", slow)
    monkeypatch.setattr(report_cache, "MILLISECONDS", 250)
    monkeypatch.setattr(report_cache, "PATIENCE", 20.0)
    cache = ReportCache(tmp_path)
    assert [one.id for one in cache.entries(MINE)] == ["20261125T000000Z-good"]
    assert read == ["20261125T000000Z-good"]
    for _ in range(2):
        read.clear()
        listed = cache.entries(None)
        assert len(listed) == 21
        assert not listed[-1].broken
        assert len(read) <= 4
    assert {one.broken for one in listed} == {"", report_cache.LATER}


def test_a_report_that_could_not_be_given_away_is_its_user_s_all_the_same(tmp_path: Path) -> None:
    """The service has no CAP_CHOWN: all folders are its own, each user got 404 for his, and pruning took all for one user's."""
    for number, uid in enumerate((MINE, THEIRS, THEIRS)):
        made = msgspec.structs.replace(report(sleeping()), id=f"20261126T00000{number}Z-one")
        folder = ReportStore(tmp_path).save(made, "", {}, owner_uid=uid)
        os.chown(folder, os.geteuid(), -1)
    cache = ReportCache(tmp_path)
    (mine,) = cache.entries(MINE)
    assert mine.id in cache.page(mine.id, MINE, nothing_around).html
    with pytest.raises(EvidenceError):
        cache.page(mine.id, THEIRS, nothing_around)
    assert len(cache.entries(THEIRS)) == 2
    assert len(cache.entries(None)) == 3
    assert ReportStore(tmp_path, max_reports=2).prune() == ("20261126T000001Z-one",)


@pytest.mark.skipif(os.geteuid() != 0, reason="root gives reports to their owners")
def test_the_owner_of_a_folder_names_nobody_else(tmp_path: Path) -> None:
    made = msgspec.structs.replace(report(sleeping()), id="20261126T000000Z-one")
    folder = ReportStore(tmp_path).save(made, "", {}, owner_uid=THEIRS)
    (folder / OWNER).write_text(f"{MINE}\n")
    assert report_owner(folder) == THEIRS
    os.chown(folder, os.geteuid(), -1)
    for text in ("", "x", "9" * 40, "-"):
        (folder / OWNER).write_text(text)
        assert isinstance(report_owner(folder), int)
    (folder / OWNER).unlink()
    (folder / OWNER).symlink_to("/etc/hostname")
    assert report_owner(folder) == os.geteuid()


def test_culprits_and_spans_without_end_are_marked_in_little_time() -> None:
    spans = ",".join(f"{rank}-{rank}" for rank in range(0, 60_000, 2))
    nodes = tree([((f"frame{number} (a.py:1)",), 1) for number in range(50)])
    nodes = tuple(msgspec.structs.replace(node, ranks=spans) for node in nodes)
    begun = time.process_time()
    found = branches(nodes, list(range(60_000)), 60_000)
    assert time.process_time() - begun < 20  # it was some hours
    assert found[0].culprits == list(range(0, MAX_CULPRITS, 2))


@pytest.mark.skipif(os.geteuid() != 0, reason="root gives reports to their owners")
def test_of_hundreds_of_users_reports_those_of_who_has_most_go_and_each_sees_his_own(
    tmp_path: Path,
) -> None:
    """The store is full with one report of each of 400 users, and 160 of one more."""
    for number in range(400):
        stored(tmp_path, f"20261126T000000Z-u{number}", 70_000 + number)
    for number in range(160):
        stored(tmp_path, f"20261126T000001Z-x{number:03}", THEIRS)
    begun = time.process_time()
    store, gone = ReportStore(tmp_path), list[str]()
    while (
        some := store.prune()
    ):  # one takes a second at most, and removes something where there is too much
        gone += some
    assert len(gone) == 60
    assert store.prune() == ()
    assert all("-x" in name for name in gone)
    cache = ReportCache(tmp_path)
    while len(cache.entries(None)) < 500:  # a list takes two seconds, and goes on the next time
        assert time.process_time() - begun < 60
    assert len(cache.entries(THEIRS)) == 100
    assert [one.id for one in cache.entries(70_399)] == ["20261126T000000Z-u399"]
    assert cache.entries(MINE) == ()
