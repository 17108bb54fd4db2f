"""Where the GPU hours of a job went, in the form that the snapshot, `mldebug goodput`, the web pages and the reports show. Pure.

With it comes advice: how often the job should write checkpoints, by what one costs and how often the job fails (Young 1974,
Daly 2006).
"""

import math
from collections.abc import Iterator, Mapping
from itertools import islice

import msgspec

from mldebug.core.model import MeasuredData, shared_fields
from mldebug.core.ranksets import fold_ranks
from mldebug.core.units import duration_words, percent
from mldebug.goodput.account.gpu_time import AttemptAccount
from mldebug.goodput.account.job_account import AttemptTotal, JobAccount
from mldebug.goodput.account.segments import GpuUse

WORTH = 0.01  # share of the time that must be won before anything is advised
LEAST_MEASURED = 3  # checkpoints whose cost was measured


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
    if failures < 1 or checkpoints < LEAST_MEASURED or cost <= 0 or running <= 0:
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
    """The advice how often to write checkpoints, as a sentence; "" where a change would win less than a hundredth of the time."""
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
    return duration_words(max(1.0, round(seconds / step) * step))


SHOWN = 3  # losses that the sentence names
LEAST = 0.005  # share below which nothing is named
USE_WORDS: Mapping[str, str] = {
    GpuUse.PRODUCTIVE: "productive",
    GpuUse.STARTUP: "start-up",
    GpuUse.DATA_PREPARATION: "data preparation",
    GpuUse.DATA_WAIT: "waiting for data",
    GpuUse.EVALUATION: "evaluation",
    GpuUse.CHECKPOINT: "checkpoints",
    GpuUse.STRAGGLER: "waiting for slow ranks",
    GpuUse.STALL: "stalls",
    GpuUse.LOST_WORK: "steps done again",
    GpuUse.RESTART_GAP: "gaps between attempts",
    GpuUse.IDLE: "idle",
}
_BY_RESTARTS = (GpuUse.LOST_WORK, GpuUse.RESTART_GAP)


class AttemptGoodput(MeasuredData, frozen=True, kw_only=True):
    """One attempt of a run: GPU seconds by use. Times are unix seconds."""

    run: str
    attempt: int = 0
    began: float
    ended: float | None = None  # None: it has processes
    gpu_seconds: dict[str, float] = {}
    sentence: str = ""  # where its time went
    outcome: str = ""  # how it ended: well, failed, unknown; "": it has processes
    stragglers: tuple[str, ...] = ()  # ranks that the others waited for, in sentences


class JobGoodput(MeasuredData, frozen=True, kw_only=True):
    """One job: the GPU seconds of all its runs and attempts on this node by use, and what that means."""

    name: str
    user: str = ""
    uid: int = -1
    script: str = ""
    began: float  # unix
    at: float
    runs: tuple[str, ...] = ()  # ids of those that live
    restarts: int = 0
    attempts: int = 0
    steps_again: int = 0  # steps that were done again after restarts
    gpu_seconds: dict[str, float] = {}
    productive_ratio: float = 0.0
    sentence: str = ""
    advice: str = ""  # on the interval of its checkpoints; "" for none
    newest: tuple[AttemptGoodput, ...] = ()  # attempts, the oldest first
    bar: tuple[dict[str, float], ...] = ()  # GPU seconds by use in equal stretches of time
    bar_began: float = 0.0
    bar_seconds: float = 0.0  # of one stretch


def job_goodput(job: JobAccount) -> JobGoodput:
    """Return one job's account in the form in which it is shown: GPU seconds by use, a sentence and advice."""
    seconds = job.seconds
    whole = sum(seconds.values())
    return JobGoodput(
        **shared_fields(job, JobGoodput),
        runs=tuple(dict.fromkeys(one.run for one in job.open if not one.over)),
        attempts=job.count,
        steps_again=job.steps_again,
        gpu_seconds=_rounded(seconds),
        productive_ratio=round(seconds.get(GpuUse.PRODUCTIVE, 0.0) / whole, 4) if whole else 0.0,
        sentence=sentence(seconds, job.restarts),
        advice=_advice(job),
        newest=_attempts(job),
        bar=tuple(_rounded(one) for one in _bar(job)),
        bar_began=job.history.start,
        bar_seconds=job.history.width,
    )


def sentence(seconds: Mapping[str, float], restarts: int) -> str:
    """Where the time went: `71 % productive; 11 % lost to 3 restarts, most of it work done again since the last checkpoint`."""
    whole = sum(seconds.values())
    if whole <= 0:
        return "nothing is accounted for yet"
    parts = [f"{percent(seconds.get(GpuUse.PRODUCTIVE, 0.0) / whole)} productive"]
    losses = [(seconds.get(use, 0.0), text) for use, text in _losses()]
    by_restarts = sum(seconds.get(use, 0.0) for use in _BY_RESTARTS)
    if restarts:
        losses.append((by_restarts, _restart_words(seconds, restarts)))
    losses.sort(key=lambda one: -one[0])
    named = (one for one in losses if one[0] / whole >= LEAST)
    parts += [text.format(percent(lost / whole)) for lost, text in islice(named, SHOWN)]
    return "; ".join(parts)


def _losses() -> list[tuple[GpuUse, str]]:
    others = [use for use in GpuUse if use not in (GpuUse.PRODUCTIVE, *_BY_RESTARTS)]
    return [(use, f"{{}} {USE_WORDS[use]}") for use in others]


def _restart_words(seconds: Mapping[str, float], restarts: int) -> str:
    again, gap = (seconds.get(use, 0.0) for use in _BY_RESTARTS)
    many = "restarts" if restarts > 1 else "restart"
    most = (
        "work done again since the last checkpoint"
        if again >= gap
        else "waiting for the next attempt"
    )
    return f"{{}} lost to {restarts} {many}, most of it {most}"


def _advice(job: JobAccount) -> str:
    attempts = [(one.ended - one.began, one.seconds) for one in job.over]
    attempts += [(one.at - one.began, one.seconds) for one in job.open]
    ran = sum(lasted for lasted, _ in attempts)
    used = sum(_in_attempts(seconds) for _, seconds in attempts)
    if not ran or not used:
        return ""
    gpus, seconds = used / ran, job.seconds  # those of attempts that are not kept one by one, too
    waited = seconds.get(GpuUse.CHECKPOINT, 0.0) / gpus
    found = best_interval(
        cost=waited / job.checkpoints if job.checkpoints else 0.0,
        checkpoints=job.checkpoints,
        running=_in_attempts(seconds) / gpus,
        failures=job.restarts,
        present=job.checkpoint_period,
    )
    return interval_words(found) if found is not None else ""


def _in_attempts(seconds: Mapping[str, float]) -> float:
    """GPU seconds in which there were processes."""
    return sum(seconds.values()) - seconds.get(GpuUse.RESTART_GAP, 0.0)


def _attempts(job: JobAccount) -> tuple[AttemptGoodput, ...]:
    some = [*map(_ended_attempt, job.over), *map(_open_attempt, job.open)]
    return tuple(sorted(some, key=lambda one: one.began))


def _ended_attempt(one: AttemptTotal) -> AttemptGoodput:
    return AttemptGoodput(
        **shared_fields(one, AttemptGoodput),
        ended=one.ended,
        outcome=one.outcome,
        gpu_seconds=_rounded(one.seconds),
        sentence=sentence(one.seconds, 0),
        stragglers=tuple(straggler_words(one.slow)),
    )


def _open_attempt(one: AttemptAccount) -> AttemptGoodput:
    return AttemptGoodput(
        **shared_fields(one, AttemptGoodput),
        ended=one.at if one.over else None,
        outcome=one.outcome if one.over else "",
        gpu_seconds=_rounded(one.seconds),
        sentence=sentence(one.seconds, 0),
        stragglers=tuple(straggler_words(one.slow)),
    )


def straggler_words(slow: Mapping[int, str]) -> Iterator[str]:
    """The ranks that were waited for during an attempt, ranks of the same words together. `slow`: by rank, a phrase to follow "rank 3 "."""
    by_words: dict[str, list[int]] = {}
    for rank, words in sorted(slow.items()):
        by_words.setdefault(words, []).append(rank)
    for words, ranks in by_words.items():
        yield f"rank{'s' if len(ranks) > 1 else ''} {fold_ranks(ranks)} {words}"


def _bar(job: JobAccount) -> list[dict[str, float]]:
    """The stretches that are certain, and the last minutes as they look now."""
    recent = sorted((one for it in job.open for one in it.recent), key=lambda one: one.start)
    history = job.history.copied()
    for one in recent:
        history.add(one)
    return history.bins


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {use: round(seconds[use], 3) for use in GpuUse if seconds.get(use, 0.0) > 0}
