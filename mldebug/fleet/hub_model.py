"""What a hub is made of: a store of events, and transports that bring batches. Pure: the Protocols that both kinds of plugins implement.

Everything above them (validation, answers, pages) is the same whichever store and transport a site has.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from mldebug.fleet.batches import BatchAnswer, FleetBatch
from mldebug.fleet.events import AnyEvent


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which stored events are wanted: those that fit all that is given. Times are unix seconds."""

    kinds: tuple[str, ...] = ()  # (): all
    node: str | None = None
    job: str | None = None  # name
    run: str | None = None
    uid: int | None = None  # the owner; None: of everybody and of the nodes
    since: float = 0.0
    newest: bool = False  # of each subject of each node only the newest event
    limit: int = 100_000  # the newest so many; of more of each node as many as of any other


class StoreTotals(NamedTuple):
    """How many events a store holds, and the bytes that it takes on disk."""

    events: int
    bytes: int


class FleetStore(Protocol):
    """Keeps events. One thread adds and prunes; any thread finds. Raises OSError where the disk or the database fails: then
    nothing of what was to be added is stored.
    """

    def open(self) -> None:
        """Open the store, make it where there is none, and bring its schema up to date. Raises UsageError where it cannot be used."""
        ...

    def add(self, batches: Sequence[Sequence[AnyEvent]], received: float) -> list[int]:
        """Store the events of all batches that are not stored yet, durably and in one piece. Returns how many of each batch were new.
        An event is known by its node and id. `received`: unix time.
        """
        ...

    def find(self, wanted: EventFilter) -> list[AnyEvent]:
        """The events that fit, in the order of their times, the oldest first. Bounded in number and bytes; where there are more, the
        newest of each node: no node's flood hides what the others have said.
        """
        ...

    def totals(self) -> StoreTotals:
        """How many events are stored, and their size in bytes."""
        ...

    def prune(self, before: float, most_bytes: int) -> int:
        """Remove the events from before `before` (unix) and, where more than `most_bytes` are taken, the oldest of the nodes that
        have most: no node's flood pushes out another's history. Returns how many went. A store that removes whole weeks may keep
        an event a week longer.
        """
        ...

    def close(self) -> None:
        """Close all files and connections."""
        ...


class ReceivedBatch(NamedTuple):
    """A batch as a transport brings it. `sender`: the node that was proved to send it, "" where only the batch says which it is;
    `address`: from where it came, for people.
    """

    batch: FleetBatch
    sender: str
    address: str


class BatchRefusedError(Exception):
    """A hub that does not take a batch as a whole: its sender is another node than it says, or sends too much."""

    def __init__(self, reason: str, why: str) -> None:
        super().__init__(why)
        self.reason = reason


Take = Callable[[ReceivedBatch], BatchAnswer]
"""Stores a batch and returns the answer for its sender; blocks until that is durable. Raises BatchRefusedError, or OSError
where the sender has to try again later.
"""


class HubTransport(Protocol):
    """Brings batches of agents to a hub, and acknowledges each after `take` has returned: at least once."""

    def start(self, take: Take) -> None:
        """Begin; `take` is called from threads of the transport. Raises UsageError where an address is taken or a key cannot be used."""
        ...

    def stop(self) -> None:
        """Stop the transport: no more batches are taken."""
        ...

    def refused(self) -> dict[str, int]:
        """How many connections and requests it has refused before they were batches, by reason."""
        ...

    def waiting(self) -> int | None:
        """How many batches have left their agents and are stored by no hub yet; None where that cannot be said now."""
        ...
