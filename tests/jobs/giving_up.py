"""Ranks that agree by switches, one of which gives them up, is interrupted, or ends first: `HOW` is a function below.

Each rank writes to EVENTS/told.RANK what it was answered, with "late" behind it where a poll took long.
"""

import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from leaving import leave

import mldebug_training
from mldebug_training import agreement

EVENTS, HOW = Path(sys.argv[1]), sys.argv[2]
RANK = int(os.environ["RANK"])
COLLECTIVES = timedelta(seconds=120)
LONG = 40.0  # seconds; a rank that waits in vain waits half of what collectives live


class Odd(mldebug_training.TimeLimit):
    """Has rank 1 raise something when it is asked for the n-th time."""

    def __init__(self, error: BaseException, turn: int) -> None:
        super().__init__()
        self._error, self._left = error, turn

    def reason(self) -> None:
        self._left -= 1
        if RANK == 1 and self._left == 0:
            raise self._error


class Loop:
    """Switches of which rank 0 wants to stop at one step, and what became of each poll."""

    def __init__(self, stop_at: int = 3, **options: Any) -> None:
        self.step = 0
        self.told: list[str] = []
        wants = lambda: "enough" if RANK == 0 and self.step == stop_at else None
        self.switches = mldebug_training.Switches(
            str(EVENTS / f"switches-{RANK}"), signal=None, every=1, reason=wants, **options
        )
        self._timed(self.switches.at_start)

    def poll(self) -> None:
        self.step += 1
        self._timed(self.switches.poll)

    def polls(self, count: int) -> str:
        for _ in range(count):
            self.poll()
        return " ".join(self.told)

    def _timed(self, ask: Callable[[], str | None]) -> None:
        began = time.monotonic()
        answer = str(ask())
        self.told.append(f"{answer} late" if time.monotonic() - began > LONG else answer)


def late() -> str:
    """Rank 0 gives up in the exchange in which it asks to stop; rank 1 comes after that, and finds its wish.

    Switches made anew are as good as ever.
    """
    loop = Loop(timeout=4.0)
    loop.polls(2)
    time.sleep(10.0 if RANK == 1 else 0.0)
    return f"{loop.polls(3)} / {Loop().polls(4)}"


def broken() -> str:
    """Rank 1 gives one object up before the ranks have met; the other one is as good as ever."""
    first = Loop(limit=Odd(ZeroDivisionError("broken"), 1))
    second = Loop()
    return f"{first.polls(2)} / {second.polls(4)}"


def interrupted() -> str:
    """The job of rank 1 is interrupted in a poll, and goes on."""
    loop = Loop(stop_at=9, limit=Odd(KeyboardInterrupt(), 3), timeout=55.0)
    loop.polls(1)
    try:
        loop.poll()
    except KeyboardInterrupt:
        loop.told.append("interrupted")
    return loop.polls(3)


def shorter() -> str:
    """Rank 1 misses the poll of the stop, and waits in a group whose collectives do not live long."""
    group = dist.new_group(timeout=timedelta(seconds=20))
    loop = Loop()
    loop.polls(3)
    if RANK == 0:
        loop.poll()
    dist.all_reduce(torch.ones(1), group=group)
    return " ".join(loop.told)


def host() -> str:
    """Rank 0, which keeps the store, ends as soon as it may; rank 1 looks there seldom."""
    agreement.LONG_NAP = 3.0  # it looks after 1.6 s, and after 3.3
    loop = Loop()
    loop.polls(3)
    time.sleep(2.2 if RANK == 0 else 0.0)
    return loop.polls(1)


def group() -> str:
    """Of three ranks two agree; the third one never polls as often, and is nobody's concern."""
    loop = Loop(group=dist.new_group([0, 1]))
    return loop.polls(4 if RANK < 2 else 1)


def main() -> None:
    dist.init_process_group("gloo", timeout=COLLECTIVES)
    told = globals()[HOW]()
    fresh = EVENTS / f"new.{RANK}"
    fresh.write_text(told)
    fresh.replace(EVENTS / f"told.{RANK}")
    if HOW == "host":
        os._exit(0)
    dist.barrier()
    leave()


if __name__ == "__main__":
    main()
