"""Nobody is named at medium or high but for a failure of its own, in whatever order ranks end and write, and whatever is lost of their logs.

Every last word of tests/fixtures/field/last_words is played in other ways than those in which it was
judged at first. A name may be lost in them; it never becomes another rank's.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from mldebug.core.model import Confidence
from mldebug.diagnosis.exits.outcome import ExitOutcome
from shared.diagnosis.fieldexits import Dress, Plan, outcome_of
from shared.diagnosis.lastwords import SPEAKER, WORLD, LastWords, Play, all_last_words, plan_of

ELSEWHERE = 3  # the number that the speaker gets where ranks are renumbered
_NUMBERED = re.compile(r"rank|task|process|worker|host|node|\b[TDPE]P ?\d|\[\d", re.IGNORECASE)
CASES = tuple(all_last_words())


class Played(NamedTuple):
    """One way to play a case: the plan, who may be named, how lines are marked."""

    plan: Plan
    allowed: frozenset[int]
    dress: Dress
    launcher: str = "torchrun"
    file_each: bool = False


def marked(rank: int, line: str) -> str:
    return line if line.startswith(("[rank", "step ")) else f"[rank{rank}]: {line}"


def teed(rank: int, line: str) -> str:
    return f"[default{rank}]:{line}"


def labelled(rank: int, line: str) -> str:
    return f"{rank}: {line}"


def tagged(rank: int, line: str) -> str:
    return f"[1,{rank}]<stderr>:{line}"


def bare(rank: int, line: str) -> str:
    return line


def _plan(case: LastWords, others: str) -> dict[str, list[Any]]:
    return dict(plan_of(case, Play(others, "file", False)))


def _allowed(case: LastWords) -> frozenset[int]:
    named = {rank for ranks in case.accept or () for rank in ranks} | set(case.accused)
    return frozenset(named | ({SPEAKER} if case.fault == "own" else set()))


def _without_words(steps: list[Any]) -> list[Any]:
    return [step for step in steps if not isinstance(step, str)]


def others_end_first(case: LastWords) -> Iterator[Played]:
    """Who lost its peer ends, and writes, before the one that was its peer."""
    plan = _plan(case, "lose")
    for rank in (0, 2, 3):
        soon = [{"sleep": 2 + rank} if step == {"sleep": 9} else step for step in plan[str(rank)]]
        plan[str(rank)] = soon
    yield Played(plan, _allowed(case), marked)
    yield Played(plan, _allowed(case), bare, file_each=True)


def all_end_at_once(case: LastWords) -> Iterator[Played]:
    """No order of exits, as after a node's scheduler has ended them."""
    plan = {rank: [step for step in steps if not isinstance(step, dict) or "sleep" not in step or step["sleep"] == 60]
            for rank, steps in _plan(case, "lose").items()}  # fmt: skip
    yield Played(plan, _allowed(case), bare, file_each=True)


def a_log_is_lost(case: LastWords) -> Iterator[Played]:
    """Of each rank in turn. Who is left without a word, and ended first, may be named for that."""
    for lost in range(WORLD):
        plan = _plan(case, "lose")
        plan[str(lost)] = _without_words(plan[str(lost)])
        allowed = _allowed(case) | ({SPEAKER} if lost == SPEAKER else set())
        yield Played(plan, allowed, bare, file_each=True)


def written_twice(case: LastWords) -> Iterator[Played]:
    """By `tee` and a collector into one log."""
    twice = {
        rank: [f"{step}\n{step}" if isinstance(step, str) else step for step in steps]
        for rank, steps in _plan(case, "lose").items()
    }
    yield Played(twice, _allowed(case), marked)


def marked_otherwise(case: LastWords) -> Iterator[Played]:
    """By torchrun's, srun's and mpirun's marks."""
    plan = _plan(case, "lose")
    yield Played(plan, _allowed(case), teed)
    yield Played(plan, _allowed(case), labelled, launcher="slurm")
    yield Played(plan, _allowed(case), tagged, launcher="openmpi")


def renumbered(case: LastWords) -> Iterator[Played]:
    """The speaker is another rank; of words that hold no number of a rank."""
    plan = _plan(case, "lose")
    words = "".join(step for step in plan[str(SPEAKER)] if isinstance(step, str))
    if _NUMBERED.search(words) or case.accused:
        return
    mine, its = str(SPEAKER), str(ELSEWHERE)
    plan[mine], plan[its] = plan[its], plan[mine]
    named = {ELSEWHERE if rank == SPEAKER else rank for rank in _allowed(case)}
    yield Played(plan, frozenset(named), marked)


WAYS: tuple[Callable[[LastWords], Iterator[Played]], ...] = (
    others_end_first,
    all_end_at_once,
    a_log_is_lost,
    written_twice,
    marked_otherwise,
    renumbered,
)


def surely_named(outcome: ExitOutcome) -> set[int]:
    """Who is named at more than `low`."""
    found = outcome.finding
    if found is None or found.confidence is Confidence.LOW:
        return set()
    return {one.rank for one in found.culprits if one.rank is not None}


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_the_name_never_becomes_another_ranks(
    way: Callable[[LastWords], Iterator[Played]], every: int
) -> None:
    """Each case in two of the ways; nightly in all."""
    wrong = []
    for case in CASES[WAYS.index(way) % every :: every]:
        for number, one in enumerate(way(case)):
            outcome = outcome_of(one.plan, WORLD, one.dress, None, one.launcher, file_each=one.file_each)  # fmt: skip
            if not surely_named(outcome) <= one.allowed:
                wrong.append((case.name, number, outcome.sentence[:160]))
    assert wrong == []


def test_each_way_names_who_failed_by_itself_somewhere() -> None:
    """Else the rule above would hold by silence."""
    case = next(one for one in CASES if one.name == "value-shard")
    named = {way.__name__: [surely_named(outcome_of(one.plan, WORLD, one.dress, None, one.launcher, file_each=one.file_each)) for one in way(case)] for way in WAYS}  # fmt: skip
    assert all(any(found) for found in named.values()), named
