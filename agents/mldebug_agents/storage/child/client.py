"""The agent's side of the mount child: one child process for all mounts, one request at a time."""

import contextlib
import threading
from collections.abc import Sequence

import msgspec

from mldebug_agents.storage.child.messages import (
    MountAnswer,
    MountAnswers,
    MountRequest,
    MountRequests,
)
from mldebug_agents.system.child.link import ChildLink, WorkerStarter
from mldebug_agents.system.spawn import ForkedWorker

NAME = "fsprobe"
SECONDS = 3.0  # for all mounts of a round
GRACE = 5.0  # seconds more until the child itself counts as stuck


class MountClient:
    """Queries mounts through the child, one request at a time: the storage collectors share it and wait for each other."""

    def __init__(self, starter: WorkerStarter) -> None:
        self._starter = starter
        self._worker: ForkedWorker | None = None
        self._number = 0
        self._lock = threading.Lock()
        self._closed = False

    def ask(
        self, places: Sequence[MountRequest], seconds: float = SECONDS
    ) -> tuple[MountAnswer, ...]:
        """Query these mounts, and return their answers in the same order within about `seconds`. Raises OSError where the
        child has ended or does not answer, or after `close`.
        """
        if not places:
            return ()
        with self._lock:
            if self._closed:
                raise ConnectionError("the agent ends")
            return self._ask(places, seconds)

    def _ask(self, places: Sequence[MountRequest], seconds: float) -> tuple[MountAnswer, ...]:
        worker = self._worker = self._worker or self._starter.fork_worker(NAME)
        self._number += 1
        try:
            worker.socket.settimeout(seconds + GRACE)
            link = ChildLink(worker.socket, msgspec.msgpack.Decoder(MountAnswers))
            link.send(MountRequests(self._number, tuple(places), seconds))
            while (reply := link.receive()).number != self._number:
                pass
        except OSError:
            self._drop()
            raise
        return reply.mounts

    def close(self) -> None:
        """End the child for good: no later `ask` starts another."""
        self._closed = True
        self._drop()

    def _drop(self) -> None:
        """End the child; one that hangs in the kernel dies when its calls come back."""
        worker, self._worker = self._worker, None
        if worker is not None:
            with contextlib.suppress(OSError):  # it has ended by itself
                worker.kill()
