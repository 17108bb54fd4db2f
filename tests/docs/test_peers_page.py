"""docs/peers.md: each row is whole and says where it comes from; links to our own pages lead somewhere."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/peers.md").read_text()
PAGES = ("peers", "seeds", "verdicts")


def rows() -> list[list[str]]:
    """The cells of all rows, without the headings."""
    lines = [line for line in PAGE.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] not in ("tool", "system")]


def test_every_row_is_whole_and_has_a_source() -> None:
    found = rows()
    assert len(found) >= 25
    assert {len(row) for row in found} == {3, 6}  # papers; tools
    assert not [row[0] for row in found if not all(row) or "](https://" not in "".join(row)]


@pytest.mark.parametrize("page", PAGES)
def test_links_to_our_own_pages_lead_somewhere(page: str) -> None:
    text = (ROOT / f"docs/{page}.md").read_text()
    for target, anchor in re.findall(r"\]\((?!https?:)([\w./-]*)(?:#([\w-]+))?\)", text):
        there = ROOT / "docs" / target if target else ROOT / f"docs/{page}.md"
        assert there.is_file(), target
        assert not anchor or anchor in anchors(there.read_text()), f"{target}#{anchor}"


def anchors(text: str) -> set[str]:
    """As GitHub makes them of headings."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
