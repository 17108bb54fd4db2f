"""A decision of the stall watch as one sentence, for the log and for `mldebug status`. Job-written text is cleaned."""

from collections import Counter
from collections.abc import Callable

from mldebug.core.model import Role
from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.core.redact import safe_line
from mldebug.stall.rank_activity import STOPPED, RankActivity
from mldebug.stall.rules import StallRule
from mldebug.stall.signals import ProgressKind, RunLook
from mldebug.stall.stillness import StillnessSummary

NAMED = 3
STAGE_WORDS = {"confirmed": "stalled, nobody named yet", "blamed": "stalled"}


def seconds(value: float) -> str:
    """Seconds for people: `1.1 s`, `62 s`."""
    return f"{value:.2g} s" if value < 10 else f"{value:.0f} s"


CHARTS = {
    "tensorboard": "TensorBoard's event file",
    "wandb": "wandb's offline file",
    "csv": "the metrics table that its logger writes",
    "jsonl": "the JSON lines that its logger writes",
}
BETTER = "`mldebug run -- …`, or a step in its log, would tell more"


def signal_words(look: RunLook, format_: str) -> str:
    """By which signal it is known that a run moves, in words, and what would give a better one. `format_`: the format of the log
    or file that reported its step.
    """
    kinds = {signal.kind for signal in look.progress}
    if ProgressKind.HEARTBEAT in kinds:
        return "the hook in its ranks"
    if kinds & {ProgressKind.STEP, ProgressKind.RECORD}:
        return f"steps in {CHARTS.get(format_, 'its log')}"
    if ProgressKind.RAS in kinds:
        return f"the collectives that NCCL counts; {BETTER}"
    devices = all(rank.device_progress is not None for rank in look.ranks)
    lives = "what its GPUs do" if devices else "stack samples of its ranks"
    why = ", for no line of its log tells a step" if ProgressKind.LOG_GROWTH in kinds else ""
    return f"{lives}{why}; {BETTER}"


def stage_words(stage: str) -> str:
    """How far the suspicion of a stall has come (a `Stage`), in words for people."""
    return STAGE_WORDS.get(stage, stage)


def quiet_words(
    rule: StallRule, quiet: float, usual: float | None, who: str = "no rank has"
) -> str:
    """How long the run is quiet: `no step for 62 s (usual gap 1.1 s)`; for a run without progress signals, for how long its ranks
    have not moved.
    """
    early = quiet < rule.timeout.seconds / 4
    if rule.by == "progress":
        gap = f" (usual gap {seconds(usual)})" if usual is not None else ""
        words = f"last step {seconds(quiet)} ago" if early else f"no step for {seconds(quiet)}"
        return words + gap
    if early:
        return f"no rank stands still; this job tells no step ({rule.timeout.why})"
    return f"{who} moved for {seconds(quiet)} ({rule.timeout.why})"


def standing_words(standing: StillnessSummary) -> str:
    """What the ranks do, in words: `7 ranks wait in all_reduce; rank 3 sleeps in slow_data_loader`; empty without ranks."""
    parts = [
        *_waiters(standing.waiting, ""),
        *_waiters(
            tuple(one for one in standing.blind if not one.device_moves),
            " (what its GPU does is not known)",
        ),
        *_waiters(tuple(one for one in standing.blind if one.device_moves), " (GPU at work)"),
        *_each(standing.inert, _stands),
        *_each(standing.busy, _works),
    ]
    if standing.gone:
        many = len(standing.gone) > 1
        parts.append(f"{_ranks(list(standing.gone))} {'have' if many else 'has'} exited")
    if standing.missing:
        parts.append(f"{_ranks(list(standing.missing))} never came")
    return "; ".join(parts)


def checkpoint_words(writers: tuple[RankActivity, ...]) -> str:
    """How much these ranks have written: `rank 0 has written 3.2 GB`; empty without ranks."""
    return "; ".join(_each(writers, _written))


def _written(activity: RankActivity) -> str:
    gigabytes = activity.checkpoint_bytes / 1e9
    return f"has written {gigabytes:.{1 if gigabytes < 10 else 0}f} GB"


def _waiters(activities: tuple[RankActivity, ...], note: str) -> list[str]:
    """`7 ranks wait in all_reduce`, or what each does where the wait has no name."""
    places = Counter(_operation(activity) for activity in activities if _operation(activity))
    named = [_wait(activities, place, count) for place, count in places.most_common(NAMED)]
    nameless = tuple(activity for activity in activities if not _operation(activity))
    return [clause + note for clause in (*named, *_each(nameless, _waits))]


def _wait(activities: tuple[RankActivity, ...], place: str, count: int) -> str:
    if count > 1:
        return f"{count} ranks wait in {place}"
    rank = next(activity.last.rank for activity in activities if _operation(activity) == place)
    return f"rank {rank} waits in {place}"


def _operation(activity: RankActivity) -> str:
    return safe_line(activity.classified.operation, 60) if activity.classified else ""


def _waits(activity: RankActivity) -> str:
    return _doing(activity) or "waits"


def _each(activities: tuple[RankActivity, ...], words: Callable[[RankActivity], str]) -> list[str]:
    """`rank 3 sleeps in load`, `ranks 2-5: each sleeps in load`."""
    doing: dict[str, list[int]] = {}
    for activity in activities:
        doing.setdefault(words(activity), []).append(activity.last.rank)
    clauses = [_clause(ranks, phrase) for phrase, ranks in doing.items()]
    return clauses[:NAMED] + ([f"{len(clauses) - NAMED} more"] if len(clauses) > NAMED else [])


def _clause(ranks: list[int], phrase: str) -> str:
    return f"{_ranks(ranks)} {phrase}" if len(ranks) == 1 else f"{_ranks(ranks)}: each {phrase}"


def _stands(activity: RankActivity) -> str:
    if activity.last.state in STOPPED:
        return "is stopped"
    return _doing(activity) or "does not move"


def _works(activity: RankActivity) -> str:
    if activity.last.compiling or activity.last.phase == "compile":
        return "compiles"
    if activity.checkpoint_bytes:
        return _written(activity) + (f" and moves ({_doing(activity)})" if _doing(activity) else "")
    if activity.role is Role.BUSY and _doing(activity):
        return _doing(activity)
    if activity.device_moves:
        return "computes on its GPU"
    return f"moves ({_doing(activity)})" if _doing(activity) else "works"


def _doing(activity: RankActivity) -> str:
    if activity.classified is None:
        return ""
    phase = (
        f" in phase {safe_line(activity.classified.phase, 30)}" if activity.classified.phase else ""
    )
    return safe_line(activity.classified.doing, 120) + phase if activity.classified.doing else ""


def _ranks(ranks: list[int]) -> str:
    many = "s" if len(ranks) > 1 else ""
    return f"rank{many} {shorten_ranks(fold_ranks(ranks))}"
