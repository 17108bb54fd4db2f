"""Calls with their beginning and their end, made to nest: what exports and the call tree are built from.

A ring begins in the middle and ends in the middle. A frame that returns and was never seen to be entered was open from
the first record on; one that has not returned is open to the last. A frame whose end is not told ends where it can no
longer be open.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mldebug.capture.trace.records import ENTERS, LEAVES, Event, Events, Kind, Place

MAX_DEPTH = 5_000  # of a stack that is followed


class Edge(NamedTuple):
    """A call begins (`opens`) or ends. `seen`: a record says so, it is not concluded."""

    at: int
    opens: bool
    place: Place
    seen: bool = True
    again: bool = False  # a generator goes on: no further call


class _Thread:
    """What is open in one thread, event by event."""

    def __init__(self) -> None:
        self.last = 0
        self.stack: list[tuple[Place, int]] = []  # with its depth
        self.before: list[Place] = []  # open from the start on, the innermost first

    def take(self, event: Event) -> list[Edge]:
        """The edges of the next one in time."""
        self.last = max(self.last, event.at)
        enters = event.kind in ENTERS
        inside = enters or event.kind is Kind.LINE  # of a line, the frame it lies in has one less
        depth = event.depth if inside else event.depth + 1
        found = self._ended(depth) if self.stack and self.stack[-1][1] >= depth else []
        if enters and len(self.stack) < MAX_DEPTH:
            self.stack.append((event.place, event.depth))
            again = event.kind is Kind.RESUME
            found.append(Edge(self.last, True, event.place, again=again))
        elif event.kind in LEAVES:
            self._leave(event.place, found)
        return found

    def _ended(self, depth: int) -> list[Edge]:
        found = []
        while self.stack and self.stack[-1][1] >= depth:
            found.append(Edge(self.last, False, self.stack.pop()[0], seen=False))
        return found

    def _leave(self, place: Place, found: list[Edge]) -> None:
        if self.stack and self.stack[-1][0] == place:
            self.stack.pop()
            found.append(Edge(self.last, False, place))
        elif not self.stack and len(self.before) < MAX_DEPTH:
            self.before.append(place)
            found.append(Edge(self.last, False, place))


def edges(events: Events, threads: Iterable[int]) -> Iterator[tuple[int, Iterator[Edge]]]:
    """By thread that has any: edges that nest, each beginning with its end, times never going back.

    The events are gone through twice. Of a ring that is written meanwhile the beginning may be gone the second time: what
    was open then is closed at the end.
    """
    end = events.newest or 0
    for thread in threads:
        first = next(events.of(thread), None)
        if first is not None:
            yield thread, _edges(events, thread, first.at, end)


def _edges(events: Events, thread: int, first: int, end: int) -> Iterator[Edge]:
    open_ = _open_before(events.of(thread))
    for place in reversed(open_):
        yield Edge(first, True, place, seen=False)
    told = _Thread()
    for event in events.of(thread):
        before = len(told.before)
        for edge in told.take(event):
            if before == len(told.before) or not edge.seen:
                yield edge
            elif before < len(open_):
                yield edge._replace(place=open_[before])
    last = max(end, told.last)
    for place, _ in reversed(told.stack):
        yield Edge(last, False, place, seen=False)
    for place in open_[len(told.before) :]:
        yield Edge(last, False, place, seen=False)


def _open_before(events: Iterable[Event]) -> list[Place]:
    """What is left in these events and was never seen to be entered, the innermost first."""
    told = _Thread()
    for event in events:
        told.take(event)
    return told.before
