"""How long steps take, from the logs of a run: a histogram that only grows.

A log may state the duration of a step. Where it does not, the steps that one poll brought share the time since the poll before; a
silence before that counts for the first new record. Logs may hold several counts of steps (an evaluation, a file for each rank):
only the count that has moved most is used, and another takes over after it was silent for a minute.

And how late the newest records of a file came to it, by the time that stands in them. Writers of charts hold records back: wandb writes its
offline file every 15 s, TensorBoard's writer every ten charts or 120 s. What a job wrote before it hung comes to the file when it hangs
already, from a thread that lives on. Such a record is no sign of life of now. Pure.
"""

import math
from bisect import bisect_left
from collections import deque

import msgspec

from mldebug.jobs.logs.records import STEP_BOUNDS, LogRecord, StepTimes

SILENT = 60.0  # seconds after which another count may lead, at least
ECHO = 8  # steps by which a rank may be behind another
JUMP = 10_000  # steps; more at once are no progress, but another count
MAX_COUNTS = 16
KEPT_READS = 8  # of one file that are compared
MOST_LATE = 130.0  # seconds; who is later has another clock, or copies old records

Key = tuple[object, str, int | None]  # log, format, total


class _Count(msgspec.Struct):
    """One count of steps in one log."""

    step: int
    moved: int = 0  # steps since the watch began
    reported_at: float = 0.0
    gap: float = 0.0  # between the last two polls that brought something
    has_durations: bool = False  # its records state them
    since: tuple[int, float] | None = None  # step and time from which the next mean counts
    polled_at: float = 0.0  # its log, for the last time
    first: int = 0  # steps of the first new record of this poll


class StepTimer:
    """Collects how long training steps take, from the steps that the logs of one run show."""

    def __init__(self) -> None:
        self._counts: dict[Key, _Count] = {}
        self._leader: _Count | None = None
        self._histogram = [0] * (len(STEP_BOUNDS) + 1)
        self._seconds = 0.0

    @property
    def times(self) -> StepTimes | None:
        """The histogram of step durations so far; None before the first."""
        return (
            StepTimes(counts=tuple(self._histogram), seconds=self._seconds)
            if any(self._histogram)
            else None
        )

    def begin(self, record: LogRecord, log: object, at: float) -> None:
        """Add a record of `log` that was there before the watch began; it was written at the monotonic time `at`, in
        seconds.
        """
        key = (log, record.format, record.total)
        if record.step is not None and key not in self._counts:
            count = self._count(key, record.step)
            if count is not None:
                count.since, count.polled_at = (record.step, at), at

    def take(self, records: tuple[LogRecord, ...], log: object, now: float) -> None:
        """Add the records that one poll of `log` found. `now`: monotonic seconds."""
        for record in records:
            if record.step is not None:
                self._take(record, record.step, (log, record.format, record.total), now)
        leader = self._leader
        if (
            records
            and leader is not None
            and leader.reported_at == now
            and not leader.has_durations
        ):
            self._mean(leader, now)
        for key, count in self._counts.items():
            if key[0] == log:
                count.polled_at, count.first = now, 0

    def _count(self, key: Key, step: int) -> _Count | None:
        count = self._counts.get(key)
        if count is None and len(self._counts) < MAX_COUNTS:
            count = self._counts[key] = _Count(step)
        return count

    def _take(self, record: LogRecord, step: int, key: Key, now: float) -> None:
        counted = key in self._counts
        count = self._count(key, step)
        if count is None:
            return
        if not self._leads(count, now):
            count.step = step  # another counts these
            return
        if now > count.reported_at > 0:
            count.gap = now - count.reported_at
        count.reported_at = now
        ahead = step - count.step
        if counted and -ECHO <= ahead <= 0:
            return
        if not 0 < ahead <= JUMP:
            ahead, count.since = 1, None
        count.step = step
        count.moved += ahead
        count.first = count.first or ahead
        if record.step_seconds is not None:
            count.has_durations = True
            self._observe(record.step_seconds, ahead)

    def _leads(self, count: _Count, now: float) -> bool:
        leader = self._leader
        if leader is count:
            return True
        if leader is not None:
            silent = now - leader.reported_at > max(SILENT, 5 * leader.gap)
            if not silent and count.moved <= leader.moved:
                return False
            count.since = None
        self._leader = count
        return True

    def _mean(self, count: _Count, now: float) -> None:
        if count.since is not None:
            step, at = count.since
            steps = count.step - step
            if steps <= 0 or not count.first:
                return
            each = (now - count.polled_at) / steps
            self._observe(each + (count.polled_at - at) / count.first, count.first)
            self._observe(each, steps - count.first)
        count.since = (count.step, now)

    def _observe(self, seconds: float, steps: int) -> None:
        self._histogram[bisect_left(STEP_BOUNDS, seconds)] += steps
        self._seconds += seconds * steps


class FlushDelay:
    """Compares the times in the records of one file with those of its promptest reads, so that a clock which differs from ours
    makes no difference, and starts anew where that clock was set back.
    """

    def __init__(self) -> None:
        self._ages: deque[float] = deque(maxlen=KEPT_READS)
        self._newest = -math.inf

    def take(self, written_at: float | None, now: float) -> float:
        """Seconds by which the newest record of one read is late; 0.0 where it tells no time. `written_at`: its own time (unix
        seconds); `now`: monotonic seconds.
        """
        if written_at is None:
            return 0.0
        if written_at < self._newest:
            self._ages.clear()  # its clock was set back
        self._newest = written_at
        self._ages.append(now - written_at)
        late = self._ages[-1] - min(self._ages)
        return late if late <= MOST_LATE else 0.0
