"""The ranks of an incident as a map: what each does, node by node, for a picture or for coloured squares in a chat. Bounded. Pure."""

from collections.abc import Iterable, Iterator
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
        """Each rank with its letter, node by node."""
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
