"""Learned places, earlier saves and progress: what the main loop makes of the looks, also after a restart."""

import os
import queue
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from mldebug.config.schema import Config
from mldebug.config.storage import CheckpointsConfig
from mldebug.core.model import Job, NodeCapture, RankIdentity
from mldebug.stall.signals import RankLook, RunLook
from mldebug.storage.checkpoints.state import SeriesState
from mldebug_agents.agent.monitor_wiring import checkpoint_monitor
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.storage.checkpoints.monitor import CheckpointMonitor
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import Unreadable
from mldebug_agents.system.spawn import Spawner
from mldebug_agents.system.workers import Result
from mldebug_agents.watch.job_watch import JobLook

WRITER = """
import os, sys, time
os.makedirs("ckpt/step_7")
file = open("ckpt/step_7/__0_0.distcp", "wb", buffering=0)
print("open", flush=True)
for line in sys.stdin:
    file.write(bytes(4096))
    print("written", flush=True)
"""


class Store:
    """A ledger in memory."""

    opened = True

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def memo(self, name: str) -> bytes:
        return self.kept.get(name, b"")

    def remember(self, name: str, data: bytes) -> None:
        self.kept[name] = data

    def memos(self, beginning: str) -> tuple[str, ...]:
        return tuple(self.kept)


class Setting:
    """A board with a real reader, beside one real process that writes a save."""

    def __init__(self, folder: Path, reader: Reader) -> None:
        self.folder = folder
        self.store = Store()
        self.inbox: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
        self.context: Any = SimpleNamespace(host=Host(), reader=reader)
        self.settings = CheckpointsConfig(interval=2.0, settle=5.0)
        self.board = self.new_board()
        self.process = subprocess.Popen(
            [sys.executable, "-c", WRITER], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )  # fmt: skip
        self.wait_for_word("open")

    def new_board(self) -> CheckpointMonitor:
        return checkpoint_monitor(
            Config(checkpoints=self.settings), self.context, self.store, self.inbox
        )

    def wait_for_word(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{word}\n"

    def write(self) -> None:
        assert self.process.stdin is not None
        print("go", file=self.process.stdin, flush=True)
        self.wait_for_word("written")

    def runs(self, id: str = "r1") -> dict[str, Any]:
        rank = RankIdentity(rank=0, world_size=1, pid=self.process.pid)
        job = Job(
            id=id,
            name="train.py",
            launcher="x",
            uid=os.getuid(),
            ranks=(rank,),
            started_at=time.time(),
        )
        return {id: SimpleNamespace(job=job, last_look=None)}

    def look(self, runs: dict[str, Any]) -> None:
        """Have the board look once, now."""
        self.board._due = self.board._store_due = 0.0
        self.board.tick(runs, Discovery(), self.settings)
        result = self.inbox.get(timeout=30)
        assert result is not None
        self.board.on_result(result, runs)

    @property
    def state(self) -> SeriesState:
        (one,) = self.board.states()
        return one


@pytest.fixture
def setting(tmp_path: Path) -> Iterator[Setting]:
    with Spawner() as spawner, Reader(spawner) as reader:
        it = Setting(tmp_path, reader)
        yield it
        it.process.kill()
        it.process.communicate()


def job_look(id: str = "r1") -> JobLook:
    job = Job(id=id, name="train.py", launcher="x")
    return JobLook(job=job, look=RunLook(at=time.monotonic(), run=id, ranks=(RankLook(rank=0),)))


def test_a_place_is_learned_from_an_open_file_and_growth_is_progress(setting: Setting) -> None:
    runs = setting.runs()
    setting.look(runs)
    state = setting.state
    assert (state.folder, state.series) == (f"{setting.folder}/ckpt", "step_#")
    assert state.newest is not None
    assert str(state.newest.state) == "writing"
    setting.write()
    setting.look(runs)
    grown = setting.board.complete(job_look()).look.checkpoint_grew_at
    assert grown is not None
    assert abs(grown - time.monotonic()) < 20
    assert setting.board.complete(job_look("another")).look.checkpoint_grew_at is None
    setting.look(runs)
    assert setting.board.complete(job_look()).look.checkpoint_grew_at == pytest.approx(
        grown, abs=0.5
    )


def test_a_capture_says_what_would_be_lost(setting: Setting) -> None:
    setting.look(setting.runs())
    capture = NodeCapture(node="n", taken_at=0.0, job=Job(id="r1", name="x", launcher="x"))
    assert setting.board.capture(capture).checkpoints.startswith("no complete checkpoint in")


def test_a_learned_place_survives_a_restart_of_the_agent(setting: Setting) -> None:
    setting.look(setting.runs())
    setting.look(setting.runs())
    setting.process.kill()
    setting.process.wait()
    setting.board = setting.new_board()
    setting.look(setting.runs())
    assert setting.state.folder == f"{setting.folder}/ckpt"


def test_the_same_job_that_comes_again_takes_up_what_was_known(setting: Setting) -> None:
    setting.look(setting.runs())
    setting.board.tick({}, Discovery(), setting.settings)
    assert setting.board.states() == ()
    stranger = setting.runs("r3")
    stranger["r3"].job = msgspec.structs.replace(stranger["r3"].job, name="other.py")
    setting.board.tick(stranger, Discovery(), setting.settings)
    assert setting.board.states() == ()
    setting.board.tick(setting.runs("r2"), Discovery(), setting.settings)
    assert (setting.state.run, setting.state.series) == ("r2", "step_#")


def test_a_place_of_the_configuration_needs_no_job(setting: Setting) -> None:
    setting.settings = CheckpointsConfig(paths=(f"{setting.folder}/c*/step_*",))
    setting.look({})
    state = setting.state
    assert (state.run, state.folder, state.series) == ("", f"{setting.folder}/ckpt", "step_*")


def test_a_place_that_the_configuration_names_no_more_is_told_no_more(setting: Setting) -> None:
    setting.settings = CheckpointsConfig(paths=(f"{setting.folder}/c*/step_*",))
    setting.look({})
    setting.settings = CheckpointsConfig()
    setting.look(setting.runs())
    assert [one.run for one in setting.board.states()] == ["r1"]


def test_a_place_above_which_nothing_answers_is_not_forgotten(setting: Setting) -> None:
    setting.settings = CheckpointsConfig(paths=(f"{setting.folder}/c*/step_*",))
    setting.look({})
    listing = Reader.list_folder

    def hung(self: Reader, path: str, **more: Any) -> Any:
        stuck = Unreadable("no answer", stuck=True)
        return stuck if path.endswith("/") else listing(self, path, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Reader, "list_folder", hung)
        setting.look({})
        assert setting.state.folder == f"{setting.folder}/ckpt"


def test_what_was_not_looked_at_for_long_is_not_told_as_if_it_were_there(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting.look(setting.runs())
    assert setting.state.trouble == ""
    later = time.time() + 300.0
    monkeypatch.setattr("mldebug_agents.storage.checkpoints.monitor.time.time", lambda: later)
    assert setting.state.trouble == "not looked at for 5 min"
    assert setting.state.lost_seconds is None


def test_a_store_of_another_version_is_no_reason_to_stop(setting: Setting) -> None:
    setting.store.kept["saves"] = b'[{"run": 5}]'
    setting.board = setting.new_board()
    setting.look(setting.runs())
    assert setting.state.series == "step_#"
