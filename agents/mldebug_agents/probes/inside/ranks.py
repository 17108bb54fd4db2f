"""Starts the ranks of a probe on one node: forks of a launcher that imports no torch. They end with it, and print events as lines.

An order has `ranks` (the global ranks of this node; absent under torchrun), `world`, `address`, `port`, `seconds` (until all is
ended), `alone` (end when another process uses this node) and what the probe's own function needs. Events: `beat` (each second),
`failed` (a rank's exception), `died` (a rank ended by a signal or an exit code), `late`, `stranger` (who uses the node), `done`.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any, Callable, Iterator

from .strangers import Strangers

Order = dict[str, Any]

BEAT = 1.0  # seconds
GRACE = 3.0  # seconds in which the others may end by themselves after one has died
LOOK = 0.05
_PR_SET_PDEATHSIG = 1
_out = _turn = -1


def launch(order: Order, work: Callable[[Order], None]) -> None:
    """Run `work` in each rank of this node, in forks; under torchrun in this process. Ends the process, so it never returns."""
    keep_stdout()
    if "ranks" not in order:  # torchrun has started this rank
        watch_from_here(order)
        code = run_rank(order, work)
        if not code and rank() == 0:
            emit("done")
        os._exit(code)
    pids = {fork_rank(order, number, work): rank for number, rank in enumerate(order["ranks"])}
    others = Strangers(order["device"] == "cuda") if order.get("alone") else None
    os._exit(watch(pids, time.monotonic() + order["seconds"], others))


def watch_from_here(order: Order) -> None:
    """Watch this rank from a thread, where torchrun started it: end it, and so the others, when its time is over or another job
    uses this node.
    """
    first = order.get("alone") and os.environ["LOCAL_RANK"] == "0"
    others = Strangers(order["device"] == "cuda") if first else None
    until = time.monotonic() + order["seconds"]

    def look(reason: str) -> None:
        if reason:
            emit("stranger", reason=reason)
            os._exit(1)

    def watch() -> None:
        while time.monotonic() < until:
            time.sleep(BEAT)
            look(others.look() if others else "")
        emit("late", ranks=[rank()])
        os._exit(1)

    look(others.first_look() if others else "")
    threading.Thread(target=watch, name="watch", daemon=True).start()


def emit(event: str, **fields: object) -> None:
    """Print one event as a whole line; ends the process if its reader has gone."""
    line = (json.dumps({"event": event, **fields}) + "\n").encode()
    fcntl.lockf(
        _turn, fcntl.LOCK_EX
    )  # a line that fills the pipe would be cut in two by that of another process
    try:
        while line:
            line = line[os.write(_out, line) :]
    except OSError as error:
        if error.errno == errno.EPIPE:
            os._exit(1)
        raise
    finally:
        fcntl.lockf(_turn, fcntl.LOCK_UN)


@contextlib.contextmanager
def beating() -> Iterator[None]:
    """A context in which a fork prints `beat` events, while this process may block for a minute (loading PyTorch from a slow
    disk).
    """
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        while os.getppid() == parent:
            emit("beat")
            time.sleep(BEAT)
        os._exit(0)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def keep_stdout() -> None:
    """Keep stdout for `emit`, here and in all forks; what libraries print from now on goes to stderr."""
    global _out, _turn
    sys.stdout.flush()  # or each fork would write it again
    _out = os.dup(1)
    _turn = os.memfd_create("turn")
    os.dup2(2, 1)


def rank() -> int:
    """The global rank of this process."""
    return int(os.environ["RANK"])


def fork_rank(order: Order, number: int, work: Callable[[Order], None]) -> int:
    """Fork the rank with local rank `number`; it is killed when its launcher ends. Returns its pid."""
    launcher = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != launcher:
        os._exit(1)
    os.environ.update(
        RANK=str(order["ranks"][number]),
        LOCAL_RANK=str(number),
        LOCAL_WORLD_SIZE=str(len(order["ranks"])),
        WORLD_SIZE=str(order["world"]),
        MASTER_ADDR=str(order["address"]),
        MASTER_PORT=str(order["port"]),
    )
    os._exit(run_rank(order, work))


def run_rank(order: Order, work: Callable[[Order], None]) -> int:
    """Do the work of one rank. Returns its exit code; an exception is sent as an event, with its traceback on stderr."""
    try:
        work(order)
        return 0
    except BaseException as error:
        traceback.print_exc()
        emit("failed", rank=rank(), kind=type(error).__name__, error=str(error)[:2000])
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def watch(pids: dict[int, int], deadline: float, others: Strangers | None = None) -> int:
    """Wait for all ranks, printing `beat` events. If one fails, the others are ended soon after; if another process begins to
    use the node, all are. Returns the exit code.
    """
    failed, beaten = False, 0.0
    while pids:
        for pid, code in reap(pids):
            who = pids.pop(pid)
            if code:
                emit("died", rank=who, code=code)
                deadline = deadline if failed else min(deadline, time.monotonic() + GRACE)
                failed = True
        now = time.monotonic()
        if now >= deadline:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            if not failed:
                emit("late", ranks=sorted(pids.values()))
            return 1
        if now - beaten >= BEAT:
            emit("beat")
            beaten = now
            if others is not None and (reason := others.look()):
                emit("stranger", reason=reason)
                deadline, failed = now, True
        time.sleep(LOOK)
    if not failed:
        emit("done")
    return int(failed)


def reap(pids: dict[int, int]) -> list[tuple[int, int]]:
    """Reap the child processes that have ended. Returns the pid and exit code of each (negative: a signal)."""
    found = []
    for pid in pids:
        reaped, status = os.waitpid(pid, os.WNOHANG)
        if reaped:
            found.append(
                (pid, os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status))
            )
    return found
