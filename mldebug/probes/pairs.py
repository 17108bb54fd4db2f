"""Trials of members (nodes or GPUs) and pairs: who took part, how it ended, and which pairs are good, bad or uncertain.

Pure.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from mldebug.core.model import ReportData

Outcome = Literal["measured", "failed", "timed_out", "wrong"]  # wrong: values came out changed


Pair = frozenset[str]


HURRY = 0.5  # of its deadline that a try may take, or those that do not end tell nothing


class Trial(ReportData, frozen=True, kw_only=True):
    """A trial of one member alone, of a pair, or of a larger group.

    Members have the names that people use.
    """

    members: tuple[str, ...]
    outcome: Outcome = "measured"
    bandwidth: float | None = None  # bytes per second, the first quartile of the repetitions
    path: str = ""  # pairs are compared only where the way between them is of one kind
    reason: str = ""
    alone: bool = False  # nothing else was tried at that moment
    seconds: float = 0.0  # that it took, the deadline for one that did not end; 0: not known


def hurried(late: Trial, trials: Iterable[Trial]) -> bool:
    """Whether a missed deadline may be chance, because a good trial of as many members came close to the deadline, too."""
    longest = max(
        (
            trial.seconds
            for trial in trials
            if trial.outcome == "measured" and len(trial.members) == len(late.members)
        ),
        default=0.0,
    )
    return late.outcome == "timed_out" and longest > HURRY * late.seconds > 0


_WORDS = {"failed": "failed", "timed_out": "did not end in time", "wrong": "carried wrong values"}


class PairLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits for pairs, as shares of the best pair on the same kind of path.

    `floor`: bytes per second that each must reach.
    """

    slow: float = 0.5  # below it a pair is bad
    fine: float = 0.8  # from it on a pair is good; between them it is unsure
    floor: float | None = None


USUAL = PairLimits()


class JudgedPairs(msgspec.Struct, frozen=True, kw_only=True):
    """All pairs by their result.

    `why`: the reason for each pair; `best`: the best bandwidth by kind of path, bytes per second.
    """

    good: frozenset[Pair]
    bad: frozenset[Pair]
    unsure: frozenset[Pair]
    why: dict[Pair, str]
    best: dict[str, float]
    chance: frozenset[Pair] = frozenset()  # bad ones that other work alone may have slowed
    late: frozenset[Pair] = frozenset()  # bad ones that may only have had too little time
    noisy: bool = False  # good pairs did badly in some of their tries, too
    plain: frozenset[Pair] = (
        frozenset()
    )  # bad ones that no other work explains, in two tries or more

    def of(self, node: str, pairs: frozenset[Pair]) -> list[Pair]:
        """The pairs among `pairs` that contain this node or GPU, sorted."""
        return sorted((pair for pair in pairs if node in pair), key=sorted)


def judge_pairs(trials: Iterable[Trial], limits: PairLimits) -> JudgedPairs:
    """Judge each pair by its best trial, as a disturbance spoils single trials only.

    Wrong values in any trial make a pair bad.

    Trials that ran beside others are compared only with each other, and so are those that ran
    alone.
    """
    tries: dict[Pair, list[Trial]] = {}
    best: dict[tuple[str, bool], float] = {}
    for one in trials:
        if len(one.members) == 2:
            tries.setdefault(frozenset(one.members), []).append(one)
            best[one.path, one.alone] = max(best.get((one.path, one.alone), 0.0), _speed(one))
    sorts: dict[str, set[Pair]] = {"good": set(), "bad": set(), "unsure": set()}
    why = {}
    for pair, some in tries.items():
        sort, why[pair] = _sort(some, best, limits)
        sorts[sort].add(pair)
    tops = {path: max(speed for (other, _), speed in best.items() if other == path) for path, _ in best}  # fmt: skip
    fixed = {name: frozenset(pairs) for name, pairs in sorts.items()}
    bad = fixed["bad"]
    far = _far(bad, tries, limits)
    chance = bad - far if _unsteady(bad, tries, best, limits) else frozenset()
    well = [one for pair in fixed["good"] for one in tries[pair]]
    late = (pair for pair in fixed["bad"] if any(hurried(one, well) for one in tries[pair]))
    return JudgedPairs(
        noisy=any(_compared(one, best)[0] < limits.fine for one in well),
        late=frozenset(late),
        good=fixed["good"],
        bad=fixed["bad"],
        unsure=fixed["unsure"],
        why=why,
        best=tops,
        chance=chance,
        plain=frozenset(pair for pair in far if len(tries[pair]) > 1),
    )


def _far(
    bad: frozenset[Pair], tries: Mapping[Pair, Sequence[Trial]], limits: PairLimits
) -> frozenset[Pair]:
    """Bad pairs that carried wrong values, or of which every try failed or was far slower than all tries of that path that are not of bad pairs."""
    slowest: dict[str, float] = {}
    for pair in tries.keys() - bad:
        for one in tries[pair]:
            slowest[one.path] = min(slowest.get(one.path, math.inf), _speed(one))
    return frozenset(
        pair
        for pair in bad
        if any(one.outcome == "wrong" for one in tries[pair])
        or all(
            not _speed(one) or _speed(one) < limits.slow * slowest.get(one.path, 0.0)
            for one in tries[pair]
        )
    )


def _unsteady(
    bad: frozenset[Pair],
    tries: Mapping[Pair, Sequence[Trial]],
    best: Mapping[tuple[str, bool], float],
    limits: PairLimits,
) -> bool:
    """Whether other work on the machine slows pairs as much as a fault would: a pair is slow in one try and not in another."""
    if any(
        _compared(one, best)[0] < limits.slow for pair in tries.keys() - bad for one in tries[pair]
    ):
        return True
    for some in tries.values():
        for alone in (True, False):
            speeds = [_speed(one) for one in some if one.alone is alone and _speed(one)]
            if speeds and min(speeds) < limits.slow * max(speeds):
                return True
    return False


def rate_words(bandwidth: float) -> str:
    """A bandwidth in bytes per second as `12.3 GB/s`, in powers of ten as usual for networks."""
    for unit, size in (("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3)):
        if bandwidth >= size:
            return f"{bandwidth / size:.3g} {unit}"
    return f"{bandwidth:.3g} B/s"


def outcome_words(trial: Trial) -> str:
    """How a trial failed, in words, with its reason."""
    return _WORDS[trial.outcome] + (f": {trial.reason}" if trial.reason else "")


def _speed(trial: Trial) -> float:
    return trial.bandwidth or 0.0 if trial.outcome == "measured" else 0.0


def _sort(
    tries: Sequence[Trial], best: Mapping[tuple[str, bool], float], limits: PairLimits
) -> tuple[str, str]:
    failed = [one for one in tries if one.outcome != "measured"]
    wrong = [one for one in failed if one.outcome == "wrong"]
    if wrong or len(failed) == len(tries):
        return "bad", outcome_words((wrong or failed)[0])
    share, speed, top = max(_compared(one, best) for one in tries)
    words = f"has {rate_words(speed)}, the best {rate_words(top)}"
    if limits.floor is not None and speed < limits.floor:
        return "bad", f"has {rate_words(speed)}, expected are {rate_words(limits.floor)}"
    if share < limits.slow:
        return "bad", words
    if failed:
        return "unsure", f"{_WORDS[failed[0].outcome]} in one try and worked in another"
    return ("good" if share >= limits.fine else "unsure"), words


def _compared(trial: Trial, best: Mapping[tuple[str, bool], float]) -> tuple[float, float, float]:
    """Its share of the best of its kind, its bandwidth, the best."""
    speed, top = _speed(trial), best[trial.path, trial.alone]
    return speed / max(top, 1e-9), speed, top
