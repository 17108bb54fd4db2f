"""docs/security.md: each thing that it says nobody can do names a test, which is there; and no attacker of the page is without one."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/security.md").read_text()
HEADING = "| nobody who is a | does this | because of `tests/` |"


def rows(heading: str) -> list[list[str]]:
    """The rows of the table below this line, each as its cells."""
    table = PAGE.partition(f"{heading}\n")[2].partition("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table]


CLAIMS = [(cells[0], cells[1], cells[2].strip("`")) for cells in rows(HEADING)]


@cache
def names_in(file: Path) -> frozenset[str]:
    """The names of its tests."""
    tree = ast.parse(file.read_text()) if file.is_file() else ast.Module([], [])
    return frozenset(one.name for one in tree.body if isinstance(one, ast.FunctionDef))


def exists(test: str) -> bool:
    """Whether `FILE::NAME`, below tests/, is a test."""
    file, _, name = test.partition("::")
    return name.startswith("test_") and name in names_in(ROOT / "tests" / file)


@pytest.mark.parametrize(("who", "what", "test"), CLAIMS, ids=[one[2] for one in CLAIMS])
def test_what_nobody_can_do_has_a_test(who: str, what: str, test: str) -> None:
    assert exists(test), f"a {who} {what}: there is no {test}"


def test_every_attacker_of_the_page_has_claims() -> None:
    """Those whom the first table names, without their articles."""
    attackers = {re.sub(r"^(?:a|the) |(?<=, )a ", "", cells[0]) for cells in rows("| who | can | cannot |")}  # fmt: skip
    assert len(attackers) == 5
    assert {who for who, _, _ in CLAIMS} == attackers
    assert len(CLAIMS) >= 25


def test_every_linked_test_is_there() -> None:
    linked = re.findall(r"\]\(\.\./(tests/[^)#]+)\)", PAGE)
    assert len(linked) > 40
    assert [path for path in linked if not (ROOT / path).is_file()] == []


@pytest.mark.parametrize(
    "test",
    [
        "unit/watch/test_turns.py::test_nobody_wrote_this",
        "unit/watch/test_none.py::test_x",
        "unit/watch/test_turns.py",
        "unit/watch/test_turns.py::many",
    ],
)
def test_a_test_that_is_not_there_is_found_out(test: str) -> None:
    assert not exists(test)
