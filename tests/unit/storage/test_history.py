"""What is remembered of a filesystem: over a restart, over a clock that is set, and over a file that is closed again."""

import os
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mldebug.config.schema import Config
from mldebug.config.storage import CheckpointsConfig
from mldebug.storage.filesystems.forecast import forecast
from mldebug.storage.filesystems.history import (
    KEPT,
    MOST_STORED,
    FilesystemHistory,
    decode_histories,
    encode_histories,
)
from mldebug_agents.agent.node_tools import NodeTools, open_tools
from mldebug_agents.state.key_value_store import KeyValueStore
from mldebug_agents.storage.filesystems.collector import FilesystemCollector
from mldebug_agents.storage.monitor import MEMO, StorageMonitor
from mldebug_agents.system.workers import Result
from shared.storage.nodetools import with_config
from unit.storage.test_filesystems import MIB, job, kinds, mounted, part, row

KEY = ("8:1", "/")


@pytest.fixture
def tools() -> Iterator[NodeTools]:
    with open_tools(Config()) as one:
        yield one


def grown(looks: int, rate: float = 1e6, begin: float = 1e9) -> FilesystemHistory:
    past = FilesystemHistory("/dev/sda1")
    for look in range(looks):
        past.add(begin + 30 * look, 1e12 - rate * 30 * look, 1e6 - look)
    return past


def test_a_restart_foretells_the_same_as_before() -> None:
    before = grown(KEPT + 100)
    last = before.left[-1]
    data = encode_histories([(KEY, before)])
    assert len(data) < 20_000
    (found,) = decode_histories(data).values()
    after = FilesystemHistory("/dev/sda1")
    after.recall(last.at + 600, found)
    after.add(last.at + 600, -last.used - 600e6, 1.0)
    left = -after.left[-1].used
    assert [one.at for one in after.left] == sorted(one.at for one in after.left)
    assert forecast(tuple(after.left), left).seconds_left == pytest.approx(left / 1e6, rel=0.02)


def test_what_is_stored_is_bounded_and_garbage_is_nothing() -> None:
    many = [((f"0:{number}", "/"), grown(10, rate=number)) for number in range(100)]
    kept = decode_histories(encode_histories(many))
    assert len(kept) == MOST_STORED
    assert ("0:99", "/", "/dev/sda1") in kept  # that which changes most
    for garbage in (b"", b"{}", b"[1]", b"\xff", b'[{"device": 1}]'):
        assert decode_histories(garbage) == {}


def test_what_is_older_than_a_day_is_not_recalled() -> None:
    (found,) = decode_histories(encode_histories([(KEY, grown(10))])).values()
    after = FilesystemHistory()
    after.recall(1e9 + 200_000, found)
    assert not after.left


def test_a_clock_that_is_set_back_begins_the_series_anew() -> None:
    past = grown(100)
    for look in range(20):
        past.add(5e8 + 30 * look, 1e11 - 1e6 * 30 * look, 1.0)
    assert len(past.left) == 20
    assert forecast(tuple(past.left), 1e10).seconds_left == pytest.approx(1e4, rel=0.01)


def test_an_agent_goes_on_where_the_one_before_ended(tools: NodeTools, tmp_path: Path) -> None:
    with mounted(tmp_path / "data", "size=64m") as folder, open(folder / "log", "wb") as file:
        first = part(tools, limits={str(folder): "0.99"})
        for look in range(12):
            file.write(bytes(2 * MIB))
            file.flush()
            first.look(1000.0 + 30 * look, [job()])
        second = part(tools, limits={str(folder): "0.99"})
        second.recall(first.memory())
        second.look(1000.0 + 30 * 12, [job()])
        assert kinds(second, folder) == {"full_soon"}
        assert row(second, folder)["full_seconds"] == pytest.approx(20 * 30, rel=0.2)
        os.ftruncate(file.fileno(), 0)


def test_what_a_rank_used_once_is_watched_while_it_lives(tools: NodeTools, tmp_path: Path) -> None:
    """A checkpoint is open for some seconds every half hour."""
    with mounted(tmp_path / "data", "size=64m") as folder:
        desk = part(tools)
        with open(folder / "save", "wb"):
            desk.look(1.0, [job()])
        desk.look(31.0, [job()])
        assert row(desk, folder)["ranks"] == 1
        desk.look(61.0, [])
        assert not [one for one in desk.status()["filesystems"] if one["mount"] == str(folder)]


def test_where_checkpoints_are_configured_is_watched(tools: NodeTools, tmp_path: Path) -> None:
    with mounted(tmp_path / "data", "size=64m") as folder:
        config = Config(checkpoints=CheckpointsConfig(paths=(f"{folder}/run-*/step-*",)))
        desk = FilesystemCollector(with_config(tools.context, config), tools.filesystem_probe)
        desk.look(1.0, [])
        assert row(desk, folder)["used_ratio"] == 0


class Drawer(KeyValueStore):
    """What a ledger keeps, once it is open."""

    def __init__(self) -> None:
        self.opened_now, self.reported = False, {MEMO: b""}

    @property
    def opened(self) -> bool:
        return self.opened_now

    def memo(self, name: str) -> bytes:
        return self.reported[name]

    def remember(self, name: str, data: bytes) -> None:
        self.reported[name] = data

    def memos(self, beginning: str) -> tuple[str, ...]:
        return tuple(self.reported)


def test_the_desk_keeps_it_once_the_state_dir_is_open(tools: NodeTools) -> None:
    inbox: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
    drawer, part = Drawer(), FilesystemCollector(tools.context, tools.filesystem_probe)
    part.look(1000.0, [job()])
    desk = StorageMonitor([part], drawer, inbox)
    for opened in (False, True):
        drawer.opened_now = opened
        desk._due["filesystems"] = 0.0
        desk.tick([job()])
        result = inbox.get(timeout=30)
        while desk._workers["filesystems"].busy:
            time.sleep(0.001)
        desk.on_result(result)
        assert bool(drawer.reported[MEMO]) == opened
    assert decode_histories(drawer.reported[MEMO])


def test_the_desk_asks_nothing_of_a_part_that_looks_again(
    tools: NodeTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next look had begun before the result of the last one was seen: `deque mutated during iteration` ended the agent."""
    inbox: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
    drawer, part, go = (
        Drawer(),
        FilesystemCollector(tools.context, tools.filesystem_probe),
        threading.Event(),
    )
    drawer.opened_now = True
    monkeypatch.setattr(part, "look", lambda now, jobs: go.wait(30))
    monkeypatch.setattr(part, "memory", lambda: b"told")
    desk = StorageMonitor([part], drawer, inbox)
    go.set()
    desk.tick([])
    first = inbox.get(timeout=30)
    go.clear()
    desk._due["filesystems"] = 0.0
    desk.tick([])
    assert first is not None
    desk.on_result(first)
    assert drawer.reported[MEMO] == b""
    go.set()
    second = inbox.get(timeout=30)
    assert second is not None
    desk.on_result(second)
    assert drawer.reported[MEMO] == b"told"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become nobody")
def test_a_job_whose_open_files_may_not_be_seen_is_a_gap(tools: NodeTools) -> None:
    desk = FilesystemCollector(tools.context, tools.filesystem_probe)
    os.seteuid(65534)
    try:
        desk.look(1.0, [job(1)])
    finally:
        os.seteuid(0)
    (gap,) = [one for one in desk.gaps() if "train" in one.what]
    assert gap.what == "filesystems of train, 1 of 1 ranks"
    assert "CAP_SYS_PTRACE" in gap.way_out
    assert [one.value for one in desk.samples() if one.metric == "mldebug_filesystem_unanswered"] == [len(desk.gaps())]  # fmt: skip


def test_a_clock_that_is_set_does_not_reach_the_parts(
    tools: NodeTools, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
    part = FilesystemCollector(tools.context, tools.filesystem_probe)
    looks: list[float] = []
    monkeypatch.setattr(part, "look", lambda now, jobs: looks.append(now))
    desk = StorageMonitor([part], Drawer(), inbox)
    real = time.time
    for step in (0.0, 1e6, -1e6):
        monkeypatch.setattr(time, "time", lambda step=step: real() + step)
        desk._due["filesystems"] = 0.0
        desk.tick([])
        result = inbox.get(timeout=30)
        assert result is not None
        assert result.value.at == pytest.approx(real() + step, abs=60)
        while desk._workers["filesystems"].busy:
            time.sleep(0.001)
    assert looks == sorted(looks)
    assert looks[-1] - looks[0] < 60
