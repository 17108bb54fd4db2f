"""Real folders through the real reader child: what is listed, what is left out, and what a hostile folder can do."""

import os
import pickle
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from mldebug.core.plugins import create_all
from mldebug.storage.checkpoints.model import ByteRange, Completeness
from mldebug_agents.storage.checkpoints import series_reader
from mldebug_agents.storage.checkpoints.series_reader import (
    OVERLAP,
    PIECE,
    SeriesFiles,
    SeriesLook,
    SeriesReader,
    read_part,
)
from mldebug_agents.system.child.listing import FolderListing, LeftOut
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import Unreadable
from mldebug_agents.system.spawn import Spawner
from shared.system.hung import hung_mount
from shared.system.whose import MINE, of_mine

NOW = 1e9
NOBODY = 65534


@pytest.fixture
def reader() -> Iterator[Reader]:
    with Spawner() as spawner, Reader(spawner) as it:
        yield it


def listed(reader: Reader, path: Path, depth: int = 1, most: int = 10_000) -> FolderListing:
    found = reader.list_folder(str(path), depth=depth, most=most, timeout=20.0, rights=MINE)
    assert isinstance(found, FolderListing), found
    return found


def watch(folder: Path, series: str, reader: Reader) -> SeriesLook:
    place = SeriesReader((str(folder), series), create_all("checkpoints"))
    return place.look("run", of_mine(reader), frozenset(), NOW)


def step(folder: Path, number: int, size: int = 10) -> Path:
    path = folder / f"step_{number}"
    path.mkdir(parents=True)
    (path / "__0_0.distcp").write_bytes(b"x" * size)
    return path


def test_a_folder_is_listed_with_kinds_and_sizes(tmp_path: Path, reader: Reader) -> None:
    step(tmp_path, 5)
    (tmp_path / "link").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    found = {one.path: (one.kind, one.size) for one in listed(reader, tmp_path, 3).entries}
    assert found["step_5/__0_0.distcp"] == ("file", 10)
    assert (found["link"][0], found["pipe"][0], found["step_5"][0]) == ("link", "other", "folder")
    assert not any(path.startswith("link/") for path in found)
    assert listed(reader, tmp_path, 3).left == LeftOut(0)


def test_a_link_and_a_file_are_no_folder(tmp_path: Path, reader: Reader) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").write_text("")
    for name in ("link", "file", "none"):
        assert isinstance(
            reader.list_folder(f"{tmp_path}/{name}", depth=1, most=9, rights=MINE), Unreadable
        )


def test_a_loop_of_links_ends(tmp_path: Path, reader: Reader) -> None:
    path = step(tmp_path, 5)
    (path / "self").symlink_to(path)
    (path / "a").symlink_to(path / "b")
    (path / "b").symlink_to(path / "a")
    assert len(listed(reader, tmp_path, 6).entries) == 5
    assert watch(tmp_path, "step_#", reader).whole


def test_very_many_files_beside_a_step_cut_the_listing_and_nothing_is_judged_whole(
    tmp_path: Path, reader: Reader
) -> None:
    path = step(tmp_path, 99_999)
    for number in range(20_500):
        (tmp_path / f"f{number}").touch()
    look = watch(tmp_path, "step_#", reader)
    assert not look.whole
    assert [one.code for one in look.troubles] == ["cut"]
    assert [one.name for one in look.readings] == ["step_99999"]  # the highest number comes first
    for number in range(20_500):
        (path / f"__{number}_0.distcp").touch()
    (inner,) = list(watch(tmp_path, "step_#", reader).readings)
    assert inner.verdict.state is Completeness.UNKNOWN


def test_names_with_newlines_and_without_utf8_are_saves_like_others(
    tmp_path: Path, reader: Reader
) -> None:
    for name in (b"step\n_5", b"step\xff_6"):
        folder = os.fsencode(tmp_path) + b"/" + name
        os.mkdir(folder)
        Path(os.fsdecode(folder + b"/x.pt")).write_bytes(b"PK")
    names = sorted(one.path for one in listed(reader, tmp_path, 1).entries)
    assert names == ["step\n_5", "step\udcff_6"]
    assert [one.verdict.state for one in watch(tmp_path, "step\udcff_#", reader).readings] == [
        Completeness.INCOMPLETE
    ]


STRANGER = f"""
import os, sys, time
from mldebug.core.plugins import create_all
from mldebug_agents.system.child.job_paths import Rights
from mldebug_agents.system.reader import Reader
from mldebug_agents.storage.checkpoints.series_reader import SeriesFiles, SeriesReader
from mldebug_agents.system.spawn import Spawner
from mldebug_agents.storage.dir_sizes.updater import DirSizeUpdater
from mldebug_agents.storage.dir_sizes.messages import DirSizeRequest
layouts, folder = create_all("checkpoints"), sys.argv[1]
if os.geteuid() == 0:
    os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
with Spawner() as spawner, Reader(spawner) as reader:
    files = SeriesFiles(reader, "", "", Rights(os.geteuid()))
    look = SeriesReader((folder, "step_#"), layouts).look("run", files, frozenset(), {NOW})
    for one in sorted(look.readings, key=lambda one: one.name):
        print(one.name, one.verdict.state, one.verdict.why)
    print(look.whole, sorted(one.code for one in look.troubles), [one.reason for one in look.gaps])
keeper = DirSizeUpdater(DirSizeRequest(path=folder))
while keeper.state().inodes is None:
    keeper.tick(1.0)
print(keeper.state().inodes, keeper.state().unread, keeper.state().lower_bound)
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_what_is_closed_to_an_ordinary_user_is_a_named_gap(open_folder: Path) -> None:
    """A folder in a save, a shard, and the index; as that user, whoever runs the tests."""
    closed = (
        step(open_folder, 1) / "inner",
        step(open_folder, 2) / ".metadata",
        step(open_folder, 3),
    )
    closed[0].mkdir()
    closed[1].write_bytes(b"x.")
    for one in closed:
        one.chmod(0)
    try:
        lines = subprocess.run(
            [sys.executable, "-c", STRANGER, open_folder], capture_output=True, text=True, check=True, timeout=120
        ).stdout.splitlines()  # fmt: skip
    finally:
        for one in closed:
            one.chmod(0o755)
    assert lines[:2] == [
        "step_1 unknown permission denied for a part of it",
        "step_2 unknown .metadata could not be read: permission denied",
    ]
    assert lines[2] == "step_3 unknown permission denied"
    assert lines[3].startswith("True ['denied', 'unread', 'unreadable']")
    assert ".metadata could not be read: permission denied" in lines[3]
    assert "permission denied for a part of it" in lines[3]
    assert lines[4] == "8 2 True"


def test_a_checkpoint_that_is_deleted_while_it_is_read_raises_nothing(
    tmp_path: Path, reader: Reader
) -> None:
    done = threading.Event()

    def churn() -> None:
        number = 0
        while not done.is_set():
            number += 1
            path = step(tmp_path, number % 7)
            for one in path.iterdir():
                one.unlink()
            path.rmdir()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        place = SeriesReader((str(tmp_path), "step_#"), create_all("checkpoints"))
        looks = [place.look("run", of_mine(reader), frozenset(), NOW + i) for i in range(200)]
    finally:
        done.set()
        thread.join()
    assert {one.verdict.state for look in looks for one in look.readings} <= {
        Completeness.INCOMPLETE,
        Completeness.UNKNOWN,
    }
    assert {one.code for look in looks for one in look.troubles} <= {"gone", "unreadable"}


def test_another_file_system_is_told_and_not_entered(reader: Reader) -> None:
    found = listed(reader, Path("/dev"), 2)
    assert LeftOut.OTHER in found.left
    assert "shm" in {one.path for one in found.entries}
    assert not any(one.path.startswith("shm/") for one in found.entries)


def test_a_place_that_hangs_is_named_and_keeps_no_other_waiting(
    tmp_path: Path, reader: Reader
) -> None:
    step(tmp_path / "well", 5)
    with hung_mount(tmp_path) as mount:
        step(mount.source, 7)
        assert watch(mount.target, "step_#", reader).whole
        mount.hang()
        stuck = watch(mount.target, "step_#", reader)
        assert [one.code for one in stuck.troubles] == ["stuck"]
        assert not stuck.whole
        assert watch(tmp_path / "well", "step_#", reader).whole
        mount.recover()


def test_a_long_run_with_very_many_saves_is_told_like_others(
    tmp_path: Path, reader: Reader
) -> None:
    for number in range(80):
        os.utime(step(tmp_path, number), (NOW + number, NOW + number))
    place = SeriesReader((str(tmp_path), "step_#"), create_all("checkpoints"))
    for add in (80, 81):
        look = place.look("run", of_mine(reader), frozenset(), NOW + add)
        names = {one.name for one in look.readings}
        assert (look.whole, look.trouble, len(names)) == (True, "", 64)
        assert {f"step_{add - 1}", f"step_{add - 64}"} <= names
        os.utime(step(tmp_path, add), (NOW + add, NOW + add))


def test_a_copied_config_with_an_old_time_is_not_the_beginning(
    tmp_path: Path, reader: Reader
) -> None:
    save = step(tmp_path, 1)
    os.utime(save / "__0_0.distcp", (NOW, NOW))
    (save / "config.json").write_text("{}")
    os.utime(save / "config.json", (NOW - 1e6, NOW - 1e6))
    assert [(one.oldest, one.newest) for one in watch(tmp_path, "step_#", reader).readings] == [
        (NOW, NOW)
    ]


def test_only_what_changed_is_judged_again(tmp_path: Path, reader: Reader) -> None:
    for number in range(9):
        step(tmp_path, number)
    place = SeriesReader((str(tmp_path), "step_#"), create_all("checkpoints"))
    first = place.look("run", of_mine(reader), frozenset(), NOW)
    assert len(first.readings) == 9
    (tmp_path / "step_8/__0_0.distcp").write_bytes(b"more than before")
    later = {
        one.name: one.size
        for one in place.look("run", of_mine(reader), frozenset(), NOW + 1).readings
    }
    assert later["step_8"] == 16


def test_a_large_index_is_searched_piece_by_piece_and_little_is_held(tmp_path: Path, reader: Reader) -> None:  # fmt: skip
    """64 MiB with names on all edges of pieces; the memory of one at most is taken."""
    path = tmp_path / ".metadata"
    names = [b"__%d_0.distcp" % one for one in range(64)]
    with path.open("wb") as file:
        for number, name in enumerate(names):
            file.seek((number + 1) * (PIECE - OVERLAP) - number % 20)
            file.write(name)
        file.truncate(64 << 20)
    wanted = ByteRange("", 0, 64 << 20, rb"__\d{1,7}_\d{1,7}\.distcp")
    read_part(of_mine(reader), str(path), wanted)  # what is allocated once
    tracemalloc.start()
    try:
        found = read_part(of_mine(reader), str(path), wanted)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found == b"\n".join(sorted(names))
    assert peak < 8 * PIECE


def test_a_file_that_becomes_shorter_while_it_is_searched_is_said(tmp_path: Path, reader: Reader) -> None:  # fmt: skip
    (tmp_path / ".metadata").write_bytes(b"x" * 1000)
    found = read_part(of_mine(reader), str(tmp_path / ".metadata"), ByteRange("", 0, 2000, b"x"))
    assert isinstance(found, Unreadable)
    assert "shorter" in found.reason


def test_what_could_not_be_read_is_tried_again_although_it_did_not_change(tmp_path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    (step(tmp_path, 5) / ".metadata").write_bytes(pickle.dumps(["__0_0.distcp"]))
    place, closed = SeriesReader((str(tmp_path), "step_#"), create_all("checkpoints")), [True]

    def read(files: SeriesFiles, path: str, wanted: ByteRange) -> bytes | Unreadable:
        return Unreadable("permission denied") if closed[0] else read_part(files, path, wanted)

    monkeypatch.setattr(series_reader, "read_part", read)
    for second, state, codes in (
        (0, "unknown", ["unread"]),
        (60, "unknown", ["unread"]),
        (130, "complete", []),
    ):
        look = place.look("run", of_mine(reader), frozenset(), NOW + second)
        assert (look.readings[0].verdict.state, [one.code for one in look.troubles]) == (
            state,
            codes,
        )
        closed[0] = False
