"""Which node has which ranks of one run.

The node that announced a rank first has it, since no rank can be on two nodes. Pure.
"""

from bisect import bisect_left, insort

from mldebug.core.ranksets import rank_intervals


class RankClaims:
    """The ranks of one run by node, as intervals that do not overlap. For one thread only."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int, str]] = []  # first, last, node; in their order
        self._texts: dict[str, str] = {}  # by node
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._texts)

    @property
    def count(self) -> int:
        """How many ranks all these nodes have."""
        return self._count

    def has(self, node: str) -> bool:
        """Whether this node has ranks of the run."""
        return node in self._texts

    def owner(self, node: str, ranks: str) -> str:
        """Return another node that has one of these ranks (a folded set such as `0-3,7`); "" where no other node has one."""
        if self._texts.get(node) == ranks:
            return ""
        for first, last in rank_intervals(ranks):
            at = bisect_left(self._spans, (first, -1, ""))
            for place in range(max(0, at - 1), len(self._spans)):
                begin, end, name = self._spans[place]
                if begin > last:
                    break
                if end >= first and name != node:
                    return name
        return ""

    def put(self, node: str, ranks: str) -> None:
        """Store that the node has these ranks (a folded set such as `0-3,7`) and no others.

        Call `owner` before: this method does not check whether another node has one of the ranks.
        """
        if self._texts.get(node) == ranks:
            return
        self.remove(node)
        self._texts[node] = ranks
        for first, last in rank_intervals(ranks):
            insort(self._spans, (first, last, node))
            self._count += last - first + 1

    def remove(self, node: str) -> None:
        """Forget the node and its ranks."""
        if self._texts.pop(node, None) is not None:
            self._spans = [span for span in self._spans if span[2] != node]
            self._count = sum(last - first + 1 for first, last, _ in self._spans)
