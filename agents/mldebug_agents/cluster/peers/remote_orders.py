"""Captures that other nodes have ordered; one capture serves all who order it meanwhile. Belongs to the main loop's thread."""

from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import NamedTuple, TypeVar

from mldebug.core.errors import MldebugError
from mldebug.core.model import NodeCapture
from mldebug.core.redact import clean
from mldebug_agents.watch.runs import Run

AGAIN = 10.0  # seconds in which one capture serves all who ask for it for the same reason
MOMENT = 1.0  # seconds in which it serves all
MOST, WINDOW = 12, 60.0  # captures of one run that one source has taken, in so many seconds
MAX_BEGUN = 256  # captures of one run that are remembered
MOST_INSPECTED, INSPECTED = 10, 600.0  # inspections of one run for one source, in so many seconds
MOST_PASSED_ON = 5  # requests of one source that a coordinator passes on to nodes in that time


T = TypeVar("T")


def give(answer: "Future[T]", value: T) -> None:
    """Set the future's result, unless it was cancelled because its caller has stopped waiting."""
    if answer.set_running_or_notify_cancel():
        answer.set_result(value)


def refuse(answer: "Future[T]", error: MldebugError) -> None:
    """Set the future's exception, unless it has a result or was cancelled by a caller that stopped waiting."""
    if not answer.done() and answer.set_running_or_notify_cancel():
        answer.set_exception(error)


class TimedCapture(NamedTuple):
    """A capture, and in `came` the monotonic time when it was complete (the wall clock may be set meanwhile)."""

    capture: NodeCapture
    came: float

    def age(self, now: float) -> float:
        """Seconds since the capture was begun. `now`: monotonic seconds."""
        return max(0.0, now - self.came) + self.capture.duration_seconds


class OrderLimit:
    """Limits how many orders (to capture, to inspect) one source may give for one run: `most` in `seconds`."""

    def __init__(self, most: int, seconds: float) -> None:
        self._most, self._seconds = most, seconds
        self._taken: dict[tuple[str, str], deque[float]] = {}  # monotonic

    def take(self, what: str, source: str, now: float) -> bool:
        """Whether the source may give one more order, which is counted then. `now`: monotonic seconds."""
        for key, times in list(self._taken.items()):
            while times and now - times[0] >= self._seconds:
                times.popleft()
            if not times:
                del self._taken[key]
        times = self._taken.setdefault((what, source), deque())
        if len(times) >= self._most:
            return False
        times.append(now)
        return True


CaptureFuture = Future[TimedCapture | None]


class RemoteOrders:
    """Captures that other nodes ordered. `capture` is called to have a run captured soon; the result comes back through `captured` or `failed`."""

    def __init__(self, capture: Callable[[Run], None]) -> None:
        self._capture = capture
        self._waiting: dict[str, list[CaptureFuture]] = {}  # by job
        self._taken: dict[str, float] = {}  # job -> when its last one came back
        self._reasons: dict[str, set[str]] = {}  # job -> the incidents that its last capture serves
        self._begun: dict[str, deque[tuple[str, float]]] = {}  # job -> who had it captured, when

    def keep(self, jobs: Collection[str]) -> None:
        """Forget the orders for jobs that are not among these ids."""
        for known in (self._waiting, self._taken, self._reasons, self._begun):
            for job_id in known.keys() - jobs:
                del known[job_id]

    def allows(self, run: Run, source: str, now: float) -> bool:
        """Whether this source may order one more capture of the run: at most `MOST` in `WINDOW` seconds, since each costs
        its ranks time. `now`: monotonic seconds.
        """
        begun = self._begun.get(run.job.id, ())
        return sum(who == source and now - at < WINDOW for who, at in begun) < MOST

    def order(
        self, run: Run, incident: str, answer: CaptureFuture, now: float, source: str = ""
    ) -> None:
        """Order a capture of the run for an incident of another node; the future `answer` gets it. `now`: monotonic
        seconds.

        The last capture is used again if it is younger than `AGAIN` seconds and was for the same incident, or younger than
        `MOMENT` seconds: an older one would show another moment than the captures of the other nodes.
        """
        job_id = run.job.id
        age = now - self._taken.get(job_id, -AGAIN)
        reasons = self._reasons.setdefault(job_id, set())
        same = incident in reasons
        if run.capture is not None and age < (AGAIN if same else MOMENT):
            reasons.add(incident)
            give(answer, TimedCapture(run.capture, self._taken[job_id]))
            return
        waiting = [one for one in self._waiting.get(job_id, ()) if not one.cancelled()]
        self._waiting[job_id] = [*waiting, answer]
        if not waiting:
            reasons.clear()
            begun = self._begun.setdefault(job_id, deque(maxlen=MAX_BEGUN))
            begun.append((source, now))
            self._capture(run)
        reasons.add(incident)

    def captured(self, job_id: str, capture: NodeCapture, now: float) -> None:
        """Pass the finished capture to all orders for this job. `now`: monotonic seconds."""
        self._taken[job_id] = now
        for waiting in self._waiting.pop(job_id, ()):
            give(waiting, TimedCapture(capture, now))

    def failed(self, job_id: str, error: Exception) -> None:
        """Pass the reason why the capture failed to all orders for it, as an MldebugError."""
        why = clean(f"its capture failed: {type(error).__name__}: {error}", 200)
        for waiting in self._waiting.pop(job_id, ()):
            refuse(waiting, MldebugError(why))
