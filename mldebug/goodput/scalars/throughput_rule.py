"""When a run got slower: its throughput against the median of what it had with the same batch size. Pure.

An event needs `DROP` between the two medians, and that they stand apart: three quarters of the last `RECENT` values below three quarters of
those before. So noise, evaluations between the steps, and a log in which two loggers take turns make no event. Nor does a fall from which the
run has come back twice, unless it is deeper or lasts much longer: tasks, or kinds of data, that take turns. A value in another unit
(a factor of 1,000, 1,024, 100 or 60) begins anew, as does another batch size, or another sequence length than the run has had for a while.
The first values of a start are left out: they compile.

Where steps have grown slowly until now, as in a curriculum of sequence lengths, only what is lower than that trend is an event. TFLOP/s count
the work itself, so there a slow fall is one, too: they are compared with the highest median so far.
"""

from statistics import median

import msgspec

from mldebug.goodput.scalars.loss_rules import END, Found
from mldebug.goodput.scalars.model import (
    BATCH_SIZE,
    SEQUENCE_LENGTH,
    STEP_SECONDS,
    EventKind,
    TrainingPoint,
    changed,
)

FIGURES = {
    "tokens_per_second": "tokens/s",
    "tokens_per_second_per_gpu": "tokens/s per GPU",
    "samples_per_second": "samples/s",
    "tflops": "TFLOP/s",
    STEP_SECONDS: "steps/s",
}
"""The figures that show a throughput, the best first, and their units."""
OF_WORK = ("tflops",)  # that does not change with the length of a sequence
DROP, BACK = 0.10, 0.05
UNEXPLAINED = 0.05  # below the trend
STEADY = 8  # values with one sequence length, after which another is another stage, and not only another batch
RECENT, BEFORE, LEAST = 16, 240, 48  # values
SKIPPED = 8  # of each start
EVERY = 4  # values between two comparisons
ACCEPTED = 512  # values after which the lower throughput is the run's usual one
SMALLEST, LARGEST = 1e-9, 1e15
UNITS, SAME_UNIT = (1000.0, 1024.0, 100.0, 60.0), 0.1


class ValueOrigin(msgspec.Struct, frozen=True, array_like=True):
    """The step and the surroundings of one value."""

    step: int | None
    surroundings: dict[str, str]


class ThroughputRule(msgspec.Struct, kw_only=True):
    """Finds a throughput that fell by a tenth or more."""

    figure: str = ""
    batch: float | None = None
    length: float | None = None  # of a sequence
    alike: int = 0  # values with this length
    attempt: str = ""
    skip: int = SKIPPED
    before: list[float] = []
    recent: list[float] = []
    surroundings: dict[str, str] = {}  # of the last value before the recent ones
    origins: list[ValueOrigin] = []  # of the recent values
    turn: int = 0
    low: int = 0  # values since it fell
    is_open: bool = False
    is_low: bool = False  # told or not
    began: int | None = None  # step at which it fell
    level: float = 0.0  # the highest median of `before`
    level_quarter: float = 0.0  # a quarter of the values were below this then
    deepest: float = 1.0  # share of the usual at which it is now
    once: float = 1.0  # the lowest share from which it came back
    habit: float = 1.0  # the lowest from which it came back twice
    habit_length: int = 0  # values that it took at the longest

    def add(self, point: TrainingPoint) -> list[Found]:
        """Judge the tokens or samples per second of one point, if it has such a figure."""
        figure = next((one for one in FIGURES if one in point.values), "")
        if not figure or (self.figure and figure != self.figure):
            return []
        value = point.number(figure)
        if value is None or not SMALLEST < value < LARGEST:
            return []
        self.figure = figure
        over = self._follow(point)
        if self.skip:
            self.skip -= 1
            return over
        self._keep(1 / value if figure == STEP_SECONDS else value, point)
        self.turn += 1
        if self.turn % EVERY or len(self.before) < LEAST or len(self.recent) < RECENT:
            return over
        return [*over, *self._compare(point)]

    def _follow(self, point: TrainingPoint) -> list[Found]:
        """Begin anew with another batch size, and leave out the first values of another start."""
        batch = point.number(BATCH_SIZE) or self.batch
        if point.attempt != self.attempt:
            self.attempt, self.skip, self.recent, self.origins = point.attempt, SKIPPED, [], []
        is_other = self._is_other_stage(point)
        if batch != self.batch or is_other:
            self.batch = batch
            return self._begin_anew()
        return []

    def _is_other_stage(self, point: TrainingPoint) -> bool:
        """Whether the sequences have another length than they had for a while. Batches of all lengths have none."""
        length = point.number(SEQUENCE_LENGTH)
        if length is None or length == self.length:
            self.alike += length is not None
            return False
        was_steady, self.length, self.alike = self.alike >= STEADY, length, 1
        return was_steady

    def _keep(self, value: float, point: TrainingPoint) -> None:
        self.recent.append(value)
        self.origins.append(ValueOrigin(point.step, dict(point.surroundings)))
        if len(self.recent) > RECENT:
            oldest = self.recent.pop(0)
            origin = self.origins.pop(0)
            if not self.is_low:
                self.surroundings = origin.surroundings
                self.before = [*self.before[-BEFORE + 1 :], oldest]

    def _compare(self, point: TrainingPoint) -> list[Found]:
        usual, quarter = self._usual()
        now = median(self.recent)
        if self.is_low:
            return self._while_low(now, usual, point)
        if now > (1 - DROP) * usual:
            return []
        if any(abs(usual / now / unit - 1) < SAME_UNIT for unit in UNITS):
            return self._begin_anew()
        near_end = point.step is not None and point.total and point.step >= END * point.total
        apart = sorted(self.recent)[3 * RECENT // 4] < quarter
        if not apart or near_end or self._is_explained(now):
            return []
        self.is_low, self.low, self.deepest = True, 0, now / usual
        self.began = self.origins[0].step
        return self._tell(now, usual, point)

    def _usual(self) -> tuple[float, float]:
        """The throughput to compare with, and that below which a quarter of its values were."""
        usual, quarter = median(self.before), sorted(self.before)[len(self.before) // 4]
        if self.figure not in OF_WORK:
            return usual, quarter
        if usual > self.level and not self.is_low:
            self.level, self.level_quarter = usual, quarter
        return self.level, self.level_quarter

    def _is_explained(self, now: float) -> bool:
        """Whether it would be so low by now if it went on to fall as slowly as it did, or by chance, as the last values scatter."""
        if self.figure in OF_WORK:
            return False
        expected, last = self._expected(), sorted(self.before[-LEAST:])
        scatter = last[3 * LEAST // 4] - last[LEAST // 4]
        return now > (1 - UNEXPLAINED) * expected or expected - now < scatter

    def _expected(self) -> float:
        """The throughput by now if it goes on to fall as slowly as it did."""
        half = LEAST // 2
        first, second = median(self.before[-LEAST:-half]), median(self.before[-half:])
        steps = (
            (half + RECENT) / 2 / half
        )  # from the middle of the second to that of the recent ones
        return second * (second / first) ** steps if second < first else second

    def _words(self, now: float, usual: float, point: TrainingPoint) -> str:
        batch = f" with the same batch size of {self.batch:g}" if self.batch is not None else ""
        what = changed(self.surroundings, point.surroundings)
        why = f"what changed: {what}" if what else "nothing else that is watched has changed"
        return (
            f"the throughput fell by {1 - now / usual:.0%}, from {usual:.4g} to {now:.4g} {FIGURES[self.figure]}{batch};"
            f" {why}"
        )

    def _tell(self, now: float, usual: float, point: TrainingPoint) -> list[Found]:
        """The event of the fall that goes on, unless it was told, or it is as low as the run often is and has not lasted longer."""
        often = now > (1 - UNEXPLAINED) * self.habit * usual
        if self.is_open or (often and self.low <= 2 * self.habit_length):
            return []
        self.is_open = True
        return [Found(kind=EventKind.THROUGHPUT, words=self._words(now, usual, point), step=self.began)]  # fmt: skip

    def _while_low(self, now: float, usual: float, point: TrainingPoint) -> list[Found]:
        self.low += EVERY
        self.deepest = min(self.deepest, now / usual)
        if now > (1 - BACK) * usual:
            self.habit = min(self.habit, max(self.once, self.deepest))
            self.once = min(self.once, self.deepest)
            self.habit_length = max(self.habit_length, self.low)
            self.is_low = False
            return self._is_over()
        return self._begin_anew() if self.low >= ACCEPTED else self._tell(now, usual, point)

    def _begin_anew(self) -> list[Found]:
        self.before, self.recent, self.origins = [], [], []
        self.is_low, self.level, self.habit, self.once, self.habit_length = False, 0.0, 1.0, 1.0, 0
        return self._is_over()

    def _is_over(self) -> list[Found]:
        was_open, self.is_open = self.is_open, False
        return [Found(kind=EventKind.THROUGHPUT, over=True)] if was_open else []
