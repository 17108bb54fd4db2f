"""When GPUs are not read, and why: for a while after a failure, while a release lasts, and when the child dies too often."""

import contextlib
from collections import deque
from collections.abc import Callable

from mldebug.core.errors import MldebugError
from mldebug_agents.hardware.gpu.errors import GpuCrashedError, GpusReleasedError

RELEASED = "the GPUs are released: nothing reads them for now"
CRASHES, WINDOW = 3, 600.0  # so many in so many seconds, and it is left alone as long


class ReadPause:
    """When GPUs must not be read, and the error that says why. `clock` returns seconds. Any thread may call `request` and read the
    properties; all else needs the lock of the reader (`VendorReader`).
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._now: tuple[float, MldebugError] | None = None  # until when
        self._requests: deque[float] = deque()  # until when, the newest last

    def request(self, seconds: float) -> None:
        """Request that no GPU is read for this many seconds from now; 0 ends an earlier request. It takes effect at the
        next `grant`.
        """
        self._requests.append(self._clock() + seconds)

    @property
    def is_requested(self) -> bool:
        """Whether `request` was called and `grant` has not yet put it into effect."""
        return bool(self._requests)

    @property
    def released_seconds(self) -> float:
        """Seconds for which the GPUs are still to be released, as a call of `request` requested, whether that was granted yet or not; 0.0
        without such a call.
        """
        with contextlib.suppress(IndexError):
            return max(0.0, self._requests[-1] - self._clock())
        now = self._now
        if now is None or not isinstance(now[1], GpusReleasedError):
            return 0.0
        return max(0.0, now[0] - self._clock())

    def grant(self) -> None:
        """Put the calls of `request` since the last `grant` into effect; of several, only the newest."""
        while self._requests:
            self._now = (self._requests[0], released())
            self._requests.popleft()

    def take(self, seconds: float, error: MldebugError) -> None:
        """Allow no reading for this many seconds: `check` raises this error until then."""
        self._now = (self._clock() + seconds, error)

    def check(self) -> None:
        """Raise the error of the present pause, if there is one; otherwise do nothing."""
        if self._now is None:
            return
        until, error = self._now
        if self._clock() < until:
            raise type(error)(error.message, error.way_out)  # a new one: each keeps its traceback
        self._now = None


def released() -> GpusReleasedError:
    """A new error for a caller who wants a reading while the GPUs are released."""
    return GpusReleasedError(RELEASED)


class CrashBudget:
    """How often the GPU child may die within a time span. Times are seconds of any clock that only rises."""

    def __init__(self) -> None:
        self._deaths: list[float] = []

    def spend(self, now: float) -> bool:
        """Count one death of the child. True where it was one too many (`CRASHES` in `WINDOW` seconds); the count then
        starts again at 0. `now`: seconds of a clock that only rises.
        """
        self._deaths = [*(at for at in self._deaths if now - at < WINDOW), now]
        if len(self._deaths) < CRASHES:
            return False
        self._deaths.clear()
        return True


def died_too_often() -> GpuCrashedError:
    """The error for a child that has died more often than its budget allows."""
    return GpuCrashedError(
        f"the GPU reader has died {CRASHES} times in {WINDOW / 60:.0f} minutes:"
        " it is not started again for as long",
        "the driver and its library may be of different versions: restart the node",
    )
