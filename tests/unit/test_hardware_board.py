"""The main loop's side of the GPUs: when the agent lets go of them by itself, and when it takes them up again."""

import math
import queue
from pathlib import Path
from typing import Any

import pytest

from mldebug.config import Config
from mldebug.gpus.readings import GpuReading, NodeGpus, NodeWatch
from mldebug.health.components import State
from mldebug.model import Gap, Job, NodeCapture, RankIdentity
from mldebug.snapshot import Snapshot
from mldebug_agents.fakereader import FakeReader
from mldebug_agents.gpuchild.errors import GpusReleasedError
from mldebug_agents.hardware.board import Hardware
from mldebug_agents.hardware.desk import FOR_RESET
from mldebug_agents.hardware.reads import GpuNews, GpuOrder
from mldebug_agents.host import Host
from mldebug_agents.runner import Result
from mldebug_agents.sources.kernellog import KernelNews

HERE = "here"
NEW = "new"


class Source:
    """GPUs that remember what was asked of them; they are never read here."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.released_seconds = 0.0

    def watch(self) -> NodeWatch:
        raise GpusReleasedError("not here")

    def full(self) -> NodeGpus:
        raise GpusReleasedError("not here")

    def release(self, seconds: float) -> None:
        self.asked.append(seconds)
        self.released_seconds = seconds

    def let_go(self) -> bool:
        return True


class Ledger:
    """Remembers nothing."""

    opened = True

    def memo(self, name: str) -> bytes:
        return b""

    def memos(self, beginning: str) -> tuple[str, ...]:
        return ()

    def remember(self, name: str, told: bytes) -> None:
        """Nothing to do."""


class Run:
    """As much of a run as the board looks at."""

    class job:  # noqa: N801 - stands for an instance
        """Its job."""

        id = HERE
        ranks: tuple[RankIdentity, ...] = ()
        lost = ()


class Board:
    """A board with its source, and what it is told."""

    def __init__(self, root: Path) -> None:
        self.source = Source()
        self._config = Config()
        bench: Any = type("Bench", (), {})()
        bench.host, bench.reader, bench.node = Host(str(root)), FakeReader({}), "n1"
        ledger: Any = Ledger()
        self.hardware = Hardware.of(bench, ledger, queue.SimpleQueue(), self.source)
        self.runs: dict[str, Any] = {HERE: Run()}

    def told(self, full: NodeGpus) -> None:
        order = GpuOrder({})
        result = Result("gpus", order, GpuNews(full=full), None)
        self.hardware.told(result, [run.job for run in self.runs.values()], {}, self._config)

    def kernel(self, news: KernelNews) -> None:
        self.hardware.told(Result("kernel", None, news, None), [], {}, self._config)

    def failed(self, error: Exception, *, full: bool = False) -> None:
        result = Result("gpus", GpuOrder({} if full else None), None, error)
        self.hardware.told(result, [run.job for run in self.runs.values()], {}, self._config)

    def turn(self) -> None:
        self.hardware.turn(self.runs, 5.0, looked=False)

    def shown(self) -> Snapshot:
        return self.hardware.show(Snapshot(node="n1", at=1.0, started_at=0.0))

    def recovery(self) -> list[tuple[int | None, State]]:
        return [
            (one.gpu, one.state) for one in self.shown().health if one.component == "gpu_recovery"
        ]


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path)


def gpus(action: str = "reset", held: tuple[Any, ...] | None = ()) -> NodeGpus:
    sick = GpuReading(uuid="GPU-1", index=1, recovery_action=action, processes=held)
    return NodeGpus(at=1.0, gpus=(GpuReading(uuid="GPU-0", index=0, recovery_action="none", processes=()), sick))  # fmt: skip


def test_lost_kernel_records_are_told_in_status_and_report(board: Board) -> None:
    loss = Gap(what="lost kernel records", reason="7 records were overwritten")
    capture = NodeCapture(
        node="n1", job=Job(id=HERE, name="train", launcher="torchrun"), taken_at=1.0
    )
    board.kernel(KernelNews(loss=loss))

    assert board.shown().gaps == (loss,)
    assert board.hardware.capture(capture).gaps == (loss,)
    board.kernel(KernelNews())
    assert board.shown().gaps == ()


def test_it_lets_go_of_a_gpu_that_waits_for_its_reset_and_its_health_stays(board: Board) -> None:
    board.told(gpus())
    assert board.source.asked == [FOR_RESET]
    board.failed(GpusReleasedError("released"))
    shown = board.shown()
    assert (shown.gpus, shown.gpu_watch, shown.gpu_count) == (None, None, None)
    assert "the driver asks for a reset" in shown.gpus_released_why
    assert shown.gpus_released_until is not None
    assert board.recovery() == [(1, State.UNHEALTHY)]


@pytest.mark.parametrize("full", [gpus("none"), gpus("reboot"), gpus(held=None)])
def test_it_keeps_them_otherwise(board: Board, full: NodeGpus) -> None:
    board.told(full)
    assert board.source.asked == []


def test_a_new_run_has_them_read_again_and_they_are_kept_for_a_while(board: Board) -> None:
    board.told(gpus())
    board.turn()
    assert board.source.asked == [FOR_RESET], "the run was there before"
    board.runs[NEW] = Run()
    board.turn()
    board.turn()
    assert board.source.asked == [FOR_RESET, 0.0]
    board.told(gpus())
    assert board.source.asked == [FOR_RESET, 0.0]
    assert board.recovery()[-1] == (1, State.UNHEALTHY)
    assert board.shown().gpus_released_until is None


def test_what_somebody_asked_for_is_not_ended_by_a_run(board: Board) -> None:
    board.hardware.desk.release(60.0)
    board.runs[NEW] = Run()
    board.turn()
    assert board.source.asked == [60.0]
    assert board.shown().gpus_released_why == "somebody asked for it"


def test_a_reset_that_was_done_ends_the_complaint(board: Board) -> None:
    board.told(gpus())
    board.failed(GpusReleasedError("released"))
    board.told(gpus("none"))
    assert board.recovery() == [(0, State.HEALTHY), (1, State.HEALTHY)]


def test_the_end_of_the_agent_is_no_release(board: Board) -> None:
    board.source.released_seconds = math.inf
    assert board.shown().gpus_released_until is None
