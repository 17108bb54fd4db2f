"""How long this run is usually quiet, and what timeout follows from it.

`auto` is 5 x the 99th percentile of the last 200 gaps between signs of progress, at least 30 s and at most 240 s; of fewer than 100 the
longest is left out as an outlier. Some things change it:

- The first gaps of an attempt (compilation, first batches, caches) are not usual: they count only while there are no others.
- Fewer than 10 gaps are too few, unless 3 are even beside the longest one (a bar that was drawn late): at most twice their median. Until
  there are enough the timeout is 5 x the longest (before the first gap: 5 x the time to the first step), at least 45 s and at most the larger of
  75 s and 1.2 x the longest; a rank that works is blamed as late as if it were 240 s. Gaps that cover 100 steps are enough for the timeout.
- A gap that covers 10 steps or more (a late bar, or a look at quick steps) counts twice.
- A pause that the run has survived does not raise an alarm again: the timeout is at least 1.5 x the longest such gap (which fades by half
  in 3,500 gaps), as far as that is before torch ends the job and the evidence, and at least 1.5 x the median gap in any case: 450 s for
  steps of 300 s. A pause of all ranks alike is not counted so: `mldebug.stall.rules` gives the next one its time without that.
- A pause that was reported and ended by itself (an evaluation or a checkpoint of five minutes in each epoch) raises the limit in its own place
  of the program alone, to 1.5 x its length, an hour at most: `mldebug.stall.rules` asks for it.
- A false alarm raises the percentile's part to 1.25 x the pause that caused it, at most to 2 x.

A log that is flushed every minute is silent for a minute though its steps are quick: until that usual silence is over nothing is captured while a
rank moves.

A timeout that a person has set is at least 1.5 x the longest but one of the last 8 silences between two signs of progress, as far as `auto` would
not be shorter: a chart file is written every 50 steps, and the job is well meanwhile.

`mldebug.stall.rules` limits the result to the time before torch ends the job, and the evidence with it.
"""

import math
import statistics
from collections.abc import Collection

import msgspec

FACTOR = 5.0
LEAST, MOST = 30.0, 240.0
SILENCES = 8
KEPT = 200  # recent enough to follow a batch-size ramp, enough for a 99th percentile
ENOUGH = 10
STEADY, EVEN = (
    3,
    2.0,
)  # gaps beside the longest that are enough where none exceeds so many times their median
YOUNG, YOUNG_MOST = (
    45.0,
    75.0,
)  # seconds while there are too few gaps: a start says nothing about steps
WARM_UP = 2  # steps of an attempt whose gaps are set aside
START = 1.2  # times the first step, which a second one may take at most
MANY = 10  # steps that one gap covers, after which it counts twice
COVERED = 100  # steps whose gaps tell a rhythm, however few these are
SURVIVED = 1.5
PLACES = 8  # in which the run has survived a pause
LONGEST_PAUSE = (
    3600.0  # seconds that any place may have: a server that was away for a night is no habit
)
FADE = 0.9998
WIDEST = 2.0
MARGIN = 1.25
NEAR = 1.05


class GapMemory(msgspec.Struct, kw_only=True):
    """What is stored of the usual gaps between a run's signs of progress, so that an agent that restarts need not learn them
    again.
    """

    gaps: list[float] = []  # seconds, the oldest first
    longest: float = 0.0
    widened: float = 1.0
    silences: list[
        float
    ] = []  # seconds between the last signs of progress, however many steps each told
    first: list[float] = []  # seconds, of the first steps of this attempt
    begun: int = 0  # steps of this attempt, as far as they matter
    covered: int = 0  # steps that the gaps cover, up to `COVERED`
    pauses: dict[
        str, float
    ] = {}  # seconds of those that raised an alarm and ended by themselves, by their place
    start: float = 0.0  # seconds from the beginning of this attempt to its first signs of progress, by each; 0: not known


class Timeout(msgspec.Struct, frozen=True):
    """A timeout in seconds, and in words how it was found."""

    seconds: float
    why: str


class ProgressGaps:
    """Learns from the gaps (seconds) between the signs of progress of one run which timeout fits it."""

    def __init__(self, memory: GapMemory | None = None) -> None:
        self.memory = memory or GapMemory()

    def begin_attempt(self) -> None:
        """Note that a new attempt begins: its first gaps are kept apart, because a start-up is slower."""
        self.memory.first, self.memory.begun, self.memory.start = [], 0, 0.0

    def begin(self, seconds: float, steps: int = 1) -> None:
        """Learn that the first sign of progress of an attempt took this many seconds for each of the `steps` that it tells. Until
        other gaps are known, this is taken as an upper limit for a step.
        """
        self.memory.start = seconds if math.isfinite(seconds) else 0.0
        if steps >= MANY:
            self.memory.begun = WARM_UP  # the first steps lie behind it

    def add(self, seconds: float, steps: int = 1, *, spared: bool = False) -> None:
        """Learn a gap of this many seconds, which ended with progress by `steps` steps. A gap that is not a positive finite
        number is ignored. `spared`: it was a pause of the whole program, which gets its time whatever was survived before.
        """
        if not 0 < seconds < float("inf"):
            return
        memory = self.memory
        if memory.begun < WARM_UP:
            memory.begun += max(1, min(steps, WARM_UP))
            memory.first = [*memory.first, seconds]
            return
        memory.longest = max(0.0 if spared else seconds, memory.longest * FADE)
        memory.covered = min(COVERED, memory.covered + steps)
        gaps = [seconds] * (2 if steps >= MANY else 1)
        memory.gaps = [*memory.gaps, *gaps][-KEPT:]

    def note_silence(self, seconds: float) -> None:
        """Learn that `seconds` passed between two signs of progress. In a log that is flushed seldom they are many, and each sign brings
        many steps at once.
        """
        if 0 < seconds < math.inf:
            self.memory.silences = [*self.memory.silences, seconds][-SILENCES:]

    @property
    def silence(self) -> float:
        """Seconds without a sign of progress that are usual in this run, with a margin; 0 while fewer than three are known."""
        silences = self.memory.silences
        return SURVIVED * statistics.median(silences) if len(silences) >= STEADY else 0.0

    @property
    def spread(self) -> float:
        """Seconds between two signs of progress that this run needs now and then though it is well: the longest but one of the last
        `SILENCES`, at most twice their median; 0 while fewer than three are known.
        """
        silences = sorted(self.memory.silences)
        if len(silences) < STEADY:
            return 0.0
        return min(silences[-2], EVEN * statistics.median(silences))

    def false_alarm(self, pause: float, timeout: float) -> None:
        """Learn that an alarm was false: the job went on after `pause` seconds. `timeout`: the seconds after which the alarm
        came.
        """
        if timeout > 0:
            wanted = self.memory.widened * MARGIN * pause / timeout
            self.memory.widened = min(WIDEST, max(self.memory.widened, wanted))

    def survive(self, places: Collection[str], seconds: float) -> None:
        """Learn that a pause of so many seconds ended by itself, which the run made in these places of its program."""
        for place in places:
            seconds_there = max(seconds, self.memory.pauses.pop(place, 0.0))
            self.memory.pauses = {**self.memory.pauses, place: seconds_there}  # the newest last
        while len(self.memory.pauses) > PLACES:
            del self.memory.pauses[next(iter(self.memory.pauses))]

    def pause_at(self, places: Collection[str]) -> float:
        """Seconds that a pause in these places may take, by what the run has survived in each of them; 0 where one is not known."""
        known = min((self.memory.pauses.get(place, 0.0) for place in places), default=0.0)
        return min(LONGEST_PAUSE, SURVIVED * known)

    def at_least(self, wanted: float, automatic: float) -> Timeout | None:
        """The timeout in place of the `wanted` one (seconds, set by a person), where this run is often silent for as long without being
        stalled: not longer than the `automatic` one. None where the wanted one is long enough.
        """
        needed = min(SURVIVED * self.spread, automatic)
        if needed <= wanted:
            return None
        why = f"more than stall.timeout ({wanted:.3g} s), for up to {self.spread:.3g} s pass between its signs of progress"
        return Timeout(needed, why)

    @property
    def usual(self) -> float | None:
        """The median gap in seconds; None before the first."""
        gaps = self._known
        return statistics.median(gaps) if gaps else None

    @property
    def enough(self) -> bool:
        """Whether the gaps suffice to set a timeout: 10, or 3 beside the longest that are at most twice their median."""
        rest = _without_longest(self.memory.gaps)
        even = len(rest) >= STEADY and rest[-1] <= EVEN * statistics.median(rest)
        return even or len(self.memory.gaps) >= ENOUGH

    @property
    def _is_known(self) -> bool:
        """Whether the gaps suffice for the timeout, if not to blame a rank that works: they are enough, or cover many steps."""
        return self.enough or (bool(self.memory.gaps) and self.memory.covered >= COVERED)

    @property
    def slowest(self) -> float:
        """The 99th percentile of the gaps in seconds, without the longest where there are enough; 0 before the first."""
        gaps = sorted(self._known)
        rest = (_without_longest(gaps) if self._is_known else gaps) or gaps
        return rest[min(len(rest) - 1, int(0.99 * len(gaps)))] if gaps else 0.0

    @property
    def _known(self) -> list[float]:
        """The gaps of the rhythm; those of the start while there are no others."""
        return self.memory.gaps or self.memory.first

    @property
    def _longest(self) -> float:
        return max(self.memory.longest, *(() if self.memory.gaps else self.memory.first), 0.0)

    def reach(self, seconds: float) -> bool:
        """Whether gaps of about `seconds` (up to 5 % more than the slowest), or longer ones, are usual in this run."""
        return NEAR * self.slowest >= seconds

    def timeout(self, evidence_limit: float) -> Timeout:
        """The automatic timeout of this run. A rare long gap in the past raises it to `evidence_limit` seconds at most."""
        base = self._learned() if self._is_known else self._unlearned()
        base = self.widen(base)
        floor = self._survived(evidence_limit)
        return floor if floor and floor.seconds > base.seconds else base

    def widen(self, timeout: Timeout) -> Timeout:
        """The automatic timeout, made longer (at most 2 x) where this run has had false alarms."""
        factor = self.memory.widened
        if factor == 1:
            return timeout
        return Timeout(timeout.seconds * factor, f"{timeout.why}, x {factor:.2g} after false alarm")

    def _learned(self) -> Timeout:
        usual, many = self.slowest, len(self.memory.gaps)
        seconds = min(MOST, max(LEAST, FACTOR * usual))
        bound = {LEAST: ", at least 30 s", MOST: ", at most 240 s"}.get(seconds, "")
        return Timeout(seconds, f"5 x {usual:.3g} s, the 99th percentile of {many} gaps{bound}")

    def _unlearned(self) -> Timeout:
        longest = max(self._known, default=self.memory.start)
        if not longest:
            return Timeout(MOST, f"fewer than {ENOUGH} gaps seen, so {MOST:.0f} s")
        most = min(MOST, max(YOUNG_MOST, START * longest))
        seconds = min(most, max(YOUNG, FACTOR * longest))
        return Timeout(seconds, f"fewer than {ENOUGH} gaps seen, the longest {longest:.3g} s")

    def _survived(self, evidence_limit: float) -> Timeout | None:
        usual = self.usual
        if usual is None:
            return None
        rare = min(SURVIVED * self._longest, evidence_limit)
        if rare >= SURVIVED * usual:
            return Timeout(rare, f"the run has survived a gap of {self._longest:.3g} s")
        return Timeout(SURVIVED * usual, f"1.5 x the usual gap of {usual:.3g} s")


def _without_longest(gaps: list[float]) -> list[float]:
    """The gaps in order of length, without the longest one; it may stand there twice. Equal ones stay where there are more."""
    longest = max(gaps, default=0.0)
    alone = gaps.count(longest) <= 2
    return sorted(gap for gap in gaps if gap < longest or not alone)
