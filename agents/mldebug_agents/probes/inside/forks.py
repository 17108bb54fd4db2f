"""Runs pieces of work in forks of a process that has imported torch and made no GPU context; one that hangs costs only itself."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import time
import traceback
from typing import Any, Callable, Dict, Tuple

from .ranks import BEAT, LOOK, emit

Result = Dict[str, Any]  # what the work returned, or one of: error, died (an exit code), late

KILLED = 2.0  # seconds in which whoever was killed is gone, unless it sits in the kernel
LONGEST = 60000  # bytes of a result: it must fit into a pipe that nobody reads meanwhile
_PR_SET_PDEATHSIG = 1


class ForkedTasks:
    """Runs labelled functions in forked processes: `start` each, then `wait` once."""

    def __init__(self) -> None:
        self._running: Dict[int, Tuple[str, int]] = {}  # pid -> label, where its result comes
        self._results: Dict[str, Result] = {}

    def start(self, label: str, work: Callable[[], Result]) -> int:
        """Run a function in a fork, which is killed when this process ends. Returns its pid."""
        ours, theirs = os.pipe()
        parent = os.getpid()
        pid = os.fork()
        if not pid:
            os.close(ours)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            os._exit(1 if os.getppid() != parent else _do(work, theirs))
        os.close(theirs)
        self._running[pid] = (label, ours)
        return pid

    def wait(self, seconds: float) -> Dict[str, Result]:
        """Wait until all forks have ended; those left after `seconds` are killed, and their result is {"late": True}.
        Returns results by label. Prints `beat` events meanwhile.
        """
        deadline, beaten = time.monotonic() + seconds, 0.0
        while self._running:
            self._reap(os.WNOHANG)
            now = time.monotonic()
            if now >= deadline:
                self._end()
            if now - beaten >= BEAT:
                emit("beat")
                beaten = now
            time.sleep(LOOK)
        return self._results

    def _reap(self, flags: int) -> None:
        for pid in list(self._running):
            reaped, status = os.waitpid(pid, flags)
            if reaped:
                label, pipe = self._running.pop(pid)
                self._results[label] = _read(pipe, status)

    def _end(self) -> None:
        """The ranks that are left are late."""
        for pid, (label, pipe) in self._running.items():
            os.kill(pid, signal.SIGKILL)
            os.close(pipe)
            self._results[label] = {"late": True}
        until = time.monotonic() + KILLED
        while self._running and time.monotonic() < until:
            for pid in list(self._running):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    del self._running[pid]
            time.sleep(LOOK)
        self._running.clear()  # it sits in the kernel, and dies when it comes back


def failure(result: Result) -> str:
    """Why a forked function gave no result, in a few words; "" where it gave one."""
    if result.get("late"):
        return "it did not end in time"
    if "died" in result:
        code = result["died"]
        return f"it was killed by signal {-code}" if code < 0 else f"it ended with code {code}"
    return str(result.get("error", ""))


def _do(work: Callable[[], Result], pipe: int) -> int:
    try:
        result = work()
    except BaseException as error:
        traceback.print_exc()
        first = (str(error).strip().splitlines() or [""])[0]
        result = {"error": f"{type(error).__name__}: {first}"[:500]}
    os.write(pipe, json.dumps(result).encode()[:LONGEST])
    return 0


def _read(pipe: int, status: int) -> Result:
    text = os.read(pipe, LONGEST)
    os.close(pipe)
    if text:
        result: Result = json.loads(text)
        return result
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
    return {"died": code}
