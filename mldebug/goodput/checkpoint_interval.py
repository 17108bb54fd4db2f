"""How often a job should write checkpoints, by what one costs and how often the job fails (Young 1974, Daly 2006). Advice. Pure."""

import math

import msgspec

from mldebug.core.units import format_duration

WORTH = 0.01  # share of the time that must be won before anything is advised
LEAST = 3  # checkpoints whose cost was measured


class CheckpointInterval(msgspec.Struct, frozen=True, kw_only=True):
    """The interval that loses least, beside the present one; seconds. Losses are shares of the time, 0 to 1."""

    best: float
    present: float | None
    best_loss: float
    present_loss: float | None
    cost: float  # seconds for which steps wait for one checkpoint
    between_failures: float


def best_interval(
    *, cost: float, checkpoints: int, running: float, failures: int, present: float | None
) -> CheckpointInterval | None:
    """Return the best interval between checkpoints, beside the `present` one (seconds; None: not known). None where nothing
    failed yet or fewer than 3 checkpoints were measured.

    `cost`: seconds that steps waited for one checkpoint; `checkpoints`: how many were measured; `running`: seconds that the
    job ran, with `failures` restarts in them.
    """
    if failures < 1 or checkpoints < LEAST or cost <= 0 or running <= 0:
        return None
    between = running / failures
    best = math.sqrt(2 * cost * between)
    return CheckpointInterval(
        best=best,
        present=present,
        best_loss=_loss(best, cost, between),
        present_loss=_loss(present, cost, between) if present else None,
        cost=cost,
        between_failures=between,
    )


def _loss(interval: float, cost: float, between: float) -> float:
    """What is lost to writing, and to the half interval that a failure throws away on average."""
    return min(1.0, cost / interval + interval / (2 * between))


def interval_words(found: CheckpointInterval) -> str:
    """The advice as a sentence; "" where a change would win less than a hundredth of the time."""
    if found.present is None or found.present_loss is None:
        return ""
    won = found.present_loss - found.best_loss
    if won < WORTH:
        return ""
    return (
        f"advice: a checkpoint every {_time(found.best)} in place of {_time(found.present)} would lose"
        f" {100 * won:.0f} % less of the time: one costs {_time(found.cost)}, and a failure comes every"
        f" {_time(found.between_failures)} (Young/Daly)"
    )


def _time(seconds: float) -> str:
    step = 1.0 if seconds < 120 else 60.0
    return format_duration(max(1.0, round(seconds / step) * step))
