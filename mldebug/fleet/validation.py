"""Which events of another node a hub believes. Pure.

Each sender has proved to be an agent. An agent may still be broken, or taken over: its events speak for its own node alone, are
bounded, and lie in no future, so that it can spoil the history of its own node and of no other.
"""

import re
from typing import Literal

import msgspec

from mldebug.core.redact import clean
from mldebug.fleet.events import MAX_EVENT, SCHEMA, AnyEvent, FleetEvent, NoteEvent

SKEW = 300.0  # seconds by which the clock of a node may be ahead of the hub's

RefusalReason = Literal["size", "malformed", "name", "future", "schema"]

_EVENTS = msgspec.json.Decoder(AnyEvent)
# An agent cleans its texts. What JSON has to write with an escape (but quotes and backslashes), and characters that print nothing, hide words or turn
# them around, come from something else
_UNPRINTABLE = re.compile(
    rb"\\[^\"\\]|\x7f|\xc2[\x80-\x9f\xad]|\xe2\x80[\x8b-\x8f\xa8-\xae]|\xe2\x81[\xa0-\xaf]|\xef\xbb\xbf"
)
_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
_TIMES = ("at", "since", "began", "ended")


class EventRefusedError(Exception):
    """An event that a hub does not take. `reason`: one word for counters; the message says why."""

    def __init__(self, reason: RefusalReason, why: str) -> None:
        super().__init__(why)
        self.reason = reason


def believed(raw: bytes, sender: str, now: float) -> AnyEvent:
    """The event in `raw` (JSON). Raises EventRefusedError where it is malformed, unbounded, of another node than `sender`, or of
    the future. `now`: unix time of the hub.
    """
    if len(raw) > MAX_EVENT:
        raise EventRefusedError("size", f"it has {len(raw):,} bytes, more than {MAX_EVENT:,}")
    event = _decoded(raw)
    if isinstance(event, NoteEvent):
        raise EventRefusedError(
            "malformed", "notes are written by people at the hub, and sent by no agent"
        )
    if event.schema > SCHEMA:
        newer = f"its schema is {event.schema}, and this hub knows {SCHEMA}: the hub is older than the agent"
        raise EventRefusedError("schema", newer)
    if event.node != sender:
        named = clean(event.node, 60)
        raise EventRefusedError("name", f"it is of {named!r}, and {sender!r} sends it")
    if not _ID.fullmatch(event.id):
        raise EventRefusedError("malformed", "its id is not 32 hexadecimal digits")
    latest = max(_times(event))
    if latest > now + SKEW:
        ahead = round(latest - now)
        raise EventRefusedError("future", f"it is {ahead:,} s ahead of the hub's clock")
    return event


def _decoded(raw: bytes) -> AnyEvent:
    if _UNPRINTABLE.search(raw.replace(rb"\\", b"")):
        raise EventRefusedError("malformed", "it has characters that print nothing")
    try:
        event: AnyEvent = _EVENTS.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise EventRefusedError("malformed", clean(str(error), 200)) from error
    return event


def _times(event: FleetEvent) -> list[float]:
    found = (getattr(event, name, None) for name in _TIMES)
    return [one for one in found if one is not None]
