"""docs/seeds.md: every system and story of the seeds is there once, with a verdict, and every test that the page names exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/seeds.md").read_text()
SYSTEMS = {"A": 31, "B": 6, "C": 26, "D": 20, "E": 32, "F": 26, "G": 19, "H": 8}
"""How many there are in each group of the inventory, numbered from 1 on."""
STORIES = 67
VERDICTS = ("covered", "out of scope", "later")


def cells(text: str = PAGE) -> list[list[str]]:
    """Those of all rows of all tables, without the headings."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    rows = [[cell.strip() for cell in line.removesuffix("|")[1:].split("|")] for line in lines]
    return [row for row in rows if row[0] not in ("row", "story", "defect")]


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}", 1)[1].split("\n## ", 1)[0]


JUDGED = [row for row in cells() if re.fullmatch(r"[A-H]\d\d|S-\d\d", row[0])]


@pytest.mark.parametrize("group", SYSTEMS)
def test_every_system_of_a_group_stands_in_its_section(group: str) -> None:
    wanted = [f"{group}{number:02}" for number in range(1, SYSTEMS[group] + 1)]
    assert [row[0] for row in cells(section(f"{group}. "))] == wanted


def test_every_story_stands_in_its_table() -> None:
    wanted = [f"S-{number:02}" for number in range(1, STORIES + 1)]
    assert [row[0] for row in cells(section("Stories"))] == wanted


def test_nothing_is_judged_twice() -> None:
    assert len({row[0] for row in JUDGED}) == len(JUDGED) == sum(SYSTEMS.values()) + STORIES


def test_each_has_a_verdict_with_its_reason_and_what_is_covered_a_test() -> None:
    assert {len(row) for row in JUDGED} == {4}
    wrong = [row for row in JUDGED if not re.match(rf"({'|'.join(VERDICTS)}): \S", row[2])]
    bare = [row for row in JUDGED if row[2].startswith("covered") and "::test_" not in row[3]]
    assert (wrong, bare) == ([], [])


def test_its_counts_are_right() -> None:
    head = " ".join(PAGE.split("\n## ", 1)[0].split())
    for verdict in VERDICTS:
        many = sum(row[2].startswith(f"{verdict}: ") for row in JUDGED)
        assert re.search(rf"\*\*{verdict}\*\*: [^*]* {many}( of them)?\.", head), (verdict, many)
    assert f"{sum(SYSTEMS.values())} systems" in head
    assert f"{STORIES} stories" in head


def test_every_defect_has_a_test_that_would_find_it() -> None:
    rows = cells(section("What is wrong there"))
    assert rows
    assert not [row for row in rows if len(row) != 3 or "::test_" not in row[2]]


def test_every_test_that_the_page_names_exists() -> None:
    named = re.findall(r"`(tests/[a-z_/]+\.py)::(test_\w+)`", PAGE)
    assert len(named) == PAGE.count("::test_")
    missing = [
        (file, name) for file, name in named if f"def {name}(" not in (ROOT / file).read_text()
    ]
    assert missing == []


def test_every_trap_that_it_names_is_a_rule() -> None:
    known = (ROOT / "docs/known-traps.md").read_text()
    matching = [word for row in JUDGED for one in re.findall(r"traps? ((?:`\w+`(?:, | and )?)+)", row[2])
            for word in re.findall(r"`(\w+)`", one)]  # fmt: skip
    assert len(matching) > 10
    assert not [name for name in matching if f"| `{name}` |" not in known]
