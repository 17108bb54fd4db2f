"""Calls with their beginning and their end, made to nest: what exports and the call tree are built from.

A ring begins in the middle and ends in the middle. A frame that returns and was never seen to be entered was open from
the first record on; one that has not returned is open to the last. A frame whose end is not told ends where it can no
longer be open.
"""

from collections.abc import Iterable
from typing import NamedTuple

from mldebug.ring.records import ENTERS, LEAVES, Event, Kind, Place

MAX_DEPTH = 5_000  # of a stack that is followed


class Edge(NamedTuple):
    """A call begins (`opens`) or ends. `seen`: a record says so, it is not concluded."""

    at: int
    opens: bool
    place: Place
    seen: bool = True
    again: bool = False  # a generator goes on: no further call


class _Thread:
    """The edges of one thread, in their order."""

    def __init__(self, first: int) -> None:
        self._first = self._last = first
        self._edges: list[Edge] = []
        self._stack: list[tuple[Place, int]] = []  # with its depth
        self._before: list[Place] = []  # open from the start on, the innermost first

    def take(self, event: Event) -> None:
        """Next in time."""
        self._last = max(self._last, event.at)
        enters = event.kind in ENTERS
        inside = enters or event.kind is Kind.LINE  # of a line, the frame it lies in has one less
        self._end_deeper(event.depth if inside else event.depth + 1)
        if enters and len(self._stack) < MAX_DEPTH:
            self._stack.append((event.place, event.depth))
            again = event.kind is Kind.RESUME
            self._edges.append(Edge(self._last, True, event.place, again=again))
        elif event.kind in LEAVES:
            self._leave(event.place)

    def _end_deeper(self, depth: int) -> None:
        while self._stack and self._stack[-1][1] >= depth:
            self._edges.append(Edge(self._last, False, self._stack.pop()[0], seen=False))

    def _leave(self, place: Place) -> None:
        if self._stack and self._stack[-1][0] == place:
            self._stack.pop()
            self._edges.append(Edge(self._last, False, place))
        elif not self._stack and len(self._before) < MAX_DEPTH:
            self._before.append(place)
            self._edges.append(Edge(self._last, False, place))

    def edges(self, end: int) -> list[Edge]:
        """All of them; what is still open ends at `end`."""
        begun = [Edge(self._first, True, place, seen=False) for place in reversed(self._before)]
        open_ = [Edge(end, False, place, seen=False) for place, _ in reversed(self._stack)]
        return [*begun, *self._edges, *open_]


def edges(events: Iterable[Event]) -> dict[int, list[Edge]]:
    """By thread: edges that nest, each beginning with its end, times never going back."""
    threads: dict[int, _Thread] = {}
    end = 0
    for event in events:
        end = max(end, event.at)
        if event.thread not in threads:
            threads[event.thread] = _Thread(event.at)
        threads[event.thread].take(event)
    return {number: thread.edges(end) for number, thread in threads.items()}
