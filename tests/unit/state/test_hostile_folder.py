"""What a report's owner puts into it, and what may stand in the database: the state server goes on, and so do all other reports."""

import os
import signal
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from mldebug.core.owned_trees import HUGE, folder_size, remove_tree
from mldebug.core.report_model import Report
from mldebug.incidents.report.build import make_id
from mldebug.incidents.report_store import ReportStore
from mldebug.stall.progress_clock import StallMemory
from mldebug_agents.state import server, settled_clock
from mldebug_agents.state.messages import PruneReports
from mldebug_agents.state.server import StateServer, answer
from mldebug_agents.system.spawn import Spawner
from shared.incidents.samples import report, sleeping
from shared.system.hung import hung_mount, wait_until
from unit.state.test_store import SPAWNERS, opened_store

DEEP = 1_500  # folders in each other: more than Python's frames, and than a path has characters


@pytest.fixture(autouse=True)
def starter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What forks the state servers of a test; they trust the clock at once."""
    monkeypatch.setattr(settled_clock, "SETTLED", 0.0)
    with Spawner({"state": server.serve}) as one:
        SPAWNERS.append(one)
        yield
        SPAWNERS.remove(one)


@pytest.fixture
def quick() -> Iterator[Path]:
    """A folder in memory: a disk may take seconds for a thousand folders, and removals are bounded in time."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def named(report_id: str) -> Report:
    return msgspec.structs.replace(report(sleeping()), id=report_id)


def deep(folder: Path, depth: int = DEEP) -> None:
    """Folders in each other, as `mkdir d; cd d` makes them, with a file at the end."""
    handle = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=handle)
        inner = os.open("d", os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    os.close(os.open("end", os.O_WRONLY | os.O_CREAT, dir_fd=handle))
    os.close(handle)


def test_a_deep_tree_goes_and_nothing_beside_it(quick: Path) -> None:
    outside = quick / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    tree = quick / "tree"
    tree.mkdir()
    (tree / "link").symlink_to(outside)
    (tree / "wide").mkdir()
    for number in range(50):
        (tree / "wide" / f"{number}").mkdir()
        (tree / "wide" / f"{number}" / ("n" * 255)).mkdir()
    deep(tree)
    assert remove_tree(tree)
    assert not tree.exists()
    assert (outside / "kept").read_text() == "x"


def test_a_link_in_place_of_a_folder_is_what_goes(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    assert remove_tree(tmp_path / "link")
    assert (tmp_path / "target").is_dir()
    assert remove_tree(tmp_path / "nothing")


def test_a_removal_is_bounded_and_the_next_goes_on(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    for number in range(500):
        (tree / f"{number}").touch()
    assert not remove_tree(tree, most=100)
    assert len(list(tree.iterdir())) == 400
    while not remove_tree(tree, most=100):
        assert tree.exists()


def test_the_size_of_a_deep_or_endless_folder_is_bounded(quick: Path) -> None:
    deep(quick, 1_500)
    assert 0 <= folder_size(quick) < HUGE
    many = quick / "many"
    many.mkdir()
    for number in range(20_001):
        os.link(quick / "one", many / f"{number}") if number else (quick / "one").touch()
    assert folder_size(many) < HUGE
    (many / "more").touch()
    (many / "yet more").touch()
    assert folder_size(many) == HUGE
    assert remove_tree(quick / "d")


def test_one_owner_s_deep_report_stops_no_other_report(quick: Path) -> None:
    """1,500 nested folders made the state server die in each prune, and no report came to the disk any more."""
    store = ReportStore(quick, max_reports=2)
    with opened_store(quick) as one:
        one.archive.save(named("20260101T000000Z-job"), "", {})
        mine = next(store.folder.iterdir())
        deep(mine)
        other = mine.rename(mine.with_name("20200101T000000Z-old"))
        for number in range(3):
            one.archive.save(named(make_id(time.time() - 60 * number, "job")), "", {})
            one.archive.prune()
        assert one.worker is not None
        pid = one.worker.pid
        for _ in range(60):  # a pruning takes a second: a busy machine needs several
            one.archive.prune()
            if not other.exists():
                break
        assert one.worker.pid == pid
    assert not other.exists()  # too old
    assert len(store.names()) == 3
    assert store.prune()
    assert len(store.names()) == 2


@contextmanager
def mounted_over(source: Path, place: Path) -> Iterator[None]:
    """The mount at `source` is at `place` as well, as its owner can have it there by fusermount."""
    above = f"{place}".partition("/reports/")[0]
    place.mkdir(exist_ok=True) if source.is_dir() else place.touch()
    subprocess.run(["mount", "--bind", str(source), str(place)], check=True)
    try:
        yield
    finally:
        for line in (
            Path("/proc/self/mountinfo").read_text().splitlines()
        ):  # it went where its folder went
            if line.split()[4].startswith(above):
                subprocess.run(["umount", "-l", line.split()[4]], check=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="root mounts")
@pytest.mark.parametrize("where", [".", "evidence", "new/below", "report.json", "new/file"])
def test_a_mount_in_a_report_that_never_answers_stops_no_other(tmp_path: Path, where: str) -> None:
    """An owner may mount a filesystem of his own (FUSE) on what is his; where the node lets others into it, whoever touches it waits."""
    state = tmp_path / "state"
    state.mkdir()
    store = ReportStore(state, max_reports=2)
    with hung_mount(tmp_path) as silent, opened_store(state) as one, ExitStack() as stack:
        (silent.source / "file").write_text("{}")
        mine = "20200101T000000Z-mine"
        one.archive.save(named(mine), "", {})
        place = store.folder / mine / where
        place.parent.mkdir(exist_ok=True)
        a_file = "." in place.name[1:] or place.name == "file"
        stack.enter_context(mounted_over(silent.target / ("file" if a_file else ""), place))
        silent.hang()
        stack.callback(silent.recover)
        done: list[str] = []

        def others() -> None:
            for number in range(4):
                made = named(make_id(time.time() - 60 * number, "job"))
                one.archive.save(made, "", {})
                one.archive.prune()
                done.append(made.id)
            with suppress(OSError):  # its own owner's may fail: he has the mount
                one.archive.save(named(mine), "", {})

        worker = threading.Thread(target=others, daemon=True)
        worker.start()
        wait_until(lambda: len(done) == 4, 30)
        assert set(store.names()) - {mine} <= set(done)
        listed = {entry.id: entry for entry in store.list()}
        assert not any(listed[name].broken for name in done if name in listed)


def test_a_report_whose_owner_made_it_deep_is_replaced(quick: Path) -> None:
    store = ReportStore(quick)
    folder = store.save(named("20260101T000000Z-job"), "", {})
    deep(folder)
    deep(folder / "evidence")
    store.save(named("20260101T000000Z-job"), "new", {})
    assert (folder / "report.html").read_text() == "new"
    assert not (folder / "d").exists()
    assert [one.name for one in store.folder.iterdir()] == [folder.name]


def test_a_temporary_folder_that_is_too_much_for_one_removal_is_out_of_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ReportStore(tmp_path)
    made = named("20260101T000000Z-job")
    left = store.folder / f".tmp-{os.getpid()}-{made.id}"
    left.mkdir(parents=True)
    for number in range(150):
        (left / f"{number}").touch()
    monkeypatch.setattr(
        "mldebug.incidents.report_store.remove_tree",
        lambda path, seconds=60.0: remove_tree(path, 100, seconds),
    )
    store.save(made, "", {})
    assert store.names() == (made.id,)
    (aside,) = store.folder.glob(".tmp-*")
    os.utime(aside, (0, 0))
    while aside.exists():
        store.prune()
        if aside.exists():
            os.utime(aside, (0, 0))


def test_an_error_of_ours_is_an_answer_and_the_next_order_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RecursionError("maximum recursion depth exceeded")

    keeping = StateServer()
    monkeypatch.setitem(keeping._orders, PruneReports, broken)
    monkeypatch.setattr(keeping, "_check_folder", lambda: None)
    reply, _ = answer(keeping, PruneReports())
    assert reply.defect.startswith("RecursionError")


def test_pruning_that_fails_holds_no_report_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []
    with opened_store(tmp_path) as one:

        def fails() -> None:
            raise OSError(5, "Input/output error")

        one.archive.prune = fails  # type: ignore[method-assign]
        for number in range(5):
            one.report(
                f"r{number}", lambda number=number: done.append(f"r{number}"), "aaaa1111", 2001
            )  # type: ignore[misc]
            one.prune()
        wait_until(lambda: one.writer.idle)
        assert one.states()[0].success
    assert done == [f"r{number}" for number in range(5)]
    assert "no report was removed" in caplog.text


def test_a_state_server_that_dies_again_and_again_is_started_again(tmp_path: Path) -> None:
    with opened_store(tmp_path) as one:
        for number in range(5):
            wait_until(lambda: one.worker is not None and one.worker.pid is not None)
            assert one.worker is not None
            assert one.worker.pid is not None  # told by the helper, a moment after the start
            os.kill(one.worker.pid, signal.SIGKILL)
            one.keep(f"job{number}", StallMemory(run=f"job{number}"), None)
            wait_until(lambda: one.writer.idle)
    with opened_store(tmp_path) as two:
        assert len(two.found()) == 5


# --- databases -----------------------------------------------------------------------------------

ODD = {
    "other columns": "CREATE TABLE runs (run TEXT PRIMARY KEY, words TEXT)",
    "one column more": "CREATE TABLE ends (job_id TEXT PRIMARY KEY, told BLOB NOT NULL, more TEXT NOT NULL)",
    "a view": "CREATE VIEW memos AS SELECT 1 AS name, 2 AS told",
    "an index": "CREATE TABLE x (y); CREATE INDEX leftovers ON x (y)",
    "newer": "PRAGMA user_version = 7",
}


def database(folder: Path, script: str) -> None:
    link = sqlite3.connect(folder / "agent.sqlite")
    link.executescript(script)
    link.commit()
    link.close()


@pytest.mark.parametrize("script", ODD.values(), ids=ODD.keys())
def test_a_database_of_another_shape_is_set_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, script: str
) -> None:
    """It was said to be an Input/output error, and the agent had no memory and no socket."""
    database(tmp_path, script)
    with opened_store(tmp_path) as one:
        assert one.opened
        one.keep("job", StallMemory(run="job"), None)
    assert "is of another schema" in caplog.text
    assert (tmp_path / "agent.sqlite.broken").exists()
    with opened_store(tmp_path) as two:
        assert two.memory("job") == StallMemory(run="job")


def test_a_row_of_odd_values_does_not_hide_the_others(tmp_path: Path) -> None:
    with opened_store(tmp_path) as one:
        one.keep("job", StallMemory(run="job"), None)
        one.remember("memo", b"1")
    database(
        tmp_path,
        "INSERT INTO runs (job_id, memory) VALUES (x'ff', 'x'); INSERT INTO runs (job_id, memory) VALUES (NULL, '{}');"
        "INSERT INTO memos VALUES (x'00', 7); INSERT INTO leftovers VALUES ('a', 'b', x'00');"
        "INSERT INTO ends VALUES (NULL, 'x');",
    )
    with opened_store(tmp_path) as two:
        assert set(two.found()) == {"job"}
        assert two.memo("memo") == b"1"
        assert two.leftovers == ()


def test_the_release_before_has_the_same_tables(tmp_path: Path) -> None:
    with opened_store(tmp_path) as one:
        one.keep("job", StallMemory(run="job"), None)
    database(tmp_path, "PRAGMA user_version = 0")
    with opened_store(tmp_path) as two:
        assert set(two.found()) == {"job"}
    link = sqlite3.connect(tmp_path / "agent.sqlite")
    assert link.execute("PRAGMA user_version").fetchone() == (1,)
    link.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="root mounts")
def test_what_its_owner_has_mounted_on_a_report_stays_and_nothing_there_is_touched(
    tmp_path: Path,
) -> None:
    """A removal goes around it, and is whole once it is gone; a report under that name is not replaced, which is no trouble of the disk."""
    store, mine = ReportStore(tmp_path / "state"), "20200101T000000Z-mine"
    folder = store.save(named(mine), "", {})
    other = tmp_path / "other"
    other.mkdir()
    (other / "kept").write_text("x")
    for place in (folder / "evidence", folder):
        with mounted_over(other, place):
            assert not remove_tree(folder)
            assert folder_size(place) == 0
            store.save(named(mine), "", {})
        assert (other / "kept").read_text() == "x"
    assert store.names() == (mine,)
    store.remove(mine)
    assert store.names() == ()
