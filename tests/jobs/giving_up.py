"""Ranks that agree by switches, one of which gives them up, is interrupted, or ends first: `HOW` is a function below.

Each rank writes to EVENTS/told.RANK what it was answered, with "late" behind it where a poll took long.
"""

import atexit
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from events import put
from leaving import leave

import mldebug_training
from mldebug_training.helpers.switches import agreement, exchange, meeting

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
        self.reported: list[str] = []
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
        return " ".join(self.reported)

    def _timed(self, ask: Callable[[], str | None]) -> None:
        self.reported.append(timed(ask))


def timed(ask: Callable[[], str | None]) -> str:
    began = time.monotonic()
    answer = str(ask())
    return f"{answer} late" if time.monotonic() - began > LONG else answer


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
        loop.reported.append("interrupted")
    return loop.polls(3)


def shorter() -> str:
    """Rank 1 misses the poll of the stop, and waits in a group whose collectives do not live long."""
    group = dist.new_group(timeout=timedelta(seconds=20))
    loop = Loop()
    loop.polls(3)
    if RANK == 0:
        loop.poll()
    dist.all_reduce(torch.ones(1), group=group)
    return " ".join(loop.reported)


def host() -> str:
    """Rank 0, which keeps the store, ends as soon as it may; rank 1 looks there seldom."""
    meeting.NAP = 3.0  # it looks after 1.6 s, and after 3.3
    loop = Loop()
    loop.polls(3)
    time.sleep(2.2 if RANK == 0 else 0.0)
    return loop.polls(1)


class AlarmError(Exception):
    """Raised by a handler of the job."""


def alarmed(step: Callable[[], object]) -> str:
    """What an alarm in 0.4 s makes of a step that takes longer."""

    def ring(*_: object) -> None:
        raise AlarmError

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.4)
    try:
        step()
    except AlarmError:
        return "alarm"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "none"


def verdict() -> str:
    """All have met; rank 0 waits until rank 1, which looks after 1.6 s and 3.3, has read that, and is interrupted in it."""
    meeting.NAP = 3.0
    loop = Loop()
    loop.polls(3)
    time.sleep(2.2 if RANK == 0 else 0.0)
    if RANK == 0:
        loop.reported.append(alarmed(loop.poll))
    return loop.polls(1)


def waiting() -> str:
    """Rank 1 is interrupted while it waits for rank 0 to come to the poll of the stop."""
    loop = Loop()
    loop.polls(3)
    if RANK == 1:
        loop.reported.append(alarmed(loop.poll))
    time.sleep(2.0)
    return loop.polls(2)


def unstarted(timeout: float = 4.0) -> mldebug_training.Switches:
    """Whose ranks come together in their first poll."""
    folder = str(EVENTS / f"switches-{RANK}")
    return mldebug_training.Switches(folder, signal=None, every=1, timeout=timeout)


def making() -> str:
    """Rank 1 is interrupted as it waits for the first exchange, to which all have come; the job's next group is the same in both."""
    switches, exchanged, finish = (
        unstarted(),
        exchange.Exchange._exchanged,
        agreement.RankAgreement.finish,
    )
    waits, results = threading.Event(), []

    def ring_and_exchange(*args: Any) -> object:
        exchange.Exchange._exchanged = exchanged
        waits.wait(LONG)
        os.kill(os.getpid(), signal.SIGALRM)
        return exchanged(*args)

    def finish_and_say(*args: Any) -> object:
        waits.set()
        return finish(*args)

    def ring(*_: object) -> None:
        raise AlarmError

    signal.signal(signal.SIGALRM, ring)
    agreement.RankAgreement.finish = finish_and_say
    exchange.Exchange._exchanged = ring_and_exchange if RANK == 1 else exchanged
    for _ in range(3):
        dist.barrier()
        try:
            results.append(timed(switches.poll))
        except AlarmError:
            results.append("alarm")
    dist.barrier()  # `new_group` waits at the store, and lets nobody else of its process ask there
    group, ones = dist.new_group([0, 1]), torch.ones(1)
    dist.all_reduce(ones, group=group)
    return f"{' '.join(results)} / {ones.item():g}"


def unmade() -> str:
    """The store refuses the numbers of rank 1, for which rank 0 waits."""
    switches, exchanged = unstarted(), exchange.Exchange._exchanged

    def fail(*_: object, **__: object) -> None:
        raise OSError("no device")

    exchange.Exchange._exchanged = fail if RANK else exchanged
    return " ".join(timed(switches.poll) for _ in range(3))


def full() -> str:
    """Rank 1 has no file left to open; in none of them a port is open that was not before."""
    before, held = ports(), []
    loop = Loop(stop_at=5)
    loop.polls(2)
    if RANK == 1:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 8, soft[1]))
        with suppress(OSError):
            while True:
                held.append(os.dup(0))
    loop.polls(2)
    for one in held:
        os.close(one)
    return f"{loop.polls(2)} / {ports() - before}"


def ports() -> set[int]:
    """At which this process listens."""
    found = psutil.Process().net_connections("tcp")
    return {one.laddr.port for one in found if one.status == psutil.CONN_LISTEN}


def anew() -> str:
    """The job leaves its groups, and makes them anew at the port of before."""
    result = Loop().polls(3)
    loop = Loop()
    dist.barrier()
    dist.destroy_process_group()
    say("left")
    wait_for(EVENTS / "told.0")  # else rank 1 might come to the store of before
    join()
    return f"{result} / {loop.polls(4)}"


def again() -> str:
    """The ranks are launched anew with the store of before, where rank 1 has given up after the fourth exchange."""
    loop = Loop(stop_at=9, limit=Odd(ZeroDivisionError("broken"), 5))
    result = loop.polls(5)
    agreement._made.clear()
    return f"{result} / {Loop().polls(4)}"


def leaves() -> str:
    """Rank 1 ends while an exchange is pending, which rank 0 begins only when that one is gone."""
    loop = Loop(stop_at=9)
    put(EVENTS / f"pid.{RANK}", str(os.getpid()))
    result = loop.polls(3 if RANK == 1 else 2)
    return result if RANK == 1 else f"{result} {gone(int(wait_for(EVENTS / 'pid.1')))}"


def wait_for(path: Path) -> str:
    deadline = time.monotonic() + LONG
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, path
        time.sleep(0.01)
    return path.read_text()


def gone(pid: int) -> str:
    """Has it ended by itself within LONG?"""
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return "gone"
        if state == "Z":
            return "gone"
        time.sleep(0.05)
    return "still there"


KEEPER = 2  # the rank that keeps the store and is none of the job's


def keeper() -> None:
    """Keep the store until the others have said all."""
    port = int(os.environ["MASTER_PORT"])
    store = dist.TCPStore("127.0.0.1", port, None, True, wait_for_workers=False)
    put(EVENTS / "keeper", str(os.getpid()))
    for one in range(KEEPER):
        wait_for(EVENTS / f"told.{one}")
    del store
    say("")


def stopped() -> str:
    """Whoever keeps the store is stopped when all agree to end."""
    loop = Loop()
    loop.polls(3)
    dist.barrier()
    host = int(wait_for(EVENTS / "keeper"))
    if RANK == 0:
        os.kill(host, signal.SIGSTOP)
    dist.barrier()
    result = loop.polls(3)
    dist.barrier()
    if RANK == 0:
        os.kill(host, signal.SIGCONT)
    return result


class Last:
    """Goes when the interpreter does, and takes its time."""

    def __del__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        sleep(2.0)


def ending() -> str:
    """Rank 1 ends while the store has not answered that it gives up; it answers while the interpreter goes."""
    global last
    loop = Loop(stop_at=9, limit=Odd(ZeroDivisionError("broken"), 3))
    host = int(wait_for(EVENTS / "keeper"))
    loop.polls(1)
    assert loop.switches._agreement._last._call.wait(LONG)  # it knows the answer of its next poll
    dist.barrier()
    if RANK == 0:
        os.kill(host, signal.SIGSTOP)
    dist.barrier()
    result = loop.polls(1)
    if RANK == 1:
        last = Last()
        atexit.register(put, EVENTS / "ends", "now")
    else:
        wait_for(EVENTS / "ends")
        time.sleep(0.5)
        os.kill(host, signal.SIGCONT)
    return result


def group() -> str:
    """Of three ranks two agree; the third one never polls as often, and is nobody's concern."""
    loop = Loop(group=dist.new_group([0, 1]))
    return loop.polls(4 if RANK < 2 else 1)


def say(text: str) -> None:
    put(EVENTS / f"told.{RANK}", text)


def join() -> None:
    """With the store of rank 0; where there is a third process, with its."""
    if HOW not in ("stopped", "ending"):
        dist.init_process_group("gloo", timeout=COLLECTIVES)
        return
    os.environ["WORLD_SIZE"] = str(KEEPER)
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), None, False)
    dist.init_process_group("gloo", store=store, rank=RANK, world_size=KEEPER, timeout=COLLECTIVES)


def main() -> None:
    if HOW in ("stopped", "ending") and RANK == KEEPER:
        keeper()
        return
    join()
    say(globals()[HOW]())
    if HOW in ("host", "verdict"):
        os._exit(0)
    if HOW in ("leaves", "ending"):
        return
    dist.barrier()
    leave()


if __name__ == "__main__":
    main()
