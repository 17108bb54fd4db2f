"""Makes nested calls, each with a beginning and an end, from the events of a ring; exports and the call tree are built from them.

A ring begins and ends in the middle of calls. A frame that returns without having been entered counts as open from the first record on; one
that has not returned, as open to the last. A frame whose end was not recorded ends where it can no longer be open.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mldebug.capture.trace.records import (
    ENTERS,
    LEAVES,
    TracedFunction,
    TraceEvent,
    TraceEventKind,
    TraceEvents,
)

MAX_DEPTH = 5_000  # of a stack that is followed


class CallEdge(NamedTuple):
    """The beginning (`opens`) or the end of a call. `recorded`: a record shows it; else it was concluded from other records."""

    at: int
    opens: bool
    place: TracedFunction
    recorded: bool = True
    again: bool = False  # a generator goes on: no further call


class _Thread:
    """What is open in one thread, event by event."""

    def __init__(self) -> None:
        self.last = 0
        self.stack: list[tuple[TracedFunction, int]] = []  # with its depth
        self.before: list[TracedFunction] = []  # open from the start on, the innermost first

    def take(self, event: TraceEvent) -> list[CallEdge]:
        """The edges of the next one in time."""
        self.last = max(self.last, event.at)
        enters = event.kind in ENTERS
        inside = (
            enters or event.kind is TraceEventKind.LINE
        )  # of a line, the frame it lies in has one less
        depth = event.depth if inside else event.depth + 1
        found = self._ended(depth) if self.stack and self.stack[-1][1] >= depth else []
        if enters and len(self.stack) < MAX_DEPTH:
            self.stack.append((event.place, event.depth))
            again = event.kind is TraceEventKind.RESUME
            found.append(CallEdge(self.last, True, event.place, again=again))
        elif event.kind in LEAVES:
            self._leave(event.place, found)
        return found

    def _ended(self, depth: int) -> list[CallEdge]:
        found = []
        while self.stack and self.stack[-1][1] >= depth:
            found.append(CallEdge(self.last, False, self.stack.pop()[0], recorded=False))
        return found

    def _leave(self, place: TracedFunction, found: list[CallEdge]) -> None:
        if self.stack and self.stack[-1][0] == place:
            self.stack.pop()
            found.append(CallEdge(self.last, False, place))
        elif not self.stack and len(self.before) < MAX_DEPTH:
            self.before.append(place)
            found.append(CallEdge(self.last, False, place))


def edges(events: TraceEvents, threads: Iterable[int]) -> Iterator[tuple[int, Iterator[CallEdge]]]:
    """The beginnings and ends of calls for each thread that has events: each beginning has its end, calls nest, and times never
    go back.

    The events are read twice. If the beginning of the ring is overwritten between the two, calls that are then still open end at
    the last record.
    """
    end = events.newest or 0
    for thread in threads:
        first = next(events.of(thread), None)
        if first is not None:
            yield thread, _edges(events, thread, first.at, end)


def _edges(events: TraceEvents, thread: int, first: int, end: int) -> Iterator[CallEdge]:
    open_ = _open_before(events.of(thread))
    for place in reversed(open_):
        yield CallEdge(first, True, place, recorded=False)
    calls = _Thread()
    for event in events.of(thread):
        before = len(calls.before)
        for edge in calls.take(event):
            if before == len(calls.before) or not edge.recorded:
                yield edge
            elif before < len(open_):
                yield edge._replace(place=open_[before])
    last = max(end, calls.last)
    for place, _ in reversed(calls.stack):
        yield CallEdge(last, False, place, recorded=False)
    for place in open_[len(calls.before) :]:
        yield CallEdge(last, False, place, recorded=False)


def _open_before(events: Iterable[TraceEvent]) -> list[TracedFunction]:
    """Frames that are left in these events without being entered, the innermost first."""
    calls = _Thread()
    for event in events:
        calls.take(event)
    return calls.before
