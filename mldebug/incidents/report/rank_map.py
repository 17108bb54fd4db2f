"""The map of ranks as data: of a small job one cell for each rank, of a large one a few SVG paths, readable up to 8,192 ranks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from mldebug.core.model import Role
from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.core.report_model import RankView
from mldebug.core.text import plural
from mldebug.incidents.report.wording import ROLES

MAX_CELLS = 256
"""Above this the map is drawn, not built from elements."""

PITCH = 10  # units from cell to cell, one of them is the gap
NODE_GAP = 4  # more room between nodes
WIDE = 128  # columns on a screen
NARROW = 64  # columns on a phone
MAX_LABELS = 12
MAX_TINTS = 3


@dataclass(frozen=True, slots=True)
class MapLegendEntry:
    """One entry of the legend: a role and class, with its colour's CSS classes and the ranks that have it."""

    name: str
    role: Role
    letter: str
    meaning: str
    css: str
    count: int
    ranks: str


@dataclass(frozen=True, slots=True)
class MapCell:
    """One rank of a small map; `index` is its row in the data."""

    index: int
    rank: int
    kind: int
    letter: str
    css: str
    hint: str


class NodeCells(NamedTuple):
    """The cells of one node in the small map."""

    node: str
    cells: list[MapCell]


class CulpritLabel(NamedTuple):
    """A culprit on a drawn map: the corner of its cell and where its label starts."""

    x: int
    y: int
    rank: int
    anchor: str
    label_x: int
    label_y: int


class DrawnMap(NamedTuple):
    """The picture of all ranks as small cells, in SVG units.

    `paths`: for each number of a legend entry the outlines of its cells, as the attribute `d` of an SVG path. The script of
    the page computes from `columns` and `per_node` which rank a click has hit.
    """

    css: str
    columns: int
    per_node: int
    width: int
    height: int
    paths: list[tuple[int, str]]
    grid: str
    apart: str
    marks: list[CulpritLabel]


def kinds(ranks: Sequence[RankView]) -> list[MapLegendEntry]:
    """The entries of the map's legend, the most suspicious role first."""
    members: dict[tuple[Role, str], list[int]] = {}
    for one in ranks:
        members.setdefault((one.role, one.class_), []).append(one.rank)
    order = list(ROLES)
    found = sorted(members, key=lambda key: (order.index(key[0]), -len(members[key]), key[1]))
    return [
        MapLegendEntry(
            name=name,
            role=role,
            letter=ROLES[role].letter,
            meaning=ROLES[role].meaning,
            css=f"r-{role} t{_tint(found, role, name)}",
            count=len(members[role, name]),
            ranks=shorten_ranks(fold_ranks(members[role, name]), 32),
        )
        for role, name in found
    ]


def kind_indices(ranks: Sequence[RankView], legend: Sequence[MapLegendEntry]) -> list[int]:
    """For each rank, the index of its entry in the legend."""
    index = {(kind.role, kind.name): position for position, kind in enumerate(legend)}
    return [index[one.role, one.class_] for one in ranks]


def cells(ranks: Sequence[RankView], legend: Sequence[MapLegendEntry]) -> list[NodeCells]:
    """Return the cells of a small map, node by node in the order of ranks."""
    nodes: dict[str, list[MapCell]] = {}
    for index, (one, kind) in enumerate(zip(ranks, kind_indices(ranks, legend), strict=True)):
        css = f"{legend[kind].css} culprit" if one.culprit else legend[kind].css
        blame = ", culprit" if one.culprit else ""
        hint = f"rank {one.rank}{blame}: {one.doing}"
        cell = MapCell(index, one.rank, kind, legend[kind].letter, css, hint)
        nodes.setdefault(one.node, []).append(cell)
    return [NodeCells(node, mine) for node, mine in nodes.items()]


def drawings(ranks: Sequence[RankView], legend: Sequence[MapLegendEntry]) -> list[DrawnMap]:
    """Return the map drawn for a screen and for a phone."""
    per_node = _per_node(ranks)
    which = kind_indices(ranks, legend)
    layouts = (("wide", WIDE), ("narrow", NARROW))
    return [_draw(css, columns, per_node, ranks, which) for css, columns in layouts]


def left(column: int, per_node: int) -> int:
    """The x coordinate of a column of the map.

    `per_node`: ranks per node, with a gap between nodes; 0: no gaps.
    """
    return column * PITCH + (column // per_node * NODE_GAP if per_node else 0)


def describe(legend: Sequence[MapLegendEntry]) -> str:
    """The legend in words, for screen readers."""
    return "; ".join(f"{plural(kind.count, 'rank')} {kind.role}: {kind.name}" for kind in legend)


def _tint(found: Sequence[tuple[Role, str]], role: Role, name: str) -> int:
    same = [other for other_role, other in found if other_role == role]
    return min(same.index(name), MAX_TINTS - 1)


def _per_node(ranks: Sequence[RankView]) -> int:
    """Ranks per node where all nodes have as many and rows end with a node, else 0."""
    sizes = {len(list(run)) for _, run in groupby(one.node for one in ranks)}
    size = sizes.pop() if len(sizes) == 1 else 0
    return size if size and size < len(ranks) and NARROW % size == 0 else 0


def _draw(
    css: str, columns: int, per_node: int, ranks: Sequence[RankView], which: Sequence[int]
) -> DrawnMap:
    rows = -(-len(ranks) // columns)
    width = left(columns - 1, per_node) + PITCH
    bars: dict[int, list[str]] = {}
    for row in range(rows):
        for kind, bar in _bars(which[row * columns : (row + 1) * columns], row, per_node):
            bars.setdefault(kind, []).append(bar)
    culprits = [index for index, one in enumerate(ranks) if one.culprit]
    return DrawnMap(
        css=css,
        columns=columns,
        per_node=per_node,
        width=width,
        height=rows * PITCH,
        paths=[(kind, "".join(parts)) for kind, parts in sorted(bars.items())],
        grid=_grid(columns, rows, width, per_node),
        apart=_apart(columns, rows, per_node),
        marks=[_mark(index, columns, per_node, width, ranks) for index in culprits[:MAX_LABELS]],
    )


def _bars(row: Sequence[int], number: int, per_node: int) -> Iterator[tuple[int, str]]:
    """One rectangle per run of one kind; the grid that is drawn over it makes the cells."""
    start = 0
    for kind, run in groupby(row):
        end = start + len(list(run))
        x = left(start, per_node)
        width = left(end - 1, per_node) + PITCH - x
        yield kind, f"M{x} {number * PITCH}h{width}v{PITCH}h-{width}z"
        start = end


def _grid(columns: int, rows: int, width: int, per_node: int) -> str:
    across = "".join(f"M0 {row * PITCH}h{width}" for row in range(rows + 1))
    down = f"v{rows * PITCH}"
    return across + "".join(f"M{left(column, per_node)} 0{down}" for column in range(columns))


def _apart(columns: int, rows: int, per_node: int) -> str:
    """Lines in the middle of the room between nodes, which runs of one kind cover."""
    starts = range(per_node, columns, per_node) if per_node else ()
    return "".join(f"M{left(start, per_node) - NODE_GAP // 2} 0v{rows * PITCH}" for start in starts)


def _mark(
    index: int, columns: int, per_node: int, width: int, ranks: Sequence[RankView]
) -> CulpritLabel:
    row, column = divmod(index, columns)
    x, y = left(column, per_node), row * PITCH
    late = x > width * 0.7
    label_x = x - 8 if late else x + PITCH + 8
    label_y = max(y + PITCH - 1, 16)
    return CulpritLabel(x, y, ranks[index].rank, "end" if late else "start", label_x, label_y)
