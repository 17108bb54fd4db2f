"""What differs between two runs: packages, environment, arguments, code, nodes, speed and loss. Pure."""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from itertools import pairwise
from statistics import median, quantiles

import msgspec

from mldebug.core.errors import UsageError
from mldebug.core.ranksets import fold_nodes, unfold_nodes
from mldebug.jobs.run_records.model import NOT_SET, RunFigures, RunRecord
from mldebug.jobs.run_records.recorded_settings import options_of

LOSS, STEP_SECONDS = "loss", "step_seconds"
SIZES = {"batch_size": "batch size", "sequence_length": "sequence length"}
LEAST_ROWS = 6  # of a figure, in each run
SLOWER, LOSS_APART = 0.05, 0.01  # shares below which two runs are alike
"""What is less than this is noise, even where it is regular."""


class Subject(StrEnum):
    """What is compared. The order is that in which people read it: the nearest explanation first."""

    CODE = "code"
    ARGUMENTS = "arguments"
    PACKAGES = "packages"
    ENVIRONMENT = "environment"
    SIZE = "size"
    NODES = "nodes"
    MACHINE = "machine"
    SPEED = "speed"
    LOSS = "loss"
    OUTCOME = "outcome"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is not the same in both runs, with its value in each, as text."""

    subject: Subject
    name: str
    before: str
    after: str


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs compared. `same`: how many things of a subject are alike; `not_compared`: what one of them lacks, in words."""

    before: RunRecord
    after: RunRecord
    differences: tuple[Difference, ...]
    same: dict[Subject, int]
    not_compared: tuple[str, ...]


def compare_runs(
    before: RunRecord,
    after: RunRecord,
    histories: tuple[RunFigures | None, RunFigures | None] = (None, None),
) -> RunComparison:
    """Compare two runs. `histories`: of their training figures, in the same order; None: none is kept."""
    differences: list[Difference] = []
    same: dict[Subject, int] = {}
    missing: list[str] = []
    for subject, values_of, word in _TABLES:
        old, new = values_of(before), values_of(after)
        without = [one.run for one, values in ((before, old), (after, new)) if not values and not _had_none(one, subject)]  # fmt: skip
        if not (old or new):
            continue
        if without:
            missing.append(f"{word}: not known of {without[0]}")
            continue
        alone = [name for name in sorted(old.keys() ^ new.keys()) if _is_a_fact(subject, name)]
        missing += (f"{name}: not known of {(after if name in old else before).run}" for name in alone)  # fmt: skip
        if subject in (*before.partial, *after.partial):
            missing.append(f"{word}: of one of them only a part is kept")
            alone += old.keys() ^ new.keys()
        names = sorted((old.keys() | new.keys()).difference(alone))
        unlike = [one for name in names if (one := _difference(subject, name, old, new)) is not None]  # fmt: skip
        differences += unlike
        same[subject] = len(names) - len(unlike)
    differences += _nodes(before, after)
    differences += _figures(*histories, missing)
    if before.is_over and after.is_over and before.outcome != after.outcome:
        differences.append(Difference(subject=Subject.OUTCOME, name="end", before=before.outcome, after=after.outcome))  # fmt: skip
    differences.sort(key=lambda one: tuple(Subject).index(one.subject))
    return RunComparison(
        before=before,
        after=after,
        differences=tuple(differences),
        same=same,
        not_compared=tuple(missing),
    )


_TABLES: tuple[tuple[Subject, Callable[[RunRecord], Mapping[str, str]], str], ...] = (
    (Subject.CODE, lambda one: one.code | ({"directory": one.directory} if one.directory else {}), "code"),
    (Subject.ARGUMENTS, lambda one: {"script": one.script, **options_of(one.arguments)} if one.arguments else {}, "arguments"),
    (Subject.PACKAGES, lambda one: one.packages, "packages"),
    (Subject.ENVIRONMENT, lambda one: one.environment, "environment"),
    (Subject.SIZE, lambda one: {"ranks": str(one.world_size), "launcher": one.launcher}, "size"),
    (Subject.MACHINE, lambda one: one.machine, "machine"),
)  # fmt: skip


def _had_none(one: RunRecord, subject: Subject) -> bool:
    """Whether the run was read, and has no such variable at all."""
    unread = any(gap.startswith(f"{subject}:") for gap in one.gaps)
    return subject is Subject.ENVIRONMENT and bool(one.arguments) and not unread


def _is_a_fact(subject: Subject, name: str) -> bool:
    """Whether each run has this, so that where it is missing it could not be read."""
    of_packages = subject is Subject.PACKAGES and name in ("python", "torch", "nccl")
    return of_packages or subject in (Subject.CODE, Subject.MACHINE)


def _difference(
    subject: Subject, name: str, old: Mapping[str, str], new: Mapping[str, str]
) -> Difference | None:
    before, after = old.get(name, NOT_SET), new.get(name, NOT_SET)
    if before == after:
        return None
    return Difference(subject=subject, name=name, before=before, after=after)


def _nodes(before: RunRecord, after: RunRecord) -> Iterator[Difference]:
    old, new = _names(before.nodes), _names(after.nodes)
    if old and new and old != new:
        gone, came = fold_nodes(old - new) or "none", fold_nodes(new - old) or "none"
        yield Difference(subject=Subject.NODES, name="only in this run", before=gone, after=came)


def _names(nodes: str) -> set[str]:
    try:
        return set(unfold_nodes(nodes))
    except UsageError:  # a job's scheduler says so
        return {nodes}


def _figures(
    old: RunFigures | None, new: RunFigures | None, missing: list[str]
) -> Iterator[Difference]:
    if old is None or new is None:
        missing.append("speed and loss: no history of training figures is kept of one of them")
        return
    for name, word in SIZES.items():
        before, after = _last(old, name), _last(new, name)
        if before is not None and after is not None and before != after:
            yield Difference(subject=Subject.SIZE, name=word, before=f"{before:g}", after=f"{after:g}")  # fmt: skip
    yield from _speed(old, new, missing)
    yield from _loss(old, new, missing)


def _last(one: RunFigures, name: str) -> float | None:
    return next((value for value in reversed(one.columns.get(name, ())) if value is not None), None)


def _speed(old: RunFigures, new: RunFigures, missing: list[str]) -> Iterator[Difference]:
    """Seconds a step, where the middle halves of both runs do not overlap: single slow steps are no difference."""
    before, after = _step_seconds(old), _step_seconds(new)
    if min(len(before), len(after)) < LEAST_ROWS:
        missing.append("speed: one of them has made too few steps")
        return
    middle, later = median(before), median(after)
    low, high = _half(before), _half(after)
    apart = low[1] < high[0] or high[1] < low[0]
    if apart and abs(later / middle - 1.0) >= SLOWER:
        share = f"{100 * (later / middle - 1.0):+.0f} %"
        yield Difference(subject=Subject.SPEED, name="seconds a step", before=f"{middle:.3g}", after=f"{later:.3g} ({share})")  # fmt: skip


def _half(values: list[float]) -> tuple[float, float]:
    low, _, high = quantiles(values, n=4)
    return low, high


def _step_seconds(one: RunFigures) -> list[float]:
    """Of the later three quarters of a run, as its log tells or as its steps went by: starts and compilation are slower."""
    seconds: list[float] = [value for value in one.columns.get(STEP_SECONDS, ()) if value]
    if not seconds:
        rows = [(at, step) for at, step in zip(one.times, one.steps, strict=False) if step is not None]  # fmt: skip
        seconds = [
            (later[0] - first[0]) / (later[1] - first[1])
            for first, later in pairwise(rows)
            if later[1] > first[1]
        ]
    return seconds[len(seconds) // 4 :]


def _loss(old: RunFigures, new: RunFigures, missing: list[str]) -> Iterator[Difference]:
    """The loss at the last steps that both have made, where it lies apart by more than it scatters."""
    before, after = _by_step(old), _by_step(new)
    if min(len(before), len(after)) < LEAST_ROWS:
        missing.append("loss: one of them has told too few")
        return
    until = min(max(before), max(after))
    since = max(min(before), min(after))
    steps = sorted(step for step in before if since <= step <= until)
    pairs = [(step, before[step], _between(after, step)) for step in steps]
    late = pairs[len(pairs) // 2 :]
    if len(late) < LEAST_ROWS // 2:
        missing.append("loss: they have few steps in common")
        return
    apart = [new - old for _, old, new in late]
    middle = median(apart)
    scatter = 1.4826 * median([abs(value - middle) for value in apart]) + _roughness(before) + _roughness(after)  # fmt: skip
    step, first, later = late[-1]
    if abs(middle) > 3 * scatter and abs(middle) > LOSS_APART * max(abs(first), abs(later), 1e-9):
        yield Difference(subject=Subject.LOSS, name=f"at step {step:,}", before=f"{first:.4g}", after=f"{later:.4g}")  # fmt: skip


def _by_step(one: RunFigures) -> dict[int, float]:
    losses = one.columns.get(LOSS, ())
    rows = zip(one.steps, losses, strict=False)
    return {step: loss for step, loss in rows if step is not None and loss is not None}


def _between(values: Mapping[int, float], step: int) -> float:
    """The value at a step, on the line between the steps around it."""
    if step in values:
        return values[step]
    low = max((one for one in values if one < step), default=min(values))
    high = min((one for one in values if one > step), default=max(values))
    if low == high:
        return values[low]
    return values[low] + (values[high] - values[low]) * (step - low) / (high - low)


def _roughness(values: Mapping[int, float]) -> float:
    """By how much neighbours differ, beyond the slope: half the scatter of what is no trend."""
    row = [values[step] for step in sorted(values)][len(values) // 2 :]
    bends = [abs(a - 2 * b + c) / 2 for a, b, c in zip(row, row[1:], row[2:], strict=False)]
    return median(bends) / 2 if bends else 0.0
