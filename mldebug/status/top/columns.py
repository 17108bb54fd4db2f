"""Tables for a terminal of any width: where it is narrow, the least important columns are left out and the last is cut. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

GAP = 2  # columns between two


class Column(NamedTuple):
    """One column. `weight`: the one with the least is left out first; `most`: characters at which its cells are cut."""

    title: str
    weight: int
    right: bool = False
    most: int = 24


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """The headings and the rows as lines of at most `width` terminal columns."""
    kept = list(range(len(columns)))
    lines = [tuple(column.title for column in columns), *rows]
    wide = [min(columns[n].most, max(cell_len(line[n]) for line in lines)) for n in kept]
    while len(kept) > 1 and _least(columns, wide, kept) > width:
        kept.remove(min(kept, key=lambda n: columns[n].weight))
    return [fit(_line(columns, wide, kept, line), width) for line in lines]


def fit(text: str, width: int) -> str:
    """The text cut to so many terminal columns, with `…` at its end where something is missing."""
    if cell_len(text) <= width:
        return text
    return set_cell_size(text, max(0, width - 1)).rstrip() + "…" if width > 0 else ""


def _least(columns: Sequence[Column], wide: Sequence[int], kept: Sequence[int]) -> int:
    """How many columns of the terminal they need at least: the last one may be cut to its title."""
    last = min(wide[kept[-1]], max(12, len(columns[kept[-1]].title)))
    return sum(wide[n] for n in kept[:-1]) + last + GAP * (len(kept) - 1)


def _line(columns: Sequence[Column], wide: Sequence[int], kept: Sequence[int], line: Sequence[str]) -> str:  # fmt: skip
    cells = []
    for n in kept:
        text = fit(line[n], wide[n])
        blanks = " " * (wide[n] - cell_len(text))
        cells.append(blanks + text if columns[n].right else text + blanks)
    return (" " * GAP).join(cells).rstrip()
