"""The messages between an agent and a hub: a batch of events, and the hub's answer. Pure.

An event travels as JSON of its own inside the batch, so that one that cannot be read does not spoil the others.
"""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from mldebug.core.errors import EvidenceError
from mldebug.core.redact import clean
from mldebug.fleet.events import AnyEvent, NodeName, Word

PATH = "/api/v1/fleet/events"
BATCH = "mldebug.fleet/1"
MAX_BATCH = 1 << 20  # bytes of one batch
MAX_EVENTS = 500  # of one batch
MOST_LOST = 1 << 40  # events of one kind: the figures of all nodes are added up
MAX_ANSWER = 1 << 18  # bytes
MAX_TROUBLES = 16  # refused events of a batch whose reasons are written out


class FleetBatch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Events of one node. `lost`: how many its agent has had to drop since its start, by kind."""

    schema: Annotated[str, msgspec.Meta(max_length=64)] = BATCH
    node: NodeName
    version: Word = ""  # of the agent
    lost: Annotated[
        dict[Word, Annotated[int, msgspec.Meta(ge=0, le=MOST_LOST)]], msgspec.Meta(max_length=32)
    ] = {}
    events: Annotated[tuple[msgspec.Raw, ...], msgspec.Meta(max_length=MAX_EVENTS)] = ()


class RefusedEvent(msgspec.Struct, frozen=True):
    """An event of a batch that the hub does not take: its place in the batch, a reason of one word, and a sentence."""

    place: int
    reason: str
    why: str


class BatchAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The hub's answer: everything of the batch is stored, was stored before, or is refused. None of it is to be sent again."""

    stored: int = 0
    doubles: int = 0
    refused: int = 0
    troubles: tuple[RefusedEvent, ...] = ()  # at most `MAX_TROUBLES`


_BATCHES = msgspec.json.Decoder(FleetBatch)


def packed(node: str, version: str, events: Sequence[AnyEvent], lost: dict[str, int]) -> bytes:
    """A batch of events as the body of a request."""
    raws = tuple(msgspec.Raw(msgspec.json.encode(one)) for one in events)
    return msgspec.json.encode(FleetBatch(node=node, version=version, lost=lost, events=raws))


def batch_of(body: bytes) -> FleetBatch:
    """The batch in a request's body; its events are not looked at. Raises EvidenceError, which says why, where it is none."""
    try:
        batch = _BATCHES.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise EvidenceError(f"malformed: {clean(str(error), 200)}") from error
    if batch.schema != BATCH:
        raise EvidenceError(f"{clean(batch.schema, 40)!r} is another schema than {BATCH}")
    return batch
