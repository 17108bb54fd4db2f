"""The call tree of a ring, by thread: which function called which, how often and how long; open calls are marked."""

from collections.abc import Iterable, Iterator

from mldebug.capture.trace.line_format import frame_words
from mldebug.capture.trace.records import Ring, TracedFunction
from mldebug.capture.trace.spans import CallEdge, edges

MAX_SHOWN = 2_000  # lines of a tree
MAX_INDENT = 40


class CallNode:
    """All calls of one function from one place in the call tree. `nanoseconds`: their time, with all that they called."""

    __slots__ = ("calls", "children", "nanoseconds", "open", "place")

    def __init__(self, place: TracedFunction) -> None:
        self.place = place
        self.calls = 0
        self.nanoseconds = 0
        self.open = False  # had one not returned when the ring was read?
        self.children: dict[TracedFunction, CallNode] = {}

    def child(self, place: TracedFunction) -> "CallNode":
        """The node for a function called from this one; made where there is none."""
        found = self.children.get(place)
        if found is None:
            found = self.children[place] = CallNode(place)
        return found


def call_tree(some: Iterable[CallEdge], end: int) -> CallNode:
    """The call tree of one thread, from the edges of its calls; the root stands for no function. `end`: the time of the ring's
    last record, at which open calls are counted to end.
    """
    root = CallNode(TracedFunction(""))
    stack: list[tuple[CallNode, int]] = []
    for edge in some:
        if edge.opens:
            node = (stack[-1][0] if stack else root).child(edge.place)
            node.calls += not edge.again
            stack.append((node, edge.at))
        else:
            node, since = stack.pop()
            node.nanoseconds += edge.at - since
            node.open = node.open or (not edge.recorded and edge.at == end)
    return root


def tree_lines(ring: Ring) -> Iterator[str]:
    """The call trees of all threads as lines, indented by depth: `12.345 ms 3 x * train:40 train_step`; `*` marks a call that has
    not returned.
    """
    end = ring.newest or 0
    shown = 0
    for thread, some in edges(ring.events, sorted(ring.threads)):
        name = ring.name(thread)
        yield f"--- thread {thread}{f' ({name})' if name else ''} ---"
        for depth, node in _walk(call_tree(some, end)):
            shown += 1
            if shown > MAX_SHOWN:
                yield "… more calls: --tail N shows those of the last N records"
                return
            yield _line(depth, node)


def _line(depth: int, node: CallNode) -> str:
    spent = f"{node.nanoseconds / 1e6:12,.3f} ms {node.calls:>8,} x"
    indent = "  " * min(depth, MAX_INDENT)
    return f"{spent} {'*' if node.open else ' '} {indent}{frame_words(node.place)}"


def _walk(root: CallNode) -> Iterator[tuple[int, CallNode]]:
    """Depth first without recursion, the dearest child first."""
    waiting = [(0, one) for one in _dearest_last(root)]
    while waiting:
        depth, node = waiting.pop()
        yield depth, node
        waiting += [(depth + 1, one) for one in _dearest_last(node)]


def _dearest_last(node: CallNode) -> list[CallNode]:
    return sorted(node.children.values(), key=lambda one: one.nanoseconds)
