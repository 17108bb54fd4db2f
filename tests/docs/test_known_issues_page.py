"""docs/known-traps.md is made from the rules, and up to date."""

from pathlib import Path

import pytest

from mldebug.jobs.known_issues.match import RULES, SETTINGS
from shared.docs.known_issues_page import page

PAGE = Path(__file__).parents[2] / "docs/known-traps.md"


def test_the_page_is_up_to_date(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "make it anew with: pytest tests/docs/test_known_issues_page.py --update-golden"
    )


def test_everything_stands_on_it() -> None:
    result = page()
    assert not [rule.name for rule in RULES if f"\n| `{rule.name}` |" not in result]
    assert not [name for name in SETTINGS if f"`{name}`" not in result]


def test_a_row_fits_its_table() -> None:
    for line in page().splitlines():
        if line.startswith("| `"):
            assert line.count("|") == 6
