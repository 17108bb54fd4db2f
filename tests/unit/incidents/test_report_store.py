"""Incidents on disk."""

import errno
import os
import time
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from mldebug.core import files
from mldebug.core.errors import AccessError, EvidenceError
from mldebug.core.model import NodeCapture
from mldebug.core.report_model import Report
from mldebug.incidents.report.build import make_id
from mldebug.incidents.report_store import DAY, ReportStore, load_captures
from shared.incidents import samples

NOW = samples.TAKEN_AT + 60


@pytest.fixture
def archive(tmp_path: Path) -> ReportStore:
    return ReportStore(tmp_path, clock=lambda: NOW)


def made(report_id: str = "", days_ago: float = 0.0) -> Report:
    report = samples.report(samples.sleeping())
    if days_ago:
        return replace(report, id=make_id(NOW - days_ago * DAY, "job"))
    return replace(report, id=report_id) if report_id else report


def evidence() -> dict[str, bytes]:
    captures = samples.sleeping().captures
    return {f"capture-{one.node}.json": msgspec.json.encode(one) for one in captures}


def test_what_was_saved_comes_back(archive: ReportStore) -> None:
    folder = archive.save(made(), "<html>", evidence())
    assert sorted(path.name for path in folder.iterdir()) == [
        "evidence",
        "report.html",
        "report.json",
    ]
    assert archive.load("latest") == made()
    assert archive.evidence("latest") == samples.sleeping().captures
    assert load_captures(folder) == load_captures(folder / "evidence")


def test_only_the_owner_may_look(archive: ReportStore) -> None:
    folder = archive.save(made(), "<html>", evidence())
    modes = {path.name: path.stat().st_mode & 0o777 for path in (folder, *folder.rglob("*"))}
    assert modes.pop(folder.name) == modes.pop("evidence") == 0o700
    assert set(modes.values()) == {0o600}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_root_gives_the_report_to_the_owner_of_the_job(archive: ReportStore) -> None:
    folder = archive.save(made(), "<html>", evidence(), owner_uid=12345)
    owners = {path.stat().st_uid for path in (folder, *folder.rglob("*"))}
    assert owners == {12345}
    assert archive.folder.stat().st_uid == 0
    assert archive.folder.stat().st_mode & 0o777 == 0o711


def test_root_that_may_give_nothing_away_keeps_the_report(
    archive: ReportStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's root without CAP_CHOWN: this ended in an error, and the report was lost."""

    def refused(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("os.chown", refused)
    folder = archive.save(made(), "<html>", evidence(), owner_uid=12345)
    assert archive.load("latest").id == made().id
    assert {path.stat().st_uid for path in (folder, *folder.rglob("*"))} == {os.getuid()}


def test_the_same_id_replaces(archive: ReportStore) -> None:
    archive.save(made(), "first", evidence())
    ended = replace(made(), state="ended")
    folder = archive.save(ended, "second", {})
    assert archive.load(ended.id).state == "ended"
    assert (folder / "report.html").read_text() == "second"
    assert [path.name for path in archive.folder.iterdir()] == [ended.id]


def test_a_failed_save_leaves_nothing_half(
    archive: ReportStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        archive.save(made(), "<html>", {})
    assert list(archive.folder.iterdir()) == []
    assert archive.list() == ()


def test_a_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("a file")
    with pytest.raises(AccessError) as caught:
        ReportStore(tmp_path).save(made(), "", {})
    assert "state_dir" in caught.value.way_out


def test_newest_first_and_broken_ones_are_listed(archive: ReportStore) -> None:
    for days in (3, 1, 2):
        archive.save(made(days_ago=days), "", {})
    broken = archive.folder / "20300101T000000Z-x"
    broken.mkdir()
    (broken / "report.json").write_text('{"schema": ')
    (archive.folder / "20310101T000000Z-y").mkdir()
    entries = archive.list()
    assert [entry.id for entry in entries] == sorted((one.id for one in entries), reverse=True)
    assert [bool(entry.broken) for entry in entries] == [True, True, False, False, False]
    good = entries[2]
    assert (good.verdict, good.confidence, good.job) == ("rank_waiting", "high", "train.py")
    assert good.sentence.startswith("rank 3 ")
    assert archive.load("latest").id == good.id


def test_a_prefix_is_enough_when_it_is_clear(archive: ReportStore) -> None:
    archive.save(made("20260101T000000Z-a"), "", {})
    archive.save(made("20260102T000000Z-b"), "", {})
    assert archive.load("20260102").id == "20260102T000000Z-b"
    with pytest.raises(EvidenceError, match="fits 2 reports"):
        archive.load("2026")
    with pytest.raises(EvidenceError) as caught:
        archive.load("1999")
    assert "reports list" in caught.value.way_out


def test_an_exact_id_wins_over_a_longer_one(archive: ReportStore) -> None:
    archive.save(made("20260101T000000Z-a"), "", {})
    archive.save(made("20260101T000000Z-ab"), "", {})
    assert archive.load("20260101T000000Z-a").id == "20260101T000000Z-a"


@pytest.mark.parametrize("name", ["../x", "/etc", "", ".", "..", "a/b", "a\0b", "é", "x" * 200])
def test_names_never_leave_the_folder(archive: ReportStore, name: str) -> None:
    with pytest.raises(EvidenceError):
        archive.load(name)
    with pytest.raises(EvidenceError):
        archive.save(made(name or "."), "", {})
    with pytest.raises(EvidenceError):
        archive.save(made(), "", {name: b""})
    assert archive.list() == ()


def test_no_archive_is_an_empty_one(tmp_path: Path) -> None:
    archive = ReportStore(tmp_path / "never" / "made")
    assert archive.list() == ()
    assert archive.prune() == ()
    with pytest.raises(EvidenceError) as caught:
        archive.load("latest")
    assert "mldebug dump" in caught.value.way_out


# --- what the owner of a folder may have put there ----------------------------------------------


def test_a_symlink_is_not_followed(archive: ReportStore, tmp_path: Path) -> None:
    folder = archive.save(made(), "", evidence())
    secret = tmp_path / "secret.json"
    secret.write_bytes((folder / "report.json").read_bytes())
    (folder / "report.json").unlink()
    (folder / "report.json").symlink_to(secret)
    assert archive.list()[0].broken
    with pytest.raises(EvidenceError, match="cannot read"):
        archive.load(made().id)


def test_a_folder_that_is_a_symlink_is_no_report(archive: ReportStore, tmp_path: Path) -> None:
    folder = archive.save(made(), "", evidence())
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    assert archive.list() == ()


def test_an_evidence_folder_that_is_a_symlink_is_refused(
    archive: ReportStore, tmp_path: Path
) -> None:
    folder = archive.save(made(), "", evidence())
    (folder / "evidence").rename(tmp_path / "moved")
    (folder / "evidence").symlink_to(tmp_path / "moved")
    with pytest.raises(EvidenceError):
        archive.evidence("latest")


@pytest.mark.timeout(20)
def test_a_fifo_does_not_block(archive: ReportStore) -> None:
    folder = archive.save(made(), "", evidence())
    for name in ("report.json", "evidence/capture-gpu-17.json"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
    assert "not a regular file" in archive.list()[0].broken
    with pytest.raises(EvidenceError, match="not a regular file"):
        archive.evidence(made().id)


def test_a_huge_file_is_not_read(archive: ReportStore) -> None:
    folder = archive.save(made(), "", evidence())
    os.truncate(folder / "report.json", files.MAX_FILE_BYTES + 1)
    assert "more than" in archive.list()[0].broken


def test_pruning_does_not_leave_the_folder(archive: ReportStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("me")
    old = archive.save(made(days_ago=200), "", {})
    (old / "evidence" / "link").symlink_to(outside)
    archive.save(made(), "", {})
    assert archive.prune(by_age=True) == (old.name,)
    assert (outside / "keep").read_text() == "me"


# --- captures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[1]", b'{"node": 7}', b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000, b"null"],
)
def test_malformed_captures_are_sentences(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "capture-x.json").write_bytes(content)
    with pytest.raises(EvidenceError) as caught:
        load_captures(tmp_path)
    assert "capture-x.json" in caught.value.message
    assert caught.value.way_out


def test_a_capture_of_another_schema_is_refused(tmp_path: Path) -> None:
    capture = replace(samples.sleeping().captures[0], schema="mldebug.capture/2")
    (tmp_path / "capture-x.json").write_bytes(msgspec.json.encode(capture))
    with pytest.raises(EvidenceError, match="capture/2"):
        load_captures(tmp_path)


def test_captures_come_in_order_of_name(tmp_path: Path) -> None:
    captures = samples.huge(24, 3).captures
    for one in reversed(captures):
        (tmp_path / f"capture-{one.node}.json").write_bytes(msgspec.json.encode(one))
    (tmp_path / "notes.txt").write_text("not ours")
    found = load_captures(tmp_path)
    assert found == captures
    assert all(isinstance(one, NodeCapture) for one in found)


def test_an_empty_folder_has_no_captures(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(EvidenceError, match=r"no capture-\*\.json"):
            load_captures(folder)


# --- bounds ---------------------------------------------------------------------------------------


def test_old_reports_go_but_the_newest_stays(tmp_path: Path) -> None:
    archive = ReportStore(tmp_path, max_age_days=10, clock=lambda: NOW)
    for days in (30, 20, 11):
        archive.save(made(days_ago=days), "", {})
    assert archive.prune() == (), "whoever has not watched the clock removes nothing for its age"
    assert len(archive.prune(by_age=True)) == 2
    assert [entry.id for entry in archive.list()] == [made(days_ago=11).id]


def test_too_many_reports_go_oldest_first(tmp_path: Path) -> None:
    archive = ReportStore(tmp_path, max_reports=2, clock=lambda: NOW)
    for days in (4, 3, 2, 1):
        archive.save(made(days_ago=days), "", {})
    assert set(archive.prune()) == {made(days_ago=4).id, made(days_ago=3).id}
    assert archive.prune() == ()


def test_a_disk_that_takes_all_the_time_to_be_read_is_emptied_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It kept all reports for ever: nothing was removed once the list of them took a second."""
    archive = ReportStore(tmp_path, max_reports=2)
    for days in range(1, 7):
        archive.save(made(days_ago=days), "", {})
    monkeypatch.setattr("mldebug.incidents.report_store.PRUNE_SECONDS", -60.0)
    gone: set[str] = set()
    for _ in range(4):  # one at least each time
        some = archive.prune()
        assert some or len(gone) == 4
        gone |= set(some)
    assert gone == {made(days_ago=days).id for days in range(3, 7)}
    assert archive.prune() == ()


def test_too_many_bytes_go_oldest_first(tmp_path: Path) -> None:
    archive = ReportStore(tmp_path, max_bytes=250_000, clock=lambda: NOW)
    for days in (3, 2, 1):
        archive.save(made(days_ago=days), "x" * 100_000, {})
    assert archive.prune() == (made(days_ago=3).id,)


def test_a_single_report_larger_than_the_bound_stays(tmp_path: Path) -> None:
    archive = ReportStore(tmp_path, max_bytes=10, clock=lambda: NOW)
    archive.save(made(), "x" * 100, {})
    assert archive.prune() == ()


def test_leftovers_of_a_crash_are_swept(archive: ReportStore) -> None:
    archive.save(made(), "", {})
    for name, age in ((".tmp-1-old", 7200), (".tmp-2-new", 60)):
        (archive.folder / name).mkdir()
        os.utime(archive.folder / name, (NOW - age, NOW - age))
    archive.prune()
    assert sorted(path.name for path in archive.folder.glob(".tmp-*")) == [".tmp-2-new"]
    assert len(archive.list()) == 1


def test_a_report_that_was_half_replaced_gets_its_name_back(tmp_path: Path) -> None:
    archive = ReportStore(tmp_path, clock=lambda: time.time() + 7200)
    folder = archive.save(made(), "<html>", evidence())
    folder.rename(folder.with_name(f".tmp-99-{folder.name}.old"))
    assert archive.list() == ()
    archive.prune()
    assert archive.load("latest") == made()


@pytest.mark.parametrize("atomic", [True, False])
def test_replacing_leaves_the_new_one_and_no_litter(
    archive: ReportStore, monkeypatch: pytest.MonkeyPatch, atomic: bool
) -> None:
    if not atomic:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    archive.save(made(), "first", evidence())
    folder = archive.save(made(), "second", {})
    assert (folder / "report.html").read_text() == "second"
    assert not list((folder / "evidence").iterdir())
    assert [path.name for path in archive.folder.iterdir()] == [folder.name]


def test_the_kernel_exchanges_two_folders(tmp_path: Path) -> None:
    """Without it a kill at the wrong moment would hide a report for an hour."""
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    (one / "here").touch()
    assert files._exchange(one, other)
    assert (other / "here").exists()
