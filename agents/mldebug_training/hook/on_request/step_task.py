"""One request to this process, carried out by the thread that steps: the part that all kinds share. See `requests` beside it."""

from __future__ import annotations

import json
import os
import sys
import time

from mldebug_training.common.interrupted import pass_on
from mldebug_training.common.own_file import OwnFile
from mldebug_training.common.shared_files import FOLDER, remove, reserve

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mldebug_training.hook.process import OwnProcess
    from mldebug_training.hook.record import HookRecord

ANSWER = ".answer"
MAX_STEPS = 20
MAX_SECONDS = 600
GONE = "nobody waits for it any more"
HELD = 60.0  # seconds for which what was made stays


class DeclinedError(Exception):
    """The request is not carried out; the text says why."""


class StepTask:
    """What the agent has asked of this rank, such as a profile of three steps. The thread that trains calls `at_step` after each training
    step until the work is done, and `stop` once at the end. What they raise becomes the answer, and never reaches the training.

    A subclass does the work in `at_step`, and may undo it in `stop`.
    """

    def __init__(self, process: OwnProcess, record: HookRecord, request: dict[str, Any]) -> None:
        self._process, self._path = process, record.path + ANSWER
        self._number = int(request["number"])
        self._steps = min(max(int(request.get("steps", 1)), 1), MAX_STEPS)
        seconds = min(max(float(request.get("seconds", HELD)), 1.0), MAX_SECONDS)
        self._until = time.monotonic() + seconds
        self._file = OwnFile(-1)
        self._why = ""  # it is to be given up by the thread that steps
        self.over = False

    def step(self, step: int) -> None:
        """Called after each step that is reported, by the thread that steps."""
        if self.over:
            if time.monotonic() > self._until:
                self.close()
                self._process.end_task()
            return
        try:
            if captures_graph():
                return
            if time.monotonic() > self._until:
                raise DeclinedError("no step has ended in time")
            if self._why:
                raise DeclinedError(self._why)
            self.at_step(step)
        except Exception as error:
            self._fail(error)
            pass_on(error)

    def phase(self, name: str) -> None:
        """Called when the process enters a phase: a checkpoint or an evaluation is no step, and is left out."""

    def before_fork(self) -> None:
        """Called before this process forks a child by `os.fork`."""

    def at_step(self, step: int) -> None:
        """Do what was asked for; `self.hand_over` ends it. Raises DeclinedError, or whatever PyTorch raises."""
        raise NotImplementedError

    def stop(self) -> None:
        """Undo what `at_step` has begun. May raise."""

    def accept(self) -> None:
        """Write that the request is known."""
        self._answer("accepted")

    def cancel(self, number: Any) -> None:
        """Give it up at the next step, if this is the request's number: nobody waits for it any more. Called by the hook's thread."""
        if number == self._number:
            self._why = GONE

    def decline(self, why: str) -> None:
        """End the task without a result, and answer why."""
        self.over, self._until = True, time.monotonic() + HELD
        self._answer("declined", why=why[:300])

    def hand_over(self, file: OwnFile, **more: Any) -> None:
        """End the task: `file` has its result, and stays open for a minute."""
        self.over, self._until, self._file = True, time.monotonic() + HELD, file
        self._answer("done", fd=file.fd, bytes=file.size(), **more)

    def close(self) -> None:
        """Close the file that holds the result of the task, and remove the file that says where the result is."""
        self._file.close()
        remove(self._path)

    def _fail(self, error: Exception) -> None:
        try:
            self.stop()
        except Exception as second:
            pass_on(second)
        known = isinstance(error, DeclinedError)
        self.decline(str(error) if known else f"{type(error).__name__}: {error}")

    def _answer(self, state: str, **more: Any) -> None:
        found = {"layout": 1, "number": self._number, "state": state, **more}
        try:
            write_whole(self._path, json.dumps(found).encode())
        except OSError as error:  # a full /dev/shm: who asked sees that no answer comes
            pass_on(error)


def captures_graph() -> bool:
    """Whether the thread that steps records a CUDA graph now. A profiler that ends meanwhile waits for the GPU, which spoils the graph."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    return bool(torch.cuda.is_current_stream_capturing())


def write_whole(path: str, data: bytes) -> None:
    """Put a file with this content in place of whatever has its name, at once. Raises OSError."""
    new = path + ".new"
    remove(new)
    file = OwnFile(reserve(new, len(data)))
    try:
        file.write(data)
        os.rename(new, path)
    except OSError:
        remove(new)
        raise
    finally:
        file.close()


def free_bytes(folder: str = FOLDER) -> int:
    """Bytes that are free in shared memory."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def unnamed(path: str, data: bytes) -> OwnFile:
    """A file with this content and no name left. `path`: its name while it is made. Raises OSError."""
    remove(path)
    file = OwnFile(reserve(path, max(1, len(data))))
    remove(path)
    file.write(data)
    return file
