"""When a run goes back to an earlier step, and whether it then reads data that it has read before. Pure.

**Rollback**: the step falls and climbs again from there. A count that begins anew with each epoch is none: it falls to its beginning while
the same processes live. Another start that begins at its beginning has lost everything.

**Data repeated**: what a batch contains moves the loss up and down, so the same batches in the same order leave the same pattern, whatever the
weights are. After a rollback to step s the pattern should be the one that the steps after s had before (the same steps are done again), or a
new one. Where it is instead the pattern that the run had at its very beginning, the data begin from the start: the loader has forgotten where
it was. Patterns are compared by the correlation of the changes from record to record, and only where these go up and down as noise does.
"""

from itertools import pairwise
from math import sqrt
from statistics import fmean, median

import msgspec

from mldebug.goodput.scalars.loss_rules import Found
from mldebug.goodput.scalars.model import LOSS, EventKind, TrainingPoint

CLIMB = 3  # records that climb from the lower step
STRIDES = 16  # last distances between records
COMPARED = 32  # records whose pattern is compared
TAIL = 256  # of the last records, for the steps that are done again
SPARE = 32  # more of them, after which the oldest are dropped
SAME, MARGIN = 0.75, 0.2  # correlation, and by how much it exceeds that at other places
NOISE = 0.4  # of the changes must turn the direction
NEAR = (-3, -2, -1, 1, 2, 3)


class StepLoss(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The loss that a run reported for one step."""

    step: int
    loss: float


class ResumeRule(msgspec.Struct, kw_only=True):
    """Finds rollbacks and data that are read again."""

    head: list[StepLoss] = []  # the first of the run
    tail: list[StepLoss] = []  # the last of it
    old_tail: list[StepLoss] = []  # of before the rollback
    after: list[StepLoss] = []  # the first since the rollback
    is_comparing: bool = False
    resumed_at: int = 0  # a step
    attempt: str = ""
    has_restarted: bool = False  # and no record has come since
    is_new_run: bool = False  # the same, of a run that may be another training
    climb: list[StepLoss] = []  # candidates of a rollback

    def for_next_run(self) -> "ResumeRule":
        """A rule for the next run of the same job, which may resume at a step of this run. It compares the losses there with those that
        this run had; a run that starts at its first step counts as a new training."""
        return ResumeRule(head=list(self.head), tail=list(self.tail), is_new_run=True)

    def add(self, point: TrainingPoint) -> list[Found]:
        """Judge one point with a step and a finite loss."""
        loss = point.number(LOSS)
        if point.step is None or loss is None:
            return []
        if point.attempt != self.attempt:
            self.has_restarted = bool(self.attempt) or self.is_new_run
            self.attempt = point.attempt
        one = StepLoss(point.step, loss)
        last = self.tail[-1].step if self.tail else None
        if last is not None and one.step <= last:
            return self._lower(one)
        self.climb = []
        if self.has_restarted and last is not None:  # it goes on where it was
            self._resume(one.step, [])
        self._take(one)
        return self._compare()

    def _lower(self, one: StepLoss) -> list[Found]:
        """A step below the furthest one: the third that climbs makes it a rollback."""
        if self.climb and one.step <= self.climb[-1].step:
            self.climb = []
        self.climb.append(one)
        if len(self.climb) < CLIMB:
            return []
        low, high, stride = self.climb[0].step, self.tail[-1].step, self._stride()
        restarted, new_run = self.has_restarted, self.is_new_run
        self.has_restarted = self.is_new_run = False
        first = self.head[0].step if self.head else 0
        is_epoch = low <= max(first, 1) + stride
        if is_epoch and (new_run or not restarted):
            self._begin_epoch()
            return []
        if high - low < (2 * stride if new_run or not restarted else 0):
            return []
        again = f"steps {low} to {high} are done again"
        words = (
            f"the run begins again at step {low}: {again}"
            if is_epoch
            else f"the run went back from step {high} to step {low}: {again}"
        )
        old_tail, self.tail = self.tail, []
        self._resume(low, old_tail)
        self.is_comparing = not is_epoch
        climb, self.climb = self.climb, []
        for each in climb:
            self._take(each)
        return [Found(kind=EventKind.ROLLBACK, words=words, step=low)]

    def _resume(self, step: int, old_tail: list[StepLoss]) -> None:
        self.old_tail, self.after, self.resumed_at = old_tail, [], step
        self.is_comparing, self.has_restarted, self.is_new_run = True, False, False

    def _take(self, one: StepLoss) -> None:
        if len(self.head) < COMPARED + max(NEAR) and not self.is_comparing:
            self.head.append(one)
        if self.is_comparing:
            self.after.append(one)
        self.tail.append(one)
        if len(self.tail) > TAIL + SPARE:
            self.tail = self.tail[-TAIL:]

    def _begin_epoch(self) -> None:
        climb, self.climb, self.tail, self.head = self.climb, [], [], []
        self.old_tail, self.after, self.is_comparing = [], [], False
        for each in climb:
            self._take(each)

    def _stride(self) -> int:
        steps = [one.step for one in self.tail[-STRIDES:]]
        return int(median([b - a for a, b in pairwise(steps)] or [1]))

    def _compare(self) -> list[Found]:
        """Once enough records have come since the rollback: are they those of the beginning?"""
        if not self.is_comparing or len(self.after) < COMPARED:
            return []
        self.is_comparing = False
        after, self.after = [one.loss for one in self.after[:COMPARED]], []
        redone = _from(self.old_tail, self.resumed_at)
        self.old_tail = []
        start = [one.loss for one in self.head]
        if alike(after, redone) >= SAME or not is_at_beginning(after, start):
            return []
        usual_before, now = fmean(redone or after), fmean(after)
        words = (
            "the data begin from their start again after the resume: the losses go up and down as those of the first"
            f" {COMPARED} records did (mean {now:.4g}"
            f"{f', {usual_before:.4g} at the same steps before' if redone else ''})"
        )
        return [Found(kind=EventKind.DATA_REPEATED, words=words, step=self.resumed_at)]


def is_at_beginning(losses: list[float], start: list[float]) -> bool:
    """Whether the pattern of these losses is that of the first ones, and of no others near them (a pattern that recurs says nothing)."""
    here = alike(losses, start[: len(losses)])
    shifted = [alike(losses[max(0, -by) :], start[max(0, by) :]) for by in NEAR]
    return here >= SAME and here > max(shifted) + MARGIN


def alike(one: list[float], other: list[float]) -> float:
    """The correlation of the changes of two rows, -1 to 1, as far as both reach; 0 where they are short or do not go up and down."""
    count = min(len(one), len(other))
    if count < COMPARED // 2:
        return 0.0
    first, second = _changes(one[:count]), _changes(other[:count])
    if min(_turns(first), _turns(second)) < NOISE:
        return 0.0
    return _correlation(first, second)


def _from(losses: list[StepLoss], step: int) -> list[float]:
    return [one.loss for one in losses if one.step >= step]


def _changes(values: list[float]) -> list[float]:
    return [later - earlier for earlier, later in pairwise(values)]


def _turns(changes: list[float]) -> float:
    pairs = list(pairwise(changes))
    return sum(a * b < 0 for a, b in pairs) / len(pairs)


def _correlation(first: list[float], second: list[float]) -> float:
    middle, other = fmean(first), fmean(second)
    both = sum((a - middle) * (b - other) for a, b in zip(first, second, strict=True))
    size = sqrt(sum((a - middle) ** 2 for a in first) * sum((b - other) ** 2 for b in second))
    return both / size if size else 0.0
