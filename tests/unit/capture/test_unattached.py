"""Verdicts where nobody may attach: Python frames of the hook, no native stack, and nobody knows who holds the GIL."""

import msgspec
import pytest

from mldebug.core.model import Diagnosis, ProcessCapture, RankCapture
from mldebug.diagnosis.diagnose import diagnose
from shared.diagnosis.builders import WAITER, capture, process, rank, still

BUSY = ("evaluate (faults.py:26)", "<module> (train.py:50)")
POLLS = ("prepare_or_poll (faults.py:34)", "<module> (train.py:50)")
WORKER = ("_try_get_data (torch/utils/data/dataloader.py:1296)", "<module> (train.py:50)")


def by_hook(what: ProcessCapture) -> ProcessCapture:
    """As the hook gives it."""
    return msgspec.structs.replace(what, by_hook=True)


def waiter(number: int) -> RankCapture:
    return rank(number, by_hook(process(*WAITER, pid=100 + number, move=still())))


def spins(number: int, *frames: str) -> RankCapture:
    """On a CPU, in one line, and no stack says who holds the GIL."""
    busy = process(*(frames or BUSY), pid=100 + number, state="R", wchan="", move=still(cpu=0.9))
    return rank(number, by_hook(busy))


def sleeps(number: int, *frames: str, wchan: str = "hrtimer_nanosleep", source: str = "") -> RankCapture:  # fmt: skip
    one = process(*frames, pid=100 + number, wchan=wchan, move=still(), source=source)
    return rank(number, by_hook(one))


def verdict(*ranks: RankCapture) -> Diagnosis:
    return diagnose([capture(*ranks)]).diagnosis


def named(found: Diagnosis) -> tuple[str, tuple[int | None, ...], str]:
    return found.verdict.value, tuple(one.rank for one in found.culprits), found.confidence.value


def test_who_polls_is_not_named_alone_beside_one_that_may_compute() -> None:
    found = verdict(waiter(0), spins(1), sleeps(2, *POLLS), waiter(3))
    assert named(found) == ("rank_busy", (1, 2), "low")


def test_who_sleeps_is_named_where_many_spin_in_one_place() -> None:
    """As ranks do that wait for their GPU: they are no rivals."""
    line = ("train (train.py:9)",)
    found = verdict(waiter(0), spins(1, *line), spins(3, *line), sleeps(2, "load (io.py:3)"))
    assert named(found) == ("rank_waiting", (2,), "medium")


def test_who_computes_alone_is_named_with_little_confidence() -> None:
    assert named(verdict(waiter(0), spins(1), waiter(2))) == ("rank_busy", (1,), "low")


@pytest.mark.parametrize("line", ["    with lock, lock:", "second.acquire()", "with self._lock:"])
def test_the_line_that_takes_a_lock_tells_what_no_frame_does(line: str) -> None:
    found = verdict(waiter(0), sleeps(1, *BUSY, wchan="futex_do_wait", source=line), waiter(2))
    assert named(found) == ("rank_waiting", (1,), "medium")
    assert "waits for a lock" in found.summary


@pytest.mark.parametrize(
    "line", ["reduce(lock)", "x = block()", "with torch.no_grad():", "with blocks(3):", "lock.release()"]
)  # fmt: skip
def test_other_lines_do_not(line: str) -> None:
    found = verdict(waiter(0), sleeps(1, *BUSY, wchan="futex_do_wait", source=line), waiter(2))
    assert named(found) == ("unknown", (), "low")


ASK = "while not work.is_completed(): pass"


@pytest.mark.parametrize("line", [ASK, "while not self.handle.work.is_completed( ):"])
def test_a_loop_that_asks_for_its_collective_waits_though_it_owns_the_gil(line: str) -> None:
    loops = process(*BUSY, state="R", wchan="0", gil=True, move=still(cpu=1.0), source=line)
    ranks = [rank(number, loops) for number in range(2)]

    assert verdict(*ranks).culprits == ()
    assert named(verdict(*ranks, sleeps(2, *BUSY, wchan="hrtimer_nanosleep")))[:2] == (
        "rank_waiting",
        (2,),
    )


@pytest.mark.parametrize(
    "line", ["while not queue.empty(): pass", "loss.item()", "if not work.is_completed(): pass", "work.acquire()"]
)  # fmt: skip
def test_another_line_of_who_owns_the_gil_is_work(line: str) -> None:
    loops = process(*BUSY, state="R", wchan="0", gil=True, move=still(cpu=1.0), source=line)

    assert named(verdict(waiter(0), rank(1, loops), waiter(2)))[:2] == ("rank_busy", (1,))


def test_a_worker_that_computes_is_busy_though_its_stack_cannot_be_read() -> None:
    worker = process(pid=500, state="R", wchan="", move=still(cpu=0.9), kind="worker")
    waits = rank(1, by_hook(process(*WORKER, pid=101, move=still())), worker)
    found = verdict(waiter(0), waits, waiter(2))
    assert found.verdict.value == "rank_busy"
    assert [one.rank for one in found.culprits] == [1]
