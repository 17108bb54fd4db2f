"""The map of ranks as a PNG: a cell for each rank, with its number where there is room; culprits are framed. Pure.

A node is a row of cells where the run has several. The whole is at most about 700 pixels wide and 20 KB large.
"""

import struct
import zlib
from collections.abc import Sequence

from mldebug.alerts.rank_map import CULPRIT, LOOKS, RankMap
from mldebug.core.ranksets import unfold

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
    """The map as a PNG file."""
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
