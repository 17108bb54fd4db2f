"""Stalls of runs that have no rank on this node, which coordinates them; the agent after this one goes on with them.

Belongs to the main loop's thread.
"""

from collections.abc import Iterator

import msgspec

from mldebug.incidents.incident import Incident
from mldebug_agents.state.store import StateStore

MEMO = "case:"
MAX_STORED = (
    8 << 20
)  # bytes of a case with the captures of all nodes: a larger one is known to this agent alone


class RemoteCases:
    """Open incidents of runs on other nodes, by incident id."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._open: dict[str, Incident] = {}
        self._recalled = False

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._all()))

    def get(self, incident_id: str) -> Incident | None:
        """The open incident with this id; None where there is none."""
        return self._all().get(incident_id)

    def put(self, incident: Incident) -> None:
        """Keep a new open incident, or a newer state of one, also on disk if it is small enough."""
        self._all()[incident.id] = incident
        data = msgspec.json.encode(incident)
        self._store.remember(MEMO + incident.id, data if len(data) <= MAX_STORED else b"")

    def pop(self, incident_id: str) -> Incident | None:
        """Remove the incident, which is over or has got another id, and return it; None where there is none of this id."""
        self._store.remember(MEMO + incident_id, b"")
        return self._all().pop(incident_id, None)

    def _all(self) -> dict[str, Incident]:
        """With those of the agent before, as soon as the state dir can be read."""
        if not self._recalled and self._store.opened:
            self._recalled = True
            names = self._store.memos(MEMO)
            found = (_read(self._store.memo(name)) for name in names)
            self._open = {one.id: one for one in found if one is not None} | self._open
        return self._open


def _read(data: bytes) -> Incident | None:
    try:
        return msgspec.json.decode(data, type=Incident)
    except msgspec.MsgspecError:
        return None  # of another version
