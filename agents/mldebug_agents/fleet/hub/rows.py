"""An event as a row of a store's table `events`. The stores differ in how they write it, not in what."""

from typing import NamedTuple

import msgspec

from mldebug.fleet.events import AnyEvent, kind_of

_EVENTS = msgspec.json.Decoder(AnyEvent)
_BYTES = msgspec.json.Encoder()


class EventRow(NamedTuple):
    """One row of the hub's table of events; the fields are its columns, in that order. `at` (when it happened) and `received` are unix seconds, `uid` is
    the user whose job it is about (-1: none, it is about the node), `body` is the event as JSON.
    """

    node: str
    id: str
    kind: str
    subject: str
    at: float
    received: float
    job: str
    run: str
    uid: int
    body: bytes


def row_of(event: AnyEvent, received: float) -> EventRow:
    """The row of an event that came at `received` (unix)."""
    return EventRow(
        event.node,
        event.id,
        kind_of(event),
        event.subject,
        event.at,
        received,
        event.job,
        event.run,
        event.uid,
        _BYTES.encode(event),
    )


def event_of(body: bytes) -> AnyEvent:
    """The event in the column `body`."""
    event: AnyEvent = _EVENTS.decode(body)
    return event
