"""When a loss is not a number, leaps, or climbs: judged against the run's own earlier losses. Pure.

**Not finite**: at once, where every loss before was a number and `PROVEN` of them came. Some loops print `nan` for a value that they have not computed; a run in
which `nan` came and went is judged by its own habit: an event needs more of them in a row than twice what it has shown. A long row is a habit
only from its second time on, and what an attempt ended in is none: a run that goes back to a checkpoint may become NaN again. It is over
after `FINITE_AGAIN` numbers in a row: one in every second record is a loss that is still broken.

**Spike**: `IN_A_ROW` losses above the median of the last `WINDOW` by `CLEAR` times their spread, by `LEAP` of the median, and by twice
what any single loss of this run has been above its own: a curve that is wild by nature (rewards, adversarial losses) sets its own limit.
What has happened twice, and went by, is the run's nature as well. Tasks or kinds of data that take turns have levels of their own, and each is
judged by itself (`loss_levels`).

**Divergence**: a spike that lasts and is `FAR` above the median (other data may be a third harder), or medians of `BLOCK` losses that
leave all that the run has shown, and climb clear of what they were before the loss was at its best.

Neither of the two is judged in warm-up (the first `WARM_UP` losses; a learning rate that rises), for a window after another batch size, nor
at the end of the schedule.
"""

from math import isfinite
from statistics import median

import msgspec

from mldebug.goodput.scalars.loss_levels import (
    FEWEST,
    LossLevel,
    groups,
    is_steady,
    keep,
    level_of,
    spread,
    take_turns,
)
from mldebug.goodput.scalars.model import (
    BATCH_SIZE,
    LOSS,
    EventKind,
    TrainingPoint,
    usual,
)

WINDOW, WARM_UP = 64, 100  # losses
CLEAR, IN_A_ROW = 10.0, 3
LEAP = 0.3  # of the median: data that are a quarter harder are no spike
MOST_CLEAR = 1e9
LASTING = 64  # losses above the limit after which a spike is a divergence
FAR = 0.5  # of the median, by which it is one: other data may be harder
GIVEN_UP = 256  # after so many this is the run's usual loss
BLOCK, BLOCKS, FEW_BLOCKS, HIGH_BLOCKS = 16, 64, 12, 3
PROVEN = 8  # finite losses after which each should be one
NEVER_FINITE = 16  # losses in a row without a number, before that
FINITE_AGAIN = 16  # finite losses in a row after which NaN is over
BACK = 3  # usual losses in a row after which a spike is over
END = 0.98  # of the steps
SPENT = 0.02  # of the highest learning rate


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule says of one point: that `kind` begins, with its words, or that it is over."""

    kind: EventKind
    words: str = ""
    over: bool = False
    step: int | None = None  # where it began, if not at this point


class NotFiniteRule(msgspec.Struct, kw_only=True):
    """Finds in the losses that a run reports, one after the other, where they become NaN or infinite for longer than they do now and
    then, and where they are finite again.
    """

    in_a_row: int = 0
    finite_in_a_row: int = 0
    habit: int = 0  # the most in a row from which it came back; of long rows the second longest
    longest: int = 0  # the most in a row from which it came back
    attempt: str = ""
    numbers: int = 0  # finite losses so far
    is_open: bool = False
    began: int | None = None

    def add(self, point: TrainingPoint) -> list[Found]:
        """Judge the loss of one point, if it has one."""
        loss = point.values.get(LOSS)
        if loss is None:
            return []
        if point.attempt != self.attempt:
            self.attempt, self.in_a_row = point.attempt, 0
        if isfinite(loss):
            return self._number()
        self.began = self.began if self.in_a_row else point.step
        self.in_a_row, self.finite_in_a_row = self.in_a_row + 1, 0
        limit = 2 * self.habit + 1 if self.numbers >= PROVEN else NEVER_FINITE
        if self.is_open or self.in_a_row < limit:
            return []
        self.is_open = True
        where = "" if self.began is None else f" at step {self.began}"
        before = "" if self.numbers else ", and has never been a number"
        words = f"the loss became {'NaN' if loss != loss else 'infinite'}{where}{before}"  # noqa: PLR0124
        return [Found(kind=EventKind.NOT_FINITE, words=words, step=self.began)]

    def _number(self) -> list[Found]:
        self.finite_in_a_row += 1
        self.numbers += 1
        if self.in_a_row:
            row, self.in_a_row = self.in_a_row, 0
            self.habit = max(self.habit, row if row < NEVER_FINITE else min(row, self.longest))
            self.longest = max(self.longest, row)
        if self.is_open and self.finite_in_a_row >= FINITE_AGAIN:
            self.is_open = False
            return [Found(kind=EventKind.NOT_FINITE, over=True)]
        return []


class SpikeRule(msgspec.Struct, kw_only=True):
    """Finds losses that leap above what is usual for the run, and losses that climb away for good."""

    losses: list[float] = []  # the last usual ones
    count: int = 0
    wildest: float = 0.0  # spreads by which a loss alone was above the median
    peak: float = 0.0  # the same of those that are above now
    highest: float = 0.0  # the same of the spikes that are over
    above: int = 0  # in a row above the limit
    below: int = 0  # in a row back at the usual
    is_open: bool = False
    diverged_above: float | None = None  # a divergence is open until the loss is below this
    low: int = 0  # losses in a row below that
    batch: float | None = None
    rate: float | None = None  # the learning rate of the last record that had one
    top_rate: float = 0.0
    rising: bool = False
    block: list[float] = []
    blocks: list[float] = []
    stays: int = 1  # how often the loss has come to this level
    levels: list[LossLevel] = []  # the others
    far_high: list[float] = []  # those that are above now
    far_low: list[float] = []  # those that are far below now

    def add(self, point: TrainingPoint) -> list[Found]:
        """Take in one point of a training. Returns the spikes and divergences that begin or end with it; none where it has no
        finite loss.
        """
        self._learn_schedule(point)
        loss = point.number(LOSS)
        if loss is None:
            return []
        self.count += 1
        quiet = self.count <= WARM_UP or self.rising or self._is_near_end(point)
        found = self._comes_back(loss)
        if len(self.losses) < (FEWEST if self.levels else WINDOW):
            self.losses.append(loss)
            return [*found, *self._climbs(loss, quiet)]
        self._take_turn(loss)
        found += self._climbs(loss, quiet)
        middle = usual(self.losses)[0]
        distance = min(MOST_CLEAR, (loss - middle) / self._spread())
        if distance > max(CLEAR, 2 * self.wildest) and loss - middle > LEAP * abs(middle):
            return [*found, *self._high(loss, middle, distance, quiet)]
        if distance < -CLEAR and middle - loss > LEAP * abs(middle):
            self._far_below(loss)
            return found
        return [*found, *self._usual(loss, distance, quiet)]

    def _spread(self) -> float:
        """The spread of this level; while it is young, of others, too."""
        young = self.levels if len(self.losses) < WINDOW // 2 else []
        return max(spread(self.losses), *(spread(one.losses) for one in young), 0.0)

    def _take_turn(self, loss: float) -> None:
        """Go over to another known level, where this loss is nearer to that one."""
        if self.count % WINDOW == 0:
            self._part()
        middle = usual(self.losses)[0]
        level = level_of(loss, self.levels, middle)
        if level is None or abs(loss - level.middle) >= abs(loss - middle):
            return
        is_far = abs(loss - middle) > max(CLEAR * self._spread(), LEAP * abs(middle))
        if not is_far and loss < level.middle - level.reach:
            return
        if (
            loss < level.middle - level.reach
        ):  # below one that is known: a new one, or that has sunk
            level = LossLevel(losses=[loss], stays=2)
        self.levels = [one for one in self.levels if one is not level]
        self._leave(self.stays + 1)
        self.losses, self.stays = level.losses, level.stays
        self.block, self.blocks = level.block, level.blocks

    def _part(self) -> None:
        """Make a level of each group of losses between which the run goes to and fro."""
        parts = groups(self.losses)
        if len(parts) == 1 or not take_turns(self.losses, parts):
            return
        own = next(part for part in parts if self.losses[-1] in part)
        others = [LossLevel(losses=one, left_at=self.count, stays=2) for one in parts if one != own]
        self.levels = keep([*self.levels, *others], self.count)
        self.losses, self.blocks, self.block, self.stays = own, [], [], 2
        self.wildest = self.highest = 0.0

    def _leave(self, stays: int) -> None:
        """Keep the level of now among the others."""
        level = LossLevel(
            losses=self.losses,
            block=self.block,
            blocks=self.blocks,
            left_at=self.count,
            stays=stays,
        )
        self.levels = keep([*self.levels, level], self.count)
        self.block, self.far_low = [], []

    def _far_below(self, loss: float) -> None:
        """Take losses that stay far below for a level of their own."""
        self.far_low.append(loss)
        if not is_steady(self.far_low, self.losses):
            self.far_low = self.far_low[-WINDOW:]
            return
        low = self.far_low
        self._leave(self.stays)
        self.losses, self.blocks, self.far_low, self.stays = low, [], [], 1

    def _learn(self, quiet: bool) -> None:
        """Take what was high and is over for a level, where it stayed as steadily as the loss does elsewhere."""
        high, self.far_high = self.far_high[: -FEWEST // 2] or self.far_high, []
        if not is_steady(high, self.losses):
            return
        middle = usual(high)[0]
        known = next((one for one in self.levels if abs(one.middle - middle) <= one.reach), None)
        if known is None:
            often = 2 if quiet or len(high) >= LASTING else 1
            known = LossLevel(losses=high[-WINDOW:], stays=often)
            self.levels.append(known)
        else:
            known.losses, known.stays = [*known.losses, *high][-WINDOW:], known.stays + 1
        known.left_at = self.count
        self.levels = keep(self.levels, self.count)

    def _high(self, loss: float, middle: float, distance: float, quiet: bool) -> list[Found]:
        self.above, self.below, self.peak = self.above + 1, 0, max(self.peak, distance)
        self.far_high.append(loss)
        if self.above >= GIVEN_UP:
            return self._begin_anew()
        if quiet:
            return []
        if self.above == IN_A_ROW and not self.is_open:
            self.is_open = True
            words = f"the loss leapt from {middle:.4g} to {loss:.4g}"
            return [Found(kind=EventKind.SPIKE, words=words)]
        far = loss - middle > FAR * abs(middle)
        if self.above >= LASTING and far and self.diverged_above is None:
            self.diverged_above = middle + 0.2 * abs(middle)
            words = f"the loss does not come back: {loss:.4g} after {self.above} records, {middle:.4g} before"
            return [*self._spike_is_over(), Found(kind=EventKind.DIVERGED, words=words)]
        return []

    def _usual(self, loss: float, distance: float, quiet: bool) -> list[Found]:
        self.losses = [*self.losses, *self.far_low, loss][-WINDOW:]
        self.far_low = []
        self.wildest = max(0.999 * self.wildest, distance)
        if self.above < IN_A_ROW:  # one that stands alone is how this curve is
            self.wildest = max(self.wildest, self.peak)
            self.above, self.peak, self.far_high = 0, 0.0, []
            return []
        self.below += 1
        if self.below < BACK:
            return []
        self.wildest = max(self.wildest, min(self.highest, self.peak))
        self.highest = max(self.highest, self.peak)
        self.above, self.below, self.peak = 0, 0, 0.0
        self._learn(quiet)
        return self._spike_is_over()

    def _climbs(self, loss: float, quiet: bool) -> list[Found]:
        """Whether the last blocks of losses stand clear of all before."""
        self.block.append(loss)
        if len(self.block) < BLOCK:
            return []
        self.blocks = [*self.blocks, median(self.block)][-BLOCKS:]
        self.block = []
        before, last = self.blocks[:-HIGH_BLOCKS], self.blocks[-HIGH_BLOCKS:]
        if len(before) < FEW_BLOCKS or quiet or self.above or self.diverged_above is not None:
            return []
        lowest = min(before)
        limit = max(_highest_usual(before), lowest + 0.5 * abs(lowest))
        if min(last) <= max(limit, *before) or last != sorted(last):
            return []
        self.diverged_above, self.blocks = (lowest + last[-1]) / 2, []
        words = f"the loss climbs: {lowest:.4g} at its best, {last[-1]:.4g} now"
        return [*self._spike_is_over(), Found(kind=EventKind.DIVERGED, words=words)]

    def _comes_back(self, loss: float) -> list[Found]:
        if self.diverged_above is None:
            return []
        self.low = self.low + 1 if loss < self.diverged_above else 0
        if self.low < BLOCK:
            return []
        self.diverged_above, self.low = None, 0
        return [Found(kind=EventKind.DIVERGED, over=True)]

    def _spike_is_over(self) -> list[Found]:
        if not self.is_open:
            return []
        self.is_open = False
        return [Found(kind=EventKind.SPIKE, over=True)]

    def _begin_anew(self) -> list[Found]:
        """Take what lasts for the usual; a divergence stays one until the loss is low again."""
        self._leave(self.stays)
        self.losses, self.blocks, self.far_high, self.stays = self.far_high[-WINDOW:], [], [], 2
        self.above, self.below, self.peak = 0, 0, 0.0
        return self._spike_is_over()

    def _learn_schedule(self, point: TrainingPoint) -> None:
        batch, rate = point.number(BATCH_SIZE), point.number("learning_rate")
        if batch is not None and batch != self.batch:
            if self.batch is not None:
                self.losses, self.block, self.blocks, self.above = [], [], [], 0
                self.levels, self.far_high, self.far_low = [], [], []
                self.count = min(self.count, WARM_UP)
            self.batch = batch
        if rate is not None:
            self.rising = self.rate is not None and rate > self.rate * (1 + 1e-6)
            self.rate, self.top_rate = rate, max(rate, self.top_rate)

    def _is_near_end(self, point: TrainingPoint) -> bool:
        if point.step is not None and point.total and point.step >= END * point.total:
            return True
        return self.rate is not None and self.rate < SPENT * self.top_rate


def _highest_usual(blocks: list[float]) -> float:
    """The highest median that is still usual by those before (`blocks`, with the climb that may be among them), or, where enough of
    them were before the loss was at its best, by these alone.
    """
    best = blocks.index(min(blocks)) + 1
    fallen = blocks[best - FEW_BLOCKS : best] if best >= FEW_BLOCKS else blocks
    return min(map(_limit, (blocks, fallen)))


def _limit(blocks: list[float]) -> float:
    middle, spread = usual(blocks)
    return middle + CLEAR * max(spread, 0.02 * abs(middle))
