"""When did the job last make progress? The signals of one run, on a clock that counts only watched time.

The watched clock advances with the looks at the run, and with those at its node that had no time for it, but never by more than three look
intervals at once and never backwards: a pause of the agent, a suspended machine or a jumping clock is not held against the job.
"""

import math
from collections.abc import Sequence

import msgspec

from mldebug.stall.signals import STEPS, Progress, ProgressKind, RunLook
from mldebug.stall.timeouts import GapMemory, ProgressGaps

MAX_LOOKS_MISSED = 3.0
LATEST = 150.0  # seconds by which a sign of progress may be known late
JUMP = 10_000  # steps at once; more are another count
BEATS = 10  # signs of a rhythm without step numbers, after which the job counts as started
COUNTED = (ProgressKind.RECORD, ProgressKind.RAS, ProgressKind.LOG_GROWTH)
"""Counts since the agent came: after its restart they begin anew."""


class ProgressMemory(msgspec.Struct, kw_only=True):
    """What is stored of the progress of one attempt (one start of the job). `looked_at` and the fields in `_at` are monotonic
    seconds; the other times are seconds of the clock that runs only while the run is watched.
    """

    now: float = 0.0
    looked_at: float | None = None
    values: dict[str, float] = {}
    progressed: float = 0.0
    progressed_at: float = 0.0
    # this agent saw progress happen, and did not only find a value that was there before; "heard" on disk
    observed: bool = msgspec.field(default=False, name="heard")
    stepped: bool = False
    beats: int = 0
    grown: float | None = None
    gaps: GapMemory = msgspec.field(default_factory=GapMemory)


class StallMemory(msgspec.Struct, kw_only=True):
    """What is stored of the stall decision on one run, so that an agent that restarts goes on with it: learned gaps, clock, open
    incident.
    """

    run: str = ""
    attempt: int = 0
    # "pulse" on disk
    progress: ProgressMemory = msgspec.field(default_factory=ProgressMemory, name="pulse")
    lived: bool = False  # the attempt has had ranks
    over: bool = False
    confirmed: bool = False
    opened: float | None = None  # watched time
    captured: int = 0  # times after the incident opened
    awaits: bool = False  # a Flight Recorder that may still come
    key: str = ""
    stood: tuple[int, ...] = ()  # ranks that were frozen when the incident opened
    places: frozenset[str] = frozenset()  # of the pause that was taken for a stall, in the program
    stalled_since: float | None = None
    timeout: float = 0.0  # the one that raised the alarm
    incidents: int = 0


class ProgressClock:
    """Measures how long one run is without progress. `interval`: the usual seconds between two looks."""

    def __init__(self, interval: float, memory: ProgressMemory | None = None) -> None:
        self.memory = memory or ProgressMemory()
        self.gaps = ProgressGaps(self.memory.gaps)
        self._most = MAX_LOOKS_MISSED * interval
        self._resumed = self.memory.looked_at  # by an earlier agent; None where there was none
        self._knew_step = ProgressKind.STEP in self.memory.values
        self._reported: set[str] = set()
        self._counted = -math.inf  # up to when looks that left this run out are counted
        self._advance = 0  # steps by which the step number rose at the last look
        self._unknown = (
            0.0  # seconds before the last look for which no node has reported its signals yet
        )
        self._printed: dict[int, int] = {}  # by rank: bytes that its main thread had written
        self._wrote = (False, False)  # a main thread, in the look before and in this one

    def look_every(self, interval: float) -> None:
        """Set the usual seconds between two readings of the run; one reading advances the clock by at most three times as many."""
        self._most = MAX_LOOKS_MISSED * interval

    def begin_attempt(self) -> None:
        """Forget the progress of the attempt before; the clock stays, and what was learned of the usual seconds between two
        signs of progress.
        """
        old = self.memory
        self.gaps.begin_attempt()
        self.memory = ProgressMemory(
            now=old.now, progressed=old.now, looked_at=None, gaps=self.gaps.memory
        )

    def update(
        self, look: RunLook, learn: bool, *, spared: bool = False, asleep_since: Sequence[float] = ()
    ) -> float | None:  # fmt: skip
        """Add one reading of the run. Returns how many seconds without progress have ended with it; None where the job has not
        moved since the reading before, and at the first one. `learn`: whether so long a gap is taken as usual for the run from
        now on; `spared`: whether it was a pause of the whole program; `asleep_since`: the moments (of this clock) since which
        ranks have not run at all: a step that a bar shows late was made before.
        """
        memory, before = self.memory, self.memory.looked_at
        at = look.at if math.isfinite(look.at) else before or 0.0
        passed = 0.0 if before is None else self._since_counted(at)
        memory.now += min(passed, self._most)
        memory.looked_at = at
        if before is None:
            memory.progressed, memory.progressed_at = memory.now, at
        self._note_writers(look)
        signals = [signal for signal in look.progress if _is_sane(signal)]
        self._withdraw({signal.kind for signal in look.progress})
        self._unknown = _unknown_for(signals, at)
        moved = [signal for signal in signals if self._moved(signal, before)]
        if before is None:
            self._arrive(signals, at)
            return None
        if not moved:
            return None
        redrawn = all(signal.redrawn for signal in moved)
        slept = [one for one in asleep_since if redrawn and one >= memory.progressed]
        return self._progress(moved, at, learn, spared, min(slept, default=math.inf))

    def pass_over(self, at: float) -> None:
        """Count the time up to `at` (monotonic seconds) as watched, though there was no time to look at the run: its node was."""
        if self.memory.looked_at is not None and math.isfinite(at):
            self.memory.now += min(self._since_counted(at), self._most)
            self._counted = max(self._counted, at)

    def _since_counted(self, at: float) -> float:
        return max(0.0, at - max(self.memory.looked_at or 0.0, self._counted))

    @property
    def now(self) -> float:
        """Seconds by the clock that runs only while the run is watched."""
        return self.memory.now

    @property
    def quiet(self) -> float:
        """Seconds without progress, less the time for which no node has reported its signals yet (in a large cluster they come
        every 20 s).
        """
        return max(0.0, self.memory.now - self.memory.progressed - self._unknown)

    @property
    def has_rhythm(self) -> bool:
        """Whether the run has reported a step, a log record or a heartbeat."""
        return any(kind in self.memory.values for kind in STEPS)

    def started(self, look: RunLook) -> bool:
        """Whether this attempt has made its first step, or 10 looks of it brought new log records or heartbeats. A bar that stands
        at 0 is no step: it is drawn before the first one, which compiles and connects.
        """
        return look.started or self.memory.stepped or self.memory.beats >= BEATS

    def log_grows(self, within: float) -> bool:
        """Whether the log grew in the last `within` seconds by a line that the main thread of a rank may have written."""
        return self.memory.grown is not None and self.memory.now - self.memory.grown < within

    @property
    def last_step(self) -> str:
        """The run's last step number as text; without one the number of log records or heartbeats so far; "" without any."""
        values = (self.memory.values.get(kind) for kind in STEPS)
        return next((f"{value:.15g}" for value in values if value is not None), "")

    def _moved(self, signal: Progress, before: float | None) -> bool:
        """Whether this signal changed since the look before. Growth of a log is remembered, but is no movement."""
        old = self.memory.values.get(signal.kind)
        if signal.kind is ProgressKind.STEP:
            ahead = signal.value - old if old is not None else 0.0
            self._advance = int(ahead) if 0 < ahead <= JUMP else 0
        self.memory.values[signal.kind] = signal.value
        anew = self._resumed is not None and signal.kind not in self._reported
        self._reported.add(signal.kind)
        if anew and signal.kind in COUNTED:
            changed = signal.at > (self._resumed or 0.0) and not self._knew_step
        elif old is None:
            changed = before is not None and signal.at > before
        else:
            shrinks = signal.kind is not ProgressKind.LOG_GROWTH and signal.value < old and not anew
            changed = signal.value > old or shrinks
        if signal.kind is ProgressKind.LOG_GROWTH:
            if changed and any(self._wrote):
                self.memory.grown = self.memory.now
            return False
        return changed

    def _note_writers(self, look: RunLook) -> None:
        """Note whether a rank's main thread has written anything since the look before. One on another node may always have, and
        one whose counters may not be read.
        """
        printed = {rank.rank: rank.thread_written_bytes for rank in look.ranks}
        wrote = any(count != self._printed.get(rank, count) for rank, count in printed.items())
        unknown = look.elsewhere or any(not rank.io_bytes for rank in look.ranks)
        self._printed, self._wrote = printed, (self._wrote[1], wrote or unknown)

    def _withdraw(self, reported: set[ProgressKind]) -> None:
        """Forget a signal that earlier looks reported and this one does not: it was not this job's."""
        for kind in self._reported - reported:
            self.memory.values.pop(kind, None)
        self._reported &= reported

    def _arrive(self, signals: list[Progress], at: float) -> None:
        """The first look: the age of the newest signal is how long the job has been quiet already."""
        ages = [
            max(0.0, at - signal.at)
            for signal in signals
            if signal.kind is not ProgressKind.LOG_GROWTH
        ]
        age = min(ages, default=0.0)
        self.memory.progressed = self.memory.now - age
        self.memory.progressed_at = at - age

    def _progress(
        self, moved: list[Progress], at: float, learn: bool, spared: bool, slept: float
    ) -> float:
        memory = self.memory
        latest = min(max(signal.at for signal in moved), at - max(0.0, memory.now - slept))
        when = memory.now - min(max(0.0, at - latest), LATEST)
        pause = max(0.0, when - memory.progressed)
        rhythm = [signal for signal in moved if signal.kind in STEPS]
        # a bar at 0 is no first step; later it is the beginning of the next epoch
        stepped = bool(rhythm) and (memory.stepped or memory.values.get(ProgressKind.STEP) != 0)
        if learn and stepped:
            events = max(1, *(signal.events for signal in rhythm))
            if memory.observed:
                self.gaps.note_silence(pause)
                self.gaps.add(pause / events, max(events, self._advance), spared=spared)
            else:
                steps = max(events, self._advance)
                self.gaps.begin(pause / steps, steps)
        memory.observed = True
        memory.stepped = memory.stepped or stepped
        memory.beats += stepped
        memory.progressed = max(memory.progressed, when)
        memory.progressed_at = max(memory.progressed_at, min(latest, at))
        return pause


def _unknown_for(signals: list[Progress], at: float) -> float:
    """Seconds up to `at` for which no node has reported yet whether the job moves; 0 where no signal has a rhythm."""
    until = [
        at if signal.until is None else signal.until for signal in signals if signal.kind in STEPS
    ]
    return max(0.0, at - max(until)) if until else 0.0


def _is_sane(signal: Progress) -> bool:
    """A log may say `iteration nan`."""
    return math.isfinite(signal.value) and math.isfinite(signal.at)
