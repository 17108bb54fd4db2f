"""What a store removes where it is too large. The stores differ in how they remove it, not in what."""

from collections.abc import Sequence
from typing import NamedTuple

EMPTY_TO = 0.9  # share of the greatest size at which pruning ends
STEPS = 50  # of one pruning: the rest is for the next
AT_ONCE = 20_000  # rows that one step removes


class Thinning(NamedTuple):
    """A node, and how many of its oldest events go in one step."""

    node: str
    events: int


def next_thinning(largest: Sequence[tuple[str, int]]) -> Thinning | None:
    """The node that has most, down to what the next one has, and at least a hundredth of its own; None where nothing is stored.

    `largest`: at most two nodes with the numbers of their events, the largest first.
    """
    if not largest:
        return None
    node, count = largest[0]
    more = count - largest[1][1] if len(largest) > 1 else count
    return Thinning(node, min(AT_ONCE, max(1, count // 100, more // 2)))
