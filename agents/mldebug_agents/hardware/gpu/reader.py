"""Reads one vendor's GPUs by a child process, which may hang or crash without harm and is never killed inside the driver.

A child that does not answer is left alone, and nothing else touches these GPUs meanwhile, since a second child would hang in the
same call. If it answers later it is used again. Only a child that hangs outside the kernel is killed and replaced.
"""

import contextlib
import math
import socket
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from mldebug.core.errors import MldebugError
from mldebug.hardware.gpu.excluded import ExcludedGpu
from mldebug.hardware.gpu.readings import GpuEvent, NodeGpus, NodeWatch
from mldebug_agents.hardware.gpu.child import stuck
from mldebug_agents.hardware.gpu.child.messages import (
    MAX_BODY,
    NAME,
    GpuReply,
    GpuRequest,
    Wanted,
)
from mldebug_agents.hardware.gpu.child.pause import (
    WINDOW,
    CrashBudget,
    ReadPause,
    died_too_often,
    released,
)
from mldebug_agents.hardware.gpu.child.stuck import ChildReaper
from mldebug_agents.hardware.gpu.errors import GpuCrashedError, GpuDriverError, NoGpuLibraryError
from mldebug_agents.system.child.leftovers import Leftover
from mldebug_agents.system.child.link import ChildLink, WorkerStarter
from mldebug_agents.system.host import Host
from mldebug_agents.system.spawn import ForkedWorker

FIRST_DEADLINE = 60.0  # seconds: the driver may load firmware when the first handle is opened
DEADLINE = 10.0
DRIVER_AGAIN = 30.0  # seconds until a driver that is gone is looked for again
LIBRARY_AGAIN = 300.0  # seconds until a library that was not there is looked for again
NO_GPUS = "install the driver's management library, or ignore this on a node without GPUs"
DIED = "the GPU reader has died in the vendor's library; a new one is tried"
LATE = 0.001  # seconds: a reply that is late is taken, not waited for

T = TypeVar("T")


class VendorReader:
    """Reads all GPUs of one vendor on this node through a child process. Any thread may call; calls take turns. `clock` returns
    seconds.
    """

    def __init__(
        self,
        starter: WorkerStarter,
        host: Host,
        vendor: str = "nvidia",
        options: msgspec.Struct | None = None,
        *,
        deadline: float = DEADLINE,
        first_deadline: float = FIRST_DEADLINE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`options`: of the vendor's plugin. Deadlines in seconds: of one read, and of the first one of each child."""
        self._starter, self._host, self._clock = starter, host, clock
        self.vendor = vendor  # file name of its plugin
        self._options = msgspec.Raw(msgspec.msgpack.encode(options) if options else b"\x80")
        self._deadlines = (first_deadline, deadline)
        self._lock = threading.Lock()
        self._worker: ForkedWorker | None = None
        self._link: ChildLink[GpuReply] | None = None
        self._parting = ChildReaper(host)
        self._number = 0
        self._asked_at: float | None = None  # while an answer is owed
        self._answered = False  # by this child, at least once
        self._late: tuple[GpuEvent, ...] = ()  # of looks for whose answer nobody waited any more
        self._budget = CrashBudget()
        self.restarts = 0  # children that replaced one that had died or was ended
        self._rest = ReadPause(clock)

    def watch(self, excluded: tuple[ExcludedGpu, ...] = ()) -> NodeWatch:
        """A quick read of what changes often. `excluded`: GPUs that must not be touched.

        Raises `GpuDriverError`, `GpuCrashedError`, `NoGpuLibraryError`, `GpuBlockedError` or `GpusReleasedError`; a later
        call may work again.
        """
        watch = _given(self._ask("watch", excluded).watch)
        late, self._late = self._late, ()
        return msgspec.structs.replace(watch, events=(*late, *watch.events)) if late else watch

    def full(self, excluded: tuple[ExcludedGpu, ...] = ()) -> NodeGpus:
        """Read all values of the GPUs. `excluded`: GPUs that must not be touched. Raises the same errors as `watch`."""
        return _given(self._ask("full", excluded).full)

    @property
    def blocked_seconds(self) -> float:
        """Seconds since the request that the child has not answered in time; 0.0 while it is within its deadline."""
        waited = self._waited()
        return waited if waited > self._patience() else 0.0

    @property
    def waits(self) -> bool:
        """Whether the child has a request that it has not answered yet."""
        return self._asked_at is not None

    @property
    def pid(self) -> int | None:
        """The child's pid, None where there is no child."""
        worker = self._worker
        return worker.pid if worker else None

    def leftovers(self) -> tuple[Leftover, ...]:
        """Children that hang and may outlive this agent, as records for the agent that runs after it."""
        gone_astray = [*self._parting.still_there()]
        if self._worker is not None and self.blocked_seconds:
            gone_astray.append(self._worker)
        return stuck.as_leftovers(self._host, gone_astray)

    def release(self, seconds: float) -> None:
        """Close all handles on GPUs for `seconds`, so that somebody can reset a GPU; 0 ends an earlier release. Returns at once."""
        self._leave(seconds)

    @property
    def released_seconds(self) -> float:
        """Seconds for which the GPUs are still not touched after `release`; 0.0 where they are read as usual."""
        return self._rest.released_seconds

    def let_go(self) -> bool:
        """Whether all children have ended, so that this agent holds no GPU. Returns at once."""
        self._pause_as_requested()
        if not self._lock.acquire(blocking=False):
            return False
        try:
            return self._parting.forget_ended() and self._worker is None
        finally:
            self._lock.release()
            self._pause_as_requested()

    def close(self) -> None:
        """End the child by closing its connection. One that hangs is left behind, and ends when its call returns."""
        self._leave(math.inf)

    def _leave(self, seconds: float) -> None:
        """A thread that waits for an answer stops waiting, and lets the child go."""
        self._rest.request(seconds)
        worker = self._worker
        if worker is not None:
            with contextlib.suppress(OSError):  # the child has hung up first
                worker.socket.shutdown(socket.SHUT_RDWR)
        self._pause_as_requested()

    def _pause_as_requested(self) -> None:
        """Leave the GPUs alone where that was requested. The thread that has the lock does it, and looks again once it has released it."""
        while self._rest.is_requested and self._lock.acquire(blocking=False):
            try:
                self._leave_now()
            finally:
                self._lock.release()

    def _leave_now(self) -> None:
        """With the lock."""
        if self._rest.is_requested:
            self._hang_up()
            self._rest.grant()

    # --- one question ------------------------------------------------------------------------------

    def _ask(self, wanted: Wanted, excluded: tuple[ExcludedGpu, ...]) -> GpuReply:
        try:
            with self._lock:
                self._leave_now()
                self._rest.check()
                self._take_late_answer()
                return self._judge(self._question(self._ready(), wanted, excluded))
        finally:
            self._pause_as_requested()

    def _question(
        self, worker: ForkedWorker, wanted: Wanted, excluded: tuple[ExcludedGpu, ...]
    ) -> GpuReply:
        if self._rest.is_requested:  # since the child was forked: there was none to hang up on
            raise released()
        self._number += 1
        request = GpuRequest(
            number=self._number,
            wanted=wanted,
            vendor=self.vendor,
            options=self._options,
            excluded=excluded,
        )
        patience = self._patience()
        self._asked_at = self._clock()
        try:
            worker.socket.settimeout(patience)
            if self._link is not None:
                self._link.send(request)
            return self._receive()
        except TimeoutError:
            raise stuck.blocked(self._host, worker, self._waited()) from None
        except OSError:
            raise self._crashed() from None

    def _receive(self) -> GpuReply:
        """Take answers until it is the one to the last question; raises OSError."""
        while True:
            if self._link is None:
                raise ConnectionError("there is no child")
            reply = self._link.receive()
            if reply.number == self._number:
                self._asked_at = None
                self._answered = True
                return reply

    def _judge(self, reply: GpuReply) -> GpuReply:
        if reply.trouble == "no_library":
            self._hang_up()
            error = NoGpuLibraryError(f"no GPU library: {reply.reason}", NO_GPUS)
            self._rest.take(LIBRARY_AGAIN, error)
            raise error
        if reply.trouble:
            self._hang_up()  # the next one loads the library anew, which may be of another version
            failed = GpuDriverError(f"the GPU driver cannot be read: {reply.reason}")
            self._rest.take(DRIVER_AGAIN, failed)
            raise failed
        return reply

    def _waited(self) -> float:
        since = self._asked_at
        return 0.0 if since is None else self._clock() - since

    def _patience(self) -> float:
        return self._deadlines[self._answered]

    # --- the child ---------------------------------------------------------------------------------

    def _ready(self) -> ForkedWorker:
        if self._worker is None:
            self._parting.refuse_another()
            try:
                self._worker = self._starter.fork_worker(NAME)
            except OSError as error:
                raise GpuCrashedError(f"the GPU reader cannot be started: {error}") from None
            decoder = msgspec.msgpack.Decoder(GpuReply)
            self._link = ChildLink(self._worker.socket, decoder, max_body=MAX_BODY)
            self._answered = False
        return self._worker

    def _take_late_answer(self) -> None:
        """Where an answer is owed, see whether it has come; raises GpuBlockedError while it has not."""
        worker = self._worker
        if self._asked_at is None or worker is None:
            return
        try:
            worker.socket.settimeout(LATE)
            if (look := self._receive().watch) is not None:  # events are told once
                self._late += look.events
        except TimeoutError:
            if not stuck.may_be_ended(self._host, worker, self._waited()):
                raise stuck.blocked(self._host, worker, self._waited()) from None
            self._end(worker)
        except OSError:
            raise self._crashed() from None

    def _crashed(self) -> MldebugError:
        if self._rest.is_requested:
            return released()
        self._hang_up()
        self.restarts += 1
        if not self._budget.spend(self._clock()):
            return GpuCrashedError(DIED)
        error = died_too_often()
        self._rest.take(WINDOW, error)
        return error

    def _end(self, worker: ForkedWorker) -> None:
        """Kill one that hangs; the helper that does so looks again, and spares it inside a GPU driver."""
        self.restarts += 1
        self._worker, self._link, self._asked_at = None, None, None
        self._parting.end(worker)

    def _hang_up(self) -> None:
        """Let it go: an idle one closes its handles and ends, a stuck one when it comes back."""
        if self._worker is not None:
            self._parting.let_go(self._worker)
        self._worker, self._link, self._asked_at = None, None, None
        self._parting.forget_ended()


def _given(answer: T | None) -> T:
    if answer is None:
        raise GpuDriverError("the GPU reader did not answer what it was asked")
    return answer
