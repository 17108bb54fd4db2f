"""The merged stacks of ranks as a flat list of branches, so that neither template nor browser has to recurse deeply."""

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mldebug.core.model import TreeNode
from mldebug.core.ranksets import MAX_RANK, shorten_ranks

MAX_NODES = 3_000
"""Frames shown; report.json has them all."""

MAX_CULPRITS = 256  # that are marked in the tree

OPEN_BRANCHES = 80  # a tree with more starts folded below its first levels
OPEN_LEVELS = 3
MAX_LEVELS = 60
_SPANS = re.compile(r"(?<![\d-])(\d{1,9})(?:-(\d{1,9}))?(?![\d-])", re.ASCII)  # of a folded set


@dataclass(frozen=True, slots=True)
class StackBranch:
    """One branch of the tree in which the stacks of all ranks are merged: consecutive frames that the same ranks share, outermost first.

    `ranks`: these ranks as short text (`0-3,7`); `count`: how many they are; `share`: the part of all ranks, 0 to 1; `culprits`: those among them that
    the report blames. `leaf`: no branch follows below it; `open`: it is shown unfolded.

    The tree is shown as a flat list of branches, depth first. `closes`: how many levels of the tree end behind this branch, its own
    included; 0 where its children follow.
    """

    frames: list[str]
    ranks: str
    count: int
    share: float
    culprits: list[int]
    leaf: bool
    open: bool
    closes: int


class _FrameRun(NamedTuple):
    nodes: list[TreeNode]
    level: int


def branches(tree: Sequence[TreeNode], culprits: Sequence[int], world: int) -> list[StackBranch]:
    """The tree as a list, depth first: a branch's children follow it, and `closes` shows where branches end.

    `world`: the number of ranks.
    """
    runs = list(_bounded(_runs(tree, 0)))
    folded = len(runs) > OPEN_BRANCHES
    levels = [run.level for run in runs]
    return [
        _branch(run, following, culprits, max(world, 1), folded)
        for run, following in zip(runs, [*levels[1:], 0], strict=False)
    ]


def left_out(tree: Sequence[TreeNode]) -> int:
    """How many frames of the tree are not shown."""
    every = sum(len(run.nodes) for run in _runs(tree, 0))
    return every - sum(len(run.nodes) for run in _bounded(_runs(tree, 0)))


def _runs(nodes: Sequence[TreeNode], level: int) -> Iterator[_FrameRun]:
    """Depth first with an explicit stack."""
    waiting = [(node, level) for node in reversed(nodes)]
    while waiting:
        node, depth = waiting.pop()
        run = [node]
        while len(node.children) == 1 and node.children[0].count == node.count:
            node = node.children[0]
            run.append(node)
        yield _FrameRun(run, depth)
        deeper = min(depth + 1, MAX_LEVELS)
        waiting.extend((child, deeper) for child in reversed(node.children))


def _bounded(runs: Iterator[_FrameRun]) -> Iterator[_FrameRun]:
    room = MAX_NODES
    for run in runs:
        room -= len(run.nodes)
        if room < 0:
            return
        yield run


def _branch(
    run: _FrameRun, following: int, culprits: Sequence[int], world: int, folded: bool
) -> StackBranch:
    first, leaf = run.nodes[0], following <= run.level
    blamed = _among(culprits, first.ranks)
    return StackBranch(
        frames=[node.frame for node in run.nodes],
        ranks=shorten_ranks(first.ranks, 48),
        count=first.count,
        share=first.count / world,
        culprits=blamed,
        leaf=leaf,
        open=not folded or run.level < OPEN_LEVELS or bool(blamed),
        closes=run.level - following + 1 if leaf else 0,
    )


def _among(ranks: Sequence[int], folded: str) -> list[int]:
    """Those of `ranks` that a folded set holds; reading its bounds beats expanding 8,192 ranks per frame."""
    if not ranks:
        return []
    spans = sorted((int(low), int(high or low)) for low, high in _SPANS.findall(folded))
    found = []
    for rank in ranks[:MAX_CULPRITS]:
        at = bisect_right(spans, (rank, MAX_RANK))
        if at and rank <= spans[at - 1][1]:
            found.append(rank)
    return found
