"""When GPUs are not read, and why: for a while after a failure, while a release lasts, and when the child dies too often."""

import contextlib
from collections import deque
from collections.abc import Callable

from mldebug.core.errors import MldebugError
from mldebug_agents.hardware.gpu.errors import GpuCrashedError, GpusReleasedError

RELEASED = "the GPUs are released: nothing reads them for now"
CRASHES, WINDOW = 3, 600.0  # so many in so many seconds, and it is left alone as long


class ReadPause:
    """Any thread may call `wish` and the properties; the rest only the thread that holds the reader's lock. `clock` counts seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._now: tuple[float, MldebugError] | None = None  # until when
        self._wishes: deque[float] = deque()  # until when, the newest last

    def wish(self, seconds: float) -> None:
        """Ask that the GPUs are left alone for so many seconds; 0 withdraws an earlier wish. It holds from `grant` on."""
        self._wishes.append(self._clock() + seconds)

    @property
    def wished(self) -> bool:
        """Whether a wish was made that `grant` has not carried out yet."""
        return bool(self._wishes)

    @property
    def released_seconds(self) -> float:
        """For how many seconds more the GPUs are left alone because of a wish; 0.0 where nobody has one."""
        with contextlib.suppress(IndexError):
            return max(0.0, self._wishes[-1] - self._clock())
        now = self._now
        if now is None or not isinstance(now[1], GpusReleasedError):
            return 0.0
        return max(0.0, now[0] - self._clock())

    def grant(self) -> None:
        """Carry out all wishes made since the last call; the newest one holds."""
        while self._wishes:
            self._now = (self._wishes[0], released())
            self._wishes.popleft()

    def take(self, seconds: float, error: MldebugError) -> None:
        """Read no GPU for so many seconds; until then `check` raises this error."""
        self._now = (self._clock() + seconds, error)

    def check(self) -> None:
        """Raise the reason while no GPU may be read; otherwise do nothing."""
        if self._now is None:
            return
        until, error = self._now
        if self._clock() < until:
            raise type(error)(error.message, error.way_out)  # a new one: each keeps its traceback
        self._now = None


def released() -> GpusReleasedError:
    """The error for a caller who wants a reading while the GPUs are released."""
    return GpusReleasedError(RELEASED)


class CrashBudget:
    """How often the GPU child may die within a time span. Times are seconds of any clock that only rises."""

    def __init__(self) -> None:
        self._deaths: list[float] = []

    def spend(self, now: float) -> bool:
        """Count one death of the child. True where it was one too many; counting then begins anew."""
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
