"""Exceptions that a rank has outlived are quoted with the rank whose they are, and with nobody where the log does not tell."""

import msgspec
import pytest

from mldebug.core.model import Diagnosis, LogTail, NodeCapture, ProcessCapture, ThreadStack
from mldebug.diagnosis.diagnose import diagnose
from shared.diagnosis.builders import WAITER, capture, process, rank, stack, still

STEPS = tuple(f"step {n} loss 2.5" for n in range(5))
HERE = ("load (train.py:7)", "<module> (train.py:50)")
EXIT = ("_shutdown (threading.py:1590)",)
QUEUE = ("wait (threading.py:327)", "get (queue.py:171)", "next_batch (train.py:12)", "<module> (train.py:50)")  # fmt: skip
COLLATE = ("wait (threading.py:327)", "collate (train.py:31)", "<module> (train.py:50)")
PREFETCHER = stack("put (queue.py:140)", "prefetch (train.py:9)", name="prefetcher", tid=7)


def traceback(error: str, function: str = "load", line: int = 7, head: str = "", mark: str = "") -> tuple[str, ...]:  # fmt: skip
    lines = (
        "Traceback (most recent call last):",
        '  File "/home/user/train.py", line 50, in <module>',
        "    main()",
        f'  File "/home/user/train.py", line {line}, in {function}',
        "    raise",
        error,
    )
    return (*((head,) if head else ()), *(f"{mark}{line}" for line in lines))


def job(odd: ProcessCapture, log: tuple[str, ...], *, earlier: tuple[str, ...] = (), alone: bool = False, threads: tuple[ThreadStack, ...] = ()) -> NodeCapture:  # fmt: skip
    """Four ranks of which rank 2 is odd; one log for all, or one each."""

    def one(n: int):
        what = odd if n == 2 else process(*WAITER, move=still(), others=threads)
        path = f"/logs/{n}" if alone else "/logs/job"
        tail = LogTail(path=path, lines=log if n == 2 or not alone else STEPS, earlier=earlier)
        return msgspec.structs.replace(rank(n, what), log=tail)

    return msgspec.structs.replace(capture(*map(one, range(4))), quiet_seconds=60.0)


def found(taken: NodeCapture) -> Diagnosis:
    return diagnose([taken]).diagnosis


def stuck(*frames: str, **more: object) -> ProcessCapture:
    return process(*frames, move=still(), **more)  # type: ignore[arg-type]


RAISED = {
    "marked by torch, at its exit": (
        job(stuck(*EXIT), (*traceback("ValueError: bad shard 7", mark="[rank2]: "), *STEPS)),
        "rank 2 raised ValueError: bad shard 7 in load (train.py:7) and waits at its exit since",
    ),
    "no mark, but it alone is at its exit": (
        job(stuck(*EXIT), (*STEPS, *traceback("ValueError: bad shard 7"))),
        "rank 2 raised ValueError: bad shard 7 in load (train.py:7) and waits at its exit since",
    ),
    "a thread keeps it from its exit": (
        job(stuck(*EXIT, others=(PREFETCHER,)), (*STEPS, *traceback("ValueError: bad shard 7"))),
        "rank 2 raised ValueError: bad shard 7 in load (train.py:7) and waits at its exit since",
    ),
    "in a log of its own": (
        job(stuck(*EXIT), (*STEPS, *traceback("ValueError: bad shard 7")), alone=True),
        "rank 2 raised ValueError: bad shard 7 in load (train.py:7) and waits at its exit since",
    ),
    "its thread died, those of the others live": (
        job(stuck(*QUEUE), (*STEPS, *traceback("OSError: unexpected end of data", "prefetch", 9, "Exception in thread prefetcher:"), *STEPS), threads=(PREFETCHER,)),
        "thread prefetcher of rank 2 died with OSError: unexpected end of data in prefetch (train.py:9)",
    ),
    "with a time before each line": (
        job(stuck(*EXIT), traceback("ValueError: bad shard 7", mark="2026-09-18 12:03:11 [rank2]: ")),
        "rank 2 raised ValueError: bad shard 7 in load (train.py:7) at 12:03:11",
    ),
    "swallowed where it stands": (
        job(stuck(*COLLATE), traceback("KeyError: 'input_ids'", "collate", 29)),
        "rank 2 raised KeyError: 'input_ids' in collate (train.py:29)",
    ),
    "minutes before the end of the log": (
        job(stuck(*COLLATE), ("plain words",) * 40, earlier=traceback("KeyError: 'input_ids'", "collate", 29)),
        "rank 2 raised KeyError: 'input_ids' in collate (train.py:29)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RAISED)
def test_an_exception_is_quoted_with_its_rank(name: str) -> None:
    taken, words = RAISED[name]
    diagnosis = found(taken)
    assert words in diagnosis.summary
    assert [one.rank for one in diagnosis.culprits] == [2]


UNEXPLAINED = {
    "of a rank that nobody can tell": job(stuck(*HERE, wchan="hrtimer_nanosleep"), traceback("KeyError: 'x'", "elsewhere")),
    "of a thread that no rank has": job(stuck(*QUEUE), traceback("OSError: x", "prefetch", 9, "Exception in thread prefetcher:")),
    "it went on after it": job(stuck(*HERE, wchan="hrtimer_nanosleep"), (*traceback("KeyError: 'x'"), *STEPS), alone=True),
    "it only blames a peer": job(stuck(*EXIT), traceback("RuntimeError: Connection closed by peer [10.0.0.7]:4711", mark="[rank2]: ")),
    "of a waiter": job(stuck(*HERE, wchan="hrtimer_nanosleep"), traceback("KeyError: 'x'", mark="[rank1]: ")),
}  # fmt: skip


@pytest.mark.parametrize("name", UNEXPLAINED)
def test_what_is_not_surely_of_the_named_rank_is_not_told_of_it(name: str) -> None:
    diagnosis = found(UNEXPLAINED[name])
    assert "raised" not in diagnosis.summary
    assert "died" not in diagnosis.summary
    assert [one.rank for one in diagnosis.culprits] == [2]
