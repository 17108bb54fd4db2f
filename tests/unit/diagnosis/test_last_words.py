"""Last words as the field writes them, with the answer fixed before they were tried: no play of any case gives a wrong name."""

import msgspec
import pytest

from mldebug.core.model import Confidence
from mldebug.diagnosis.exits.outcome import ExitOutcome
from shared.diagnosis.lastwords import (
    SPEAKER,
    LastWords,
    all_last_words,
    outcomes_of,
    verdict_on,
)

CASES = tuple(all_last_words())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nobody_is_named_wrongly(case: LastWords) -> None:
    found = {verdict_on(case, outcome) for _, outcome in outcomes_of(case)}
    assert found <= {"right", "unknown", "low"}


@pytest.mark.parametrize("case", [one for one in CASES if one.fault == "own" and not one.accept], ids=lambda case: case.name)  # fmt: skip
def test_who_failed_by_itself_is_named_where_its_lines_are_known(case: LastWords) -> None:
    """In a log of its own, or behind torch's mark."""
    found = {verdict_on(case, outcome) for play, outcome in outcomes_of(case) if play.log != "bare"}
    assert found == {"right"}


def test_names_of_cases_are_their_own() -> None:
    assert len({one.name for one in CASES}) == len(CASES)


def test_a_wrong_name_is_found() -> None:
    """The rule by which cases are judged."""
    case = LastWords(name="x", fault="own", source="own")
    outcome = next(outcome for _, outcome in outcomes_of(msgspec.structs.replace(case, exit="signal 9")))  # fmt: skip
    assert outcome.finding is not None
    assert [one.rank for one in outcome.finding.culprits] == [SPEAKER]
    victim = msgspec.structs.replace(case, fault="peer")
    assert (verdict_on(case, outcome), verdict_on(victim, outcome)) == ("right", "wrong high")
    assert verdict_on(msgspec.structs.replace(victim, accused=(SPEAKER,)), outcome) == "right"
    low = msgspec.structs.replace(outcome.finding, confidence=Confidence.LOW)
    assert verdict_on(victim, msgspec.structs.replace(outcome, finding=low)) == "low"
    nobody = ExitOutcome(kind="normal", sentence="")
    assert (verdict_on(case, nobody), verdict_on(victim, nobody)) == ("unknown", "right")
