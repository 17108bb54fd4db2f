"""docs/field-cases.md is made from the cases of tests/fixtures/field, and up to date. Here, where each case is judged by another test already."""

from pathlib import Path

import pytest

from shared.diagnosis.fieldcases import all_cases, page

PAGE = Path(__file__).parents[3] / "docs/field-cases.md"


@pytest.mark.timeout(900)
def test_the_page_is_up_to_date(request: pytest.FixtureRequest) -> None:
    made = page()
    if request.config.getoption("--update-golden"):
        PAGE.write_text(made, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == made, "make it anew with: make field-cases"


def test_every_case_has_its_row() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert not [one.name for some in all_cases() for one in some.cases if f"| `{one.name}` |" not in text]  # fmt: skip
