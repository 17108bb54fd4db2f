"""Evidence that people have posted: every case of tests/fixtures/field is answered rightly."""

import pytest

from shared.diagnosis.fieldcases import (
    ANSWERS,
    FIELD,
    Answer,
    Case,
    all_cases,
    faults_of,
    known_answer,
)
from shared.diagnosis.lastwords import FOLDER as LAST_WORDS

CASES = [(some.folder, one) for some in all_cases() for one in some.cases]


@pytest.mark.parametrize(
    "place", CASES, ids=[f"{folder.name}/{case.name}" for folder, case in CASES]
)
def test_a_case_is_answered_rightly(place: tuple[object, Case]) -> None:
    folder, case = place
    given = known_answer(folder, case)  # type: ignore[arg-type]
    assert faults_of(case, given) == [], given.words


def test_every_folder_tells_its_cases_and_every_input_has_one() -> None:
    """A fixture that nobody judges is forgotten."""
    for folder in (one for one in FIELD.iterdir() if one.is_dir() and one != LAST_WORDS):
        assert (folder / "cases.yaml").exists(), f"{folder} has no cases.yaml"
        inputs = {case.input for place, case in CASES if place == folder}
        found = {
            one.name for one in folder.iterdir() if one.name not in ("cases.yaml", "README.md")
        }
        assert found == {one.split("/")[0] for one in inputs}
    names = [(folder, case.name) for folder, case in CASES]
    assert len(names) == len(set(names))


def test_what_is_wrong_is_found() -> None:
    case = Case(name="x", how="exit", input="x", what="", right="", named=((2,), ()), say=("ECC",), never=("gloo",), ranks=4)  # fmt: skip
    wrong = Answer(verdict="rank_exited", named=(1,), words="gloo", ranks=2)
    assert len(faults_of(case, wrong)) == 4
    right = Answer(verdict="rank_exited", named=(2,), words="ECC", ranks=4)
    assert faults_of(case, right) == []
    assert len(faults_of(case, Answer(verdict="refused", refused=True))) == 1
    assert sorted(ANSWERS) == ["dumps", "exit", "flight", "ras"]
