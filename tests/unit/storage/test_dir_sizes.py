"""Sizes of trees: whatever happens in them, the sums are those of `du` in the end."""

import os
import random
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from mldebug.storage.dir_sizes import (
    LOST,
    PARTLY,
    RESCANNED,
    STUCK,
    WATCHED,
    DirSize,
    dir_size_lines,
)
from mldebug.storage.filesystems.state import CollectorState
from mldebug_agents.agent.children import count_directories
from mldebug_agents.storage.dir_sizes import tree as looking
from mldebug_agents.storage.dir_sizes import updater as keeping
from mldebug_agents.storage.dir_sizes.child import serve
from mldebug_agents.storage.dir_sizes.collector import DirSizeClient
from mldebug_agents.storage.dir_sizes.collector import _measures as measures_of
from mldebug_agents.storage.dir_sizes.counts import FolderEntries
from mldebug_agents.storage.dir_sizes.inotify import InotifyQueue
from mldebug_agents.storage.dir_sizes.messages import NAME, DirSizeRequest
from mldebug_agents.storage.dir_sizes.updater import DirSizeUpdater
from mldebug_agents.system.child.leftovers import Leftover
from mldebug_agents.system.spawn import Spawner
from shared.storage.trees import Chaos, du
from shared.system.hung import hung_mount
from shared.system.patience import PATIENCE


def turn_until(updater_of: DirSizeUpdater, wanted: Callable[[DirSize], bool], seconds: float = 60.0) -> DirSize:  # fmt: skip
    """Let it work until its state is as wanted."""
    deadline = time.monotonic() + seconds * PATIENCE
    while not wanted(state := updater_of.state()):
        assert time.monotonic() < deadline, state
        updater_of.tick(0.25)
        time.sleep(min(0.05, updater_of.due(time.monotonic())))
    return state


def counted(updater_of: DirSizeUpdater) -> DirSize:
    """The state after the first count."""
    return turn_until(updater_of, lambda state: state.inodes is not None)


def as_du(root: Path) -> Callable[[DirSize], bool]:
    """Does it say what `du` says?"""
    wanted = du(root)
    return lambda state: (state.inodes, state.bytes) == wanted


@pytest.fixture(params=["tmpfs", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    if request.param == "disk":
        yield tmp_path
        return
    made = Path(f"/dev/shm/mldebug-trees-{os.getpid()}")
    made.mkdir()
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def root(place: Path) -> Path:
    made = place / "tree"
    made.mkdir()
    (place / "outside").mkdir()
    return made


@pytest.fixture
def updater_of(root: Path) -> Iterator[DirSizeUpdater]:
    one = DirSizeUpdater(DirSizeRequest(path=str(root)))
    yield one
    one.close()


@pytest.fixture(autouse=True)
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Filesystems give blocks late; here they are told to do it at once."""
    monkeypatch.setattr(looking, "SETTLES_AFTER", 2.0)
    monkeypatch.setattr(keeping, "PAUSE", 0.05)
    monkeypatch.setattr(keeping, "SHARE", 0.9)
    monkeypatch.setattr(keeping, "DOUBTS", 0.5)
    monkeypatch.setattr(keeping, "DOUBT_STORM", 3.0)


def lose_events(root: Path) -> None:
    """More than the queue takes, while nobody reads it."""
    with open("/proc/sys/fs/inotify/max_queued_events") as file:
        most = int(file.read())
    one, two = root / "one", root / "two"
    one.touch()
    two.touch()
    for number in range(most + 10):
        (one if number % 2 else two).chmod(0o600)


def rampage(root: Path, updater_of: DirSizeUpdater, seconds: float, seed: int) -> int:
    """Anything at random, with lost events in between; returns how often the sums were compared."""
    chaos = Chaos(root, root.parent / "outside", seed)
    dice = random.Random(seed)
    until = time.monotonic() + seconds
    compared = 0
    while time.monotonic() < until or not compared:
        for _ in range(dice.choice((50, 400, 1500))):
            chaos.step()
            if dice.random() < 0.02:
                updater_of.tick(0.02)
        if dice.random() < 0.3:
            lose_events(root)
        if not root.is_relative_to("/dev/shm"):  # it would wait for the writes of the whole machine
            os.sync()
        turn_until(updater_of, as_du(root))
        compared += 1
    return compared


def test_random_changes_and_lost_events_end_in_the_sums_of_du(
    root: Path, updater_of: DirSizeUpdater
) -> None:
    counted(updater_of)
    lose_events(root)
    turn_until(updater_of, lambda state: state.overflows > 0 and state.how == WATCHED)
    assert rampage(root, updater_of, 5.0, seed=7)
    assert updater_of.state().rescans


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_ten_minutes_of_random_changes(root: Path, updater_of: DirSizeUpdater) -> None:
    counted(updater_of)
    assert rampage(root, updater_of, 300.0, seed=time.time_ns()) > 10


def test_a_file_of_several_names_counts_once(root: Path, updater_of: DirSizeUpdater) -> None:
    (root / "a").mkdir()
    (root / "a" / "file").write_bytes(b"x" * 100_000)
    (root.parent / "outside" / "other").write_bytes(b"y" * 50_000)
    os.sync()
    counted(updater_of)
    (root / "b").mkdir()
    os.link(root / "a" / "file", root / "b" / "same")  # no event tells that the first has two names
    os.link(root.parent / "outside" / "other", root / "b" / "half")
    turn_until(updater_of, as_du(root))
    (root / "a" / "file").unlink()
    turn_until(updater_of, as_du(root))
    (root / "b" / "same").unlink()
    turn_until(updater_of, as_du(root))


def test_a_folder_that_moves_is_not_counted_again(
    root: Path, updater_of: DirSizeUpdater, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("x/y/1", "x/y/2", "x/z/3"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / "to").mkdir()
    counted(updater_of)
    watched: list[int] = []
    monkeypatch.setattr(InotifyQueue, "add", lambda _, fd: watched.append(fd) or 0)
    (root / "x").rename(root / "to" / "here")
    (root / "to" / "here" / "y" / "new").touch()
    state = turn_until(updater_of, as_du(root))
    assert (watched, state.folders) == ([], 5)


def test_a_folder_that_leaves_takes_its_watches_along(
    root: Path, updater_of: DirSizeUpdater
) -> None:
    (root / "x" / "y").mkdir(parents=True)
    counted(updater_of)
    (root / "x").rename(root.parent / "outside" / "x")
    state = turn_until(updater_of, as_du(root))
    assert state.folders == 1


def test_the_length_of_sparse_files_is_told_apart(root: Path, updater_of: DirSizeUpdater) -> None:
    with (root / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    state = counted(updater_of)
    assert state.apparent_bytes == 1 << 40
    assert (state.bytes or 0) < 1 << 20


def test_without_watches_the_rest_is_counted_anew_and_says_so(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcd":
        (root / name).mkdir()
    add, given = InotifyQueue.add, iter(range(2))

    def scarce(self: InotifyQueue, fd: int) -> int:
        if next(given, None) is None:
            raise OSError(28, "No space left on device")
        return add(self, fd)

    monkeypatch.setattr(InotifyQueue, "add", scarce)
    monkeypatch.setattr(keeping, "STORM", 1.0)
    keeper = DirSizeUpdater(DirSizeRequest(path=str(root), rescan=0.3))
    state = counted(keeper)
    assert state.how == PARTLY
    assert (
        "max_user_watches is used up: 3 of its 5 folders are counted anew every 300 ms" in state.why
    )
    for name in "abcd":
        (root / name / "file").touch()
    turn_until(keeper, as_du(root))
    keeper.close()


def test_on_a_filesystem_of_a_server_everything_is_counted_anew(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "filesystem", lambda _: "nfs4")
    monkeypatch.setattr(keeping, "STORM", 1.0)
    keeper = DirSizeUpdater(DirSizeRequest(path=str(root), rescan=0.3))
    state = counted(keeper)
    assert (state.how, keeper.fd) == (RESCANNED, None)
    assert (
        state.why == "nfs4 does not tell what other machines write: it is counted anew every 300 ms"
    )
    (root / "file").touch()
    turn_until(keeper, as_du(root))
    keeper.close()


def test_what_may_not_be_read_makes_a_lower_bound(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "closed").mkdir()
    (root / "closed" / "file").touch()
    scandir = os.scandir
    inode = (root / "closed").stat().st_ino

    def refusing(fd: int) -> "Iterator[os.DirEntry[str]]":
        if refused and os.fstat(fd).st_ino == inode:
            raise PermissionError(13, "Permission denied")
        return scandir(fd)

    refused = True
    monkeypatch.setattr(os, "scandir", refusing)
    keeper = DirSizeUpdater(DirSizeRequest(path=str(root)))
    state = counted(keeper)
    assert (state.inodes, state.unread) == (2, 1)
    [(line, bad)] = dir_size_lines((state,), time.time())
    assert bad
    assert "at least" in line
    refused = False
    (root / "closed").chmod(0o755)
    state = turn_until(keeper, lambda state: not state.lower_bound)
    assert state.inodes == 3
    keeper.close()


def test_no_more_inodes_than_allowed(root: Path) -> None:
    for name in range(50):
        (root / f"{name}").mkdir()
    keeper = DirSizeUpdater(DirSizeRequest(path=str(root), max_inodes=10))
    state = counted(keeper)
    assert state.lower_bound
    assert "more than 10 inodes" in state.why
    keeper.close()


def test_no_more_files_of_one_folder_than_allowed(root: Path) -> None:
    for name in range(50):
        (root / f"{name}").touch()
    keeper = DirSizeUpdater(DirSizeRequest(path=str(root), max_inodes=10))
    state = counted(keeper)
    assert state.inodes == 10
    assert (state.lower_bound, "more than 10 inodes" in state.why) == (True, True)
    (root / "new").touch()
    (root / "0").unlink()
    state = turn_until(keeper, lambda state: state.inodes is not None)
    assert (state.inodes or 0) <= 10
    keeper.close()


def test_no_more_folders_and_levels_than_allowed(root: Path) -> None:
    (root / "a/b/c/d").mkdir(parents=True)
    deep = DirSizeUpdater(DirSizeRequest(path=str(root), max_depth=2))
    state = counted(deep)
    assert (state.inodes, state.folders) == (3, 3)
    assert "more than 2 levels of folders" in state.why
    deep.close()
    for name in range(5):
        (root / f"{name}").mkdir()
    wide = DirSizeUpdater(DirSizeRequest(path=str(root), max_folders=4))
    state = counted(wide)
    assert (state.folders, "more than 4 folders" in state.why) == (4, True)
    wide.close()


def test_a_root_that_is_replaced_is_counted_from_the_start(
    root: Path, updater_of: DirSizeUpdater, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "RETRY", 0.2)
    counted(updater_of)
    root.rename(root.parent / "old")
    state = turn_until(updater_of, lambda state: state.inodes is None)
    turn_until(updater_of, lambda state: "No such file" in state.why)
    root.mkdir()
    (root / "new").touch()
    state = turn_until(updater_of, lambda state: state.inodes is not None)
    assert state.inodes == 2


def test_symlink_loops_are_not_followed(root: Path, updater_of: DirSizeUpdater) -> None:
    (root / "loop").symlink_to(root)
    (root / "self").symlink_to("self")
    state = counted(updater_of)
    assert (state.inodes, state.bytes) == du(root)


def test_below_a_root_of_the_node_links_mean_what_they_mean_there(root: Path) -> None:
    """As in a container that has the node's files below /host: `/scratch` is a link to `/data/big` of the node."""
    data = root / "data" / "big"
    data.mkdir(parents=True)
    (data / "file").write_bytes(b"x" * 10_000)
    (root / "scratch").symlink_to("/data/big")
    (root / "out").symlink_to("../../../../../../data/big/..")
    for path, wanted in (("/scratch", data), ("/data/big", data), ("/out", root / "data")):
        keeper = DirSizeUpdater(DirSizeRequest(path=path, root=str(root)))
        state = counted(keeper)
        assert (state.path, state.inodes, state.bytes) == (path, *du(wanted))
        (data / f"more{path.count('/')}").touch()
        turn_until(keeper, as_du(wanted))
        assert state.how == WATCHED
        keeper.close()
    keeper = DirSizeUpdater(DirSizeRequest(path="/etc/hostname", root=str(root)))
    turn_until(keeper, lambda state: "No such file" in state.why)
    keeper.close()


def test_lost_events_are_told_until_all_is_counted_anew(
    root: Path, updater_of: DirSizeUpdater
) -> None:
    counted(updater_of)
    lose_events(root)
    state = turn_until(updater_of, lambda state: state.overflows > 0)
    assert state.how in (LOST, WATCHED)
    turn_until(updater_of, lambda state: state.how == WATCHED and state.rescans > 0)


def test_entries_are_taken_out_in_any_order() -> None:
    entries = FolderEntries()
    for key in range(10):
        entries.append(key, 100 + key, key, key)
    places = entries.places({0, 3, 8, 9, 77})
    assert set(places) == {0, 3, 8, 9}
    entries.remove(places.values())
    assert sorted(zip(entries.keys, entries.inodes, strict=True)) == [
        (key, 100 + key) for key in (1, 2, 4, 5, 6, 7)
    ]


# --- the child, as the agent holds it ----------------------------------------------------------------


class Hands:
    """Starts children in threads; those that were let go stand among what is left over."""

    def __init__(self) -> None:
        self.leftovers: tuple[Leftover, ...] = ()
        self.started: list[socket.socket] = []
        self.threads: list[threading.Thread] = []
        self.serve: Callable[[socket.socket], None] = serve

    def fork_worker(self, name: str, leave: float = 0.0) -> "Hands":
        assert name == "trees"
        self.socket, theirs = socket.socketpair()
        self.started.append(theirs)
        thread = threading.Thread(target=self._run, args=(theirs,), daemon=True)
        thread.start()
        self.threads.append(thread)
        return self

    def join(self) -> None:
        """Wait until all have ended."""
        for thread in self.threads:
            thread.join(60)

    def _run(self, link: socket.socket) -> None:
        with link:
            self.serve(link)

    def abandon(self, worker: object, words: str) -> None:
        self.leftovers = (Leftover(1, 2, words),)
        self.socket.close()

    def kill(self) -> None:
        self.socket.close()


def client_until(desk: DirSizeClient, wanted: Callable[[tuple[DirSize, ...]], bool]) -> tuple[DirSize, ...]:  # fmt: skip
    deadline = time.monotonic() + 60 * PATIENCE
    while not wanted(desk.states):
        assert time.monotonic() < deadline, desk.states
        desk.tick()
        time.sleep(0.02)
    return desk.states


def test_a_tree_that_does_not_answer_is_left_alone_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
    hangs, turn = threading.Event(), DirSizeUpdater.tick

    def hanging(self: DirSizeUpdater, seconds: float) -> None:
        if self.order.path.endswith("bad") and not hangs.wait(60):
            return
        turn(self, seconds)

    monkeypatch.setattr(DirSizeUpdater, "tick", hanging)
    hands = Hands()
    orders = [DirSizeRequest(path=str(tmp_path / name)) for name in ("good", "bad")]
    desk = DirSizeClient(hands, orders, patience=1.0)
    good, bad = client_until(
        desk, lambda states: states[1].how == STUCK and states[0].inodes is not None
    )
    assert (good.inodes, good.how) == (1, WATCHED)
    [_, (line, wrong)] = dir_size_lines((good, bad), time.time())
    assert wrong
    assert "does not answer" in line
    hangs.set()
    hands.leftovers = ()
    client_until(desk, lambda states: states[1].inodes == 1)
    desk.close()
    hands.join()


def test_a_file_system_whose_server_stops_is_named_and_the_other_trees_go_on(tmp_path: Path) -> None:  # fmt: skip
    """A real FUSE mount, and a real child that is left in the kernel until the server goes on."""
    good = tmp_path / "good"
    good.mkdir()
    with hung_mount(tmp_path) as mount, Spawner({NAME: count_directories}) as spawner:
        paths = [str(mount.target / "tree"), str(good)]
        (mount.source / "tree").mkdir()
        (mount.source / "tree" / "file").touch()
        desk = DirSizeClient(
            spawner, [DirSizeRequest(path=path, rescan=0.2) for path in paths], patience=2.0
        )
        bad, _ = client_until(desk, lambda states: None not in (states[0].inodes, states[1].inodes))
        assert (bad.how, bad.inodes) == (RESCANNED, 2)
        mount.hang()
        bad, _ = client_until(desk, lambda states: states[0].how == STUCK and states[1].inodes == 1)
        assert bad.inodes is None
        assert [one.words for one in spawner.leftovers] == [f"trees: {paths[0]}"]
        (good / "new").touch()
        client_until(desk, lambda states: states[0].how == STUCK and states[1].inodes == 2)
        (mount.source / "tree" / "more").touch()
        mount.recover()
        client_until(desk, lambda states: states[0].inodes == 3)
        assert not spawner.leftovers
        desk.close()


def test_a_directory_more_leaves_what_is_counted_already_as_it_is(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    hands = Hands()
    orders = [DirSizeRequest(path=str(tmp_path / name)) for name in ("one", "two")]
    desk = DirSizeClient(hands, orders[:1])
    (first,) = client_until(desk, lambda states: states[0].inodes == 1)
    desk.count_only(orders)
    assert desk.states[0] == first
    found = client_until(desk, lambda states: states[1].inodes == 1)
    assert (found[0].rescans, found[0].count_seconds) == (0, first.count_seconds)
    desk.count_only(orders[1:])
    (tmp_path / "two" / "new").touch()
    assert len(client_until(desk, lambda states: states[0].inodes == 2)) == 1
    assert len(hands.started) == 1
    desk.close()
    hands.join()


def test_the_child_of_an_earlier_agent_is_remembered(tmp_path: Path) -> None:
    hands = Hands()
    hands.leftovers = (Leftover(1, 2, f"trees: {tmp_path}"),)
    desk = DirSizeClient(hands, [DirSizeRequest(path=str(tmp_path))])
    for _ in range(3):
        desk.tick()
    assert desk.states[0].how == STUCK
    assert not hands.started


def test_a_child_that_dies_is_started_again(tmp_path: Path) -> None:
    hands, now = Hands(), [100.0]
    hands.serve = lambda link: link.close()
    desk = DirSizeClient(hands, [DirSizeRequest(path=str(tmp_path))], clock=lambda: now[0])
    for _ in range(50):
        desk.tick()
        time.sleep(0.01)
    assert len(hands.started) == 1
    now[0] += 61
    hands.serve = serve
    client_until(desk, lambda states: states[0].inodes == 1)
    desk.close()
    hands.join()


def test_what_the_part_tells_survives_the_journey_to_status() -> None:
    state = DirSize(path="/data", how=WATCHED, inodes=3, bytes=4096, apparent_bytes=7, at=1.5)
    measures = tuple(measures_of(state))
    sent = msgspec.json.encode(CollectorState(name="trees", at=1.0, measures=measures))
    assert msgspec.json.decode(sent, type=CollectorState).measures == measures
    assert [one.labels for one in measures if one.metric == "mldebug_tree_state" and one.value] == [
        ("/data", WATCHED)
    ]
