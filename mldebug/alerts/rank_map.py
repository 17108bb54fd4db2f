"""The ranks of an incident as a map: what each does, node by node, as a picture or as coloured squares in a chat. Bounded. Pure.

The picture is a PNG with a cell for each rank, with its number where there is room; culprits are framed. A node is a row of cells where the
run has several. It is at most about 700 pixels wide and 20 KB large.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from mldebug.core.model import ClassifiedRank, Judgement, MeasuredData, Role
from mldebug.core.ranksets import fold_ranks, shorten_ranks, unfold
from mldebug.core.redact import safe_line

MOST_RANKS, MOST_NODES = 1024, 128
LETTERS = {
    Role.WAITING: "w",
    Role.INERT: "i",
    Role.BUSY: "b",
    Role.EXITED: "x",
    Role.MISSING: "m",
    Role.UNCLEAR: "u",
}
CULPRIT = "c"


class Look(NamedTuple):
    """How cells of one letter are shown. `fill`: red, green, blue."""

    words: str  # "3 …"
    square: str
    fill: tuple[int, int, int]


LOOKS = {
    CULPRIT: Look("culprit", "🔴", (180, 35, 42)),
    "x": Look("exited", "⬛", (36, 41, 47)),
    "m": Look("never came", "⬜", (225, 227, 225)),
    "i": Look("do nothing", "🟧", (230, 130, 60)),
    "b": Look("compute", "🟨", (240, 180, 41)),
    "u": Look("unclear", "🟪", (170, 150, 190)),
    "w": Look("wait for others", "🟦", (188, 207, 224)),
}
"""In the order of suspicion: of several ranks in one square the first of these is shown."""


class NodeRanks(MeasuredData, frozen=True, kw_only=True):
    """The ranks of one node on the map. `ranks`: folded, `0-7`; `letters`: one of `LOOKS` for each of them, in their order."""

    node: str
    ranks: str
    letters: str


class RankMap(MeasuredData, frozen=True, kw_only=True):
    """The ranks of an incident by node. `left_out`: how many others there are, all of them on nodes where nobody is blamed if there is room."""

    nodes: tuple[NodeRanks, ...]
    left_out: int = 0

    def cells(self) -> Iterator[tuple[int, str]]:
        """Pairs of a rank and the letter that shows its state in the map (a key of the legend), node by node, as they are drawn."""
        for one in self.nodes:
            yield from zip(unfold(one.ranks), one.letters, strict=False)


def rank_map(judgement: Judgement) -> RankMap | None:
    """The map of a judgement; None where it has no rank."""
    blamed = {one.rank for one in judgement.diagnosis.culprits if one.rank is not None}
    by_node: dict[str, list[ClassifiedRank]] = {}
    for one in judgement.ranks:
        by_node.setdefault(one.node, []).append(one)
    made = [_node(node, some, blamed) for node, some in by_node.items()]
    kept: list[NodeRanks] = []
    room = MOST_RANKS
    for node in sorted(made, key=lambda one: _suspicion(one.letters)):
        if len(kept) < MOST_NODES and len(node.letters) <= room:
            kept.append(node)
            room -= len(node.letters)
    kept.sort(key=lambda one: unfold(one.ranks)[0])
    shown = MOST_RANKS - room
    return RankMap(nodes=tuple(kept), left_out=len(judgement.ranks) - shown) if kept else None


def _node(name: str, ranks: Iterable[ClassifiedRank], blamed: Iterable[int]) -> NodeRanks:
    letters = {one.rank: CULPRIT if one.rank in blamed else LETTERS[one.is_.role] for one in ranks}
    numbers = sorted(letters)[:MOST_RANKS]
    return NodeRanks(
        node=safe_line(name, 60),
        ranks=fold_ranks(numbers),
        letters="".join(letters[one] for one in numbers),
    )


def _suspicion(letters: str) -> int:
    """Where the most suspicious of these letters stands in `LOOKS`."""
    return next((n for n, letter in enumerate(LOOKS) if letter in letters), len(LOOKS))


def legend(found: RankMap) -> str:
    """What is on the map, in words: `rank 2: culprit; ranks 0-1,3: wait for others`."""
    members: dict[str, list[int]] = {}
    for rank, letter in found.cells():
        members.setdefault(letter, []).append(rank)
    parts = [f"{_ranks(members[one])}: {look.words}" for one, look in LOOKS.items() if one in members]  # fmt: skip
    parts += [f"{found.left_out:,} more ranks are not shown"] if found.left_out else []
    return "; ".join(parts)


def _ranks(ranks: list[int]) -> str:
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {shorten_ranks(fold_ranks(ranks), 60)}"


MOST_SQUARES, ROW = 64, 8


def squares(found: RankMap) -> str:
    """The map as lines of coloured squares for a chat, at most 64: a square for each rank, or for each node where there are more ranks."""
    cells, kind = [(str(rank), letter) for rank, letter in found.cells()], "ranks"
    if len(cells) + found.left_out > MOST_SQUARES:
        cells = [(one.node, list(LOOKS)[_suspicion(one.letters)]) for one in found.nodes]
        kind = "nodes"
    worst = sorted(range(len(cells)), key=lambda n: _suspicion(cells[n][1]))[:MOST_SQUARES]
    shown = [cells[n] for n in sorted(worst)]
    rows = (shown[n : n + ROW] for n in range(0, len(shown), ROW))
    lines = [f"{''.join(LOOKS[letter].square for _, letter in row)} {row[0][0]} …" for row in rows]
    keys = [f"{look.square} {look.words}" for letter, look in LOOKS.items() if letter in {one for _, one in shown}]  # fmt: skip
    is_whole = len(shown) == len(cells) and not found.left_out
    return "\n".join(
        (*lines, f"{kind}{'' if is_whole else ', not all of them'}: {', '.join(keys)}")
    )


# --- the picture ----------------------------------------------------------------------------------

LARGE, SMALL = 34, 12  # pixels of a cell
FEW = 128  # cells that are large
ALONE = 16  # cells in a row of a run on one node
TALL = 32  # rows below each other; more stand beside them
GAP = 2
PAPER, INK, LIGHT, FRAME = 0, 1, 2, 3  # of the palette; the fills of `LOOKS` follow
COLOURS = ((255, 255, 255), (27, 31, 36), (255, 255, 255), (255, 210, 80), *(look.fill for look in LOOKS.values()))  # fmt: skip
DARK = (CULPRIT, "x")  # cells whose number is light
DIGITS = (
    *(
        "111101101101111",
        "010110010010111",
        "111001111100111",
        "111001111001111",
        "101101111001001",
    ),
    *(
        "111100111001111",
        "111100111101111",
        "111001001001001",
        "111101111101111",
        "111101111001111",
    ),
)
"""Each digit as 5 rows of 3 dots."""

Cell = tuple[int, str]
Canvas = list[bytearray]


def picture(found: RankMap) -> bytes:
    """The map of ranks as the bytes of a PNG file."""
    rows = _rows(found)
    size = LARGE if sum(map(len, rows)) <= FEW else SMALL
    step, across = size + GAP, max(map(len, rows))
    blocks = [rows[n : n + TALL] for n in range(0, len(rows), TALL)]
    wide = len(blocks) * (across * step + GAP) + GAP
    canvas = [bytearray(wide) for _ in range(max(map(len, blocks)) * step + GAP)]
    for number, block in enumerate(blocks):
        left = GAP + number * (across * step + GAP)
        for y, row in enumerate(block):
            for x, cell in enumerate(row):
                _draw(canvas, left + x * step, GAP + y * step, size, cell)
    return _png(canvas)


def _rows(found: RankMap) -> list[list[Cell]]:
    if len(found.nodes) > 1:
        some = [[*zip(unfold(one.ranks), one.letters, strict=False)] for one in found.nodes]
    else:
        some = [[*found.cells()]]
    return [row[n : n + ALONE] for row in some for n in range(0, len(row), ALONE)]


def _draw(canvas: Canvas, x: int, y: int, size: int, cell: Cell) -> None:
    rank, letter = cell
    _box(canvas, x, y, size, len(COLOURS) - len(LOOKS) + [*LOOKS].index(letter))
    if letter == CULPRIT:
        edge = 3 if size == LARGE else 2
        for at in ((x, y, size, edge), (x, y + size - edge, size, edge), (x, y, edge, size), (x + size - edge, y, edge, size)):  # fmt: skip
            _box(canvas, at[0], at[1], at[2], FRAME, at[3])
    if size == LARGE:
        _number(canvas, x + size // 2, y + size // 2, str(rank), LIGHT if letter in DARK else INK)


def _box(canvas: Canvas, x: int, y: int, wide: int, colour: int, high: int | None = None) -> None:
    for line in canvas[y : y + (wide if high is None else high)]:
        line[x : x + wide] = bytes([colour]) * wide


def _number(canvas: Canvas, x: int, y: int, text: str, colour: int) -> None:
    """Digits around a middle, each dot as 2 pixels, or 1 where they would not fit."""
    size = 2 if len(text) <= 4 else 1
    left, top = x - (4 * len(text) - 1) * size // 2, y - 5 * size // 2
    for place, digit in enumerate(text):
        for dot, mark in enumerate(DIGITS[int(digit)]):
            if mark == "1":
                right, down = 4 * place + dot % 3, dot // 3
                _box(canvas, left + size * right, top + size * down, size, colour)


def _png(canvas: Sequence[bytearray]) -> bytes:
    """A PNG of 8-bit palette colours (PNG specification, second edition, chapter 11)."""
    head = struct.pack(">IIBBBBB", len(canvas[0]), len(canvas), 8, 3, 0, 0, 0)
    palette = bytes(value for colour in COLOURS for value in colour)
    pixels = zlib.compress(b"".join(b"\0" + line for line in canvas), 9)
    parts = ((b"IHDR", head), (b"PLTE", palette), (b"IDAT", pixels), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_part(kind, data) for kind, data in parts)


def _part(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
