"""docs/seeds.md: every row of the seeds about storage and traces is there, and every test that the page names."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/seeds.md").read_text()
ROWS = {*(f"D{number:02}" for number in range(1, 21)), *(f"S-{number}" for number in range(40, 46)), "S-49", "B01", "B02", "B03"}  # fmt: skip


def cells() -> list[list[str]]:
    """Those of all rows of all tables, without the headings."""
    rows = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows]


def test_every_row_about_storage_and_traces_is_there() -> None:
    told = {word for row in cells() for word in re.split(r", ", row[0])}
    assert set() == ROWS - told


def test_a_row_without_a_test_says_why() -> None:
    bare = [row for row in cells() if len(row) == 4 and not row[3]]
    assert all(re.match("out of scope: |later: ", row[2]) for row in bare), bare


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[a-z_/]+\.py)::(test_\w+)`", PAGE)
    assert named
    missing = [
        (file, name) for file, name in named if f"def {name}(" not in (ROOT / file).read_text()
    ]
    assert missing == []
