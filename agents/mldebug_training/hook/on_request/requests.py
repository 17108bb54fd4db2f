"""What the agent or `mldebug profile` asks this process to do at its next steps: a profile, or who holds its CUDA memory.

The request is a small JSON file beside the hook's record, `RECORD.request`, of this user and nobody else:

    {"layout": 1, "number": 7, "what": "profile", "steps": 3, "seconds": 60}

`number` is the asker's, `seconds` how long the first step may take to come. `what` may be "cancel": nobody waits for the request of that
number any more, which ends at the next step. After it was written the signal for stacks is sent
(`mldebug_training.hook.stacks`); the hook's thread then takes the file away and leaves the work to the thread that steps, which does it
between two steps. At most one request is worked on. The answer is `RECORD.answer`, made whole under another name:

    {"layout": 1, "number": 7, "state": "accepted", "why": "", …}

`state`: accepted, done, or declined with the reason in `why`. What is done is in a file without a name, which this process holds open for a minute:
`fd` is its descriptor here, `bytes` its size.
"""

from __future__ import annotations

import json
import os
import stat
import time

from mldebug_training.common.interrupted import pass_on
from mldebug_training.common.shared_files import REQUEST, remove
from mldebug_training.hook.on_request.memory_history import history
from mldebug_training.hook.on_request.step_profile import StepProfile
from mldebug_training.hook.on_request.step_task import DeclinedError, StepTask, unnamed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from mldebug_training.hook.process import OwnProcess
    from mldebug_training.hook.record import HookRecord

MOST = 4096  # bytes of a request
CANCEL = "cancel"
FRESH = 60.0  # seconds for which a request is believed: of an older one nobody waits for the answer


class MemoryLook(StepTask):
    """Writes once who holds the memory of the device that is current in the thread that steps, in the form that is written when memory
    runs out (`mldebug_training.hook.on_request.memory_history`). The job has to be started with `mldebug run --memory-history`.
    """

    def at_step(self, step: int) -> None:
        """Look after the first step that ends."""
        known = history()
        if known is None:
            raise DeclinedError("the job was not started with `mldebug run --memory-history`")
        if known.why:
            raise DeclinedError(known.why)
        data = known.look()
        self.hand_over(unnamed(f"{self._path}.memory", data), first=step, last=step)


def take(process: OwnProcess, record: HookRecord) -> None:
    """Take the request that lies beside the record, and have the thread that steps carry it out. Called by the hook's thread; does
    nothing where there is none that may be believed.
    """
    request = _taken(record.path + REQUEST)
    if request is None or request.get("layout") != 1:
        return
    before = process.task
    if request.get("what") == CANCEL:
        if before is not None:
            before.cancel(request.get("number"))
        return
    task = _task(process, record, request)
    if task is None:
        return
    if before is not None and not before.over:
        task.decline("it works on another request")
        return
    if before is not None:
        before.close()
    task.accept()
    process.begin_task(task)


def _task(process: OwnProcess, record: HookRecord, request: dict[str, Any]) -> StepTask | None:
    kinds = {"profile": StepProfile, "memory": MemoryLook}
    kind = kinds.get(str(request.get("what")))
    return kind(process, record, request) if kind else None


def _taken(path: str) -> dict[str, Any] | None:
    """The request in a file of this user that nobody else may write; the file is gone afterwards. None for one that lies there
    for longer than `FRESH`, as who was killed before the signal leaves it: the next look at stacks would begin a profile.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        pass_on(error)
        return None
    try:
        found = os.fstat(fd)
        others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or others:
            return None
        data = os.read(fd, MOST)
    finally:
        os.close(fd)
    remove(path)
    if abs(time.time() - found.st_mtime) > FRESH:
        return None
    request = json.loads(data)
    return request if isinstance(request, dict) else None
