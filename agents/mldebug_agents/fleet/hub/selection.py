"""Which events an answer has where there are more than it may have. The stores differ in how they look, not in what they choose."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from mldebug.fleet.hub_model import EventFilter

MOST_BYTES = 32 << 20  # of the events of one answer
ROUNDS = 4  # in which what some nodes leave over is shared out among the others


class EventPlace(NamedTuple):
    """An event in a store: what finds it there (`row`: the table, and where in it), its times (unix), and its bytes."""

    row: tuple[str, str | int]
    at: float
    received: float
    size: int


Look = Callable[[EventFilter], list[EventPlace]]


def chosen(places: Look, nodes: Callable[[], list[str]], wanted: EventFilter) -> list[EventPlace]:
    """The events of an answer, by their times: the newest that fit, at most `MOST_BYTES` of them.

    `places`: returns those that fit, the newest first; `nodes`: the names of all nodes. Where there are too many, each node has as
    many as any other, so that one node's flood hides no other's.
    """
    found, whole = _within(places(wanted), wanted.limit, MOST_BYTES)
    if not whole and wanted.node is None:
        found = _shared_out(places, nodes(), wanted)
    return sorted(found, key=lambda one: (one.at, one.received))


def _within(places: list[EventPlace], most: int, size: int) -> tuple[list[EventPlace], bool]:
    """The first so many, of so many bytes together; and whether none is left out that there may be."""
    for number, one in enumerate(places):
        size -= one.size
        if number >= most or size < 0:
            return places[:number], False
    return places, len(places) < most


def _shared_out(places: Look, waiting: list[str], wanted: EventFilter) -> list[EventPlace]:
    found: dict[str, list[EventPlace]] = {}
    rows, size = wanted.limit, MOST_BYTES
    for _ in range(ROUNDS):
        if not waiting:
            break
        share = max(1, rows // len(waiting)), max(1, size // len(waiting))
        more = []
        for node in waiting:
            limited = msgspec.structs.replace(wanted, node=node, limit=share[0])
            found[node], whole = _within(places(limited), *share)
            if whole:
                rows -= len(found[node])
                size -= sum(one.size for one in found[node])
            else:
                more.append(node)
        if len(more) == len(waiting):
            break
        waiting = more
    return [one for some in found.values() for one in some]
