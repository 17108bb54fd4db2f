"""How long this run is usually quiet, and what timeout follows from it.

`auto` is 5 x the 99th percentile of the last 200 gaps between signs of progress, at least 30 s and at most 240 s; of fewer than 100 the
longest is left out as an outlier. Some things change it:

- The first gaps of an attempt (compilation, first batches, caches) are not usual: they count only while there are too few others.
- Fewer than 10 gaps are too few, so the timeout is 240 s; 4 are enough where the longest is at most twice the median. A gap that covers 10
  steps or more (a bar that is drawn late, or a look at quick steps) counts twice.
- A pause that the run has survived does not raise an alarm again: the timeout is at least 1.5 x the longest such gap (which fades by half
  in 3,500 gaps), as far as that is before torch ends the job and the evidence, and at least 1.5 x the median gap in any case: 450 s for
  steps of 300 s.
- A false alarm raises the percentile's part to 1.25 x the pause that caused it, at most to 2 x.

`mldebug.stall.rules` limits the result to the time before torch ends the job, and the evidence with it.
"""

import statistics

import msgspec

FACTOR = 5.0
LEAST, MOST = 30.0, 240.0
KEPT = 200  # recent enough to follow a batch-size ramp, enough for a 99th percentile
ENOUGH = 10
STEADY, EVEN = 4, 2.0  # gaps that are enough where the longest is at most so many times the median
WARM_UP = 2  # steps of an attempt whose gaps are set aside
MANY = 10  # steps that one gap covers, after which it counts twice
SURVIVED = 1.5
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
    first: list[float] = []  # seconds, of the first steps of this attempt
    begun: int = 0  # steps of this attempt, as far as they matter


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
        self.memory.first, self.memory.begun = [], 0

    def add(self, seconds: float, steps: int = 1) -> None:
        """Learn a gap that ended with progress by so many steps. A gap that is not a positive finite number is ignored."""
        if not 0 < seconds < float("inf"):
            return
        memory = self.memory
        if memory.begun < WARM_UP:
            memory.begun += max(1, min(steps, WARM_UP))
            memory.first = [*memory.first, seconds]
            return
        memory.longest = max(seconds, memory.longest * FADE)
        gaps = [seconds] * (2 if steps >= MANY else 1)
        memory.gaps = [*memory.gaps, *gaps][-KEPT:]

    def false_alarm(self, pause: float, timeout: float) -> None:
        """Learn that an alarm was false: the job went on after `pause` seconds. `timeout`: the seconds after which the alarm
        came.
        """
        if timeout > 0:
            wanted = self.memory.widened * MARGIN * pause / timeout
            self.memory.widened = min(WIDEST, max(self.memory.widened, wanted))

    @property
    def usual(self) -> float | None:
        """The median gap in seconds; None before the first."""
        gaps = self._known
        return statistics.median(gaps) if gaps else None

    @property
    def enough(self) -> bool:
        """Whether the gaps suffice to set a timeout: 10, or 4 where the longest is at most twice the median."""
        gaps = self.memory.gaps
        even = len(gaps) >= STEADY and max(gaps) <= EVEN * statistics.median(gaps)
        return even or len(gaps) >= ENOUGH

    @property
    def slowest(self) -> float:
        """The 99th percentile of the gaps in seconds, without the longest where there are 10 or more; 0 before the first."""
        gaps = sorted(self._known)
        last = len(gaps) - (2 if len(gaps) >= ENOUGH else 1)
        return gaps[min(last, int(0.99 * len(gaps)))] if gaps else 0.0

    @property
    def _known(self) -> list[float]:
        """The gaps of the rhythm, and those of the start while there are few others."""
        gaps = self.memory.gaps
        return gaps if self.enough else [*self.memory.first, *gaps]

    @property
    def _longest(self) -> float:
        return max(self.memory.longest, *(() if self.enough else self.memory.first), 0.0)

    def reach(self, seconds: float) -> bool:
        """Whether gaps of about `seconds` (up to 5 % more than the slowest), or longer ones, are usual in this run."""
        return NEAR * self.slowest >= seconds

    def timeout(self, evidence_limit: float) -> Timeout:
        """The automatic timeout of this run. A rare long gap in the past raises it to `evidence_limit` seconds at most."""
        base = self._learned() if self.enough else _unlearned()
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

    def _survived(self, evidence_limit: float) -> Timeout | None:
        usual = self.usual
        if usual is None:
            return None
        rare = min(SURVIVED * self._longest, evidence_limit)
        if rare >= SURVIVED * usual:
            return Timeout(rare, f"the run has survived a gap of {self._longest:.3g} s")
        return Timeout(SURVIVED * usual, f"1.5 x the usual gap of {usual:.3g} s")


def _unlearned() -> Timeout:
    return Timeout(MOST, f"fewer than {ENOUGH} gaps seen, so 240 s")
