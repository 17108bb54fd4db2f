"""Which run each incident id of this node belongs to: another node may name an id, but not one that another run has here.

Belongs to the main loop's thread.
"""

from collections.abc import Callable, Iterable

from mldebug.cluster.run_identity import RunKey, job_key, run_key
from mldebug.incidents.incident import Incident
from mldebug.incidents.pruning import is_by_hand

MAX_KNOWN = 4096  # ids: more than the reports that are kept


class IncidentIds:
    """The ids that are given. `stored`: those of the reports that an earlier agent has left, as soon as they are known."""

    def __init__(self, node: str, stored: Callable[[], Iterable[str]]) -> None:
        self._node, self._stored = node, stored
        self._keys: dict[str, RunKey] = {}

    def note(self, incident: Incident) -> None:
        """Remember which run this incident's id belongs to."""
        if (key := self._key(incident)) is None:
            return
        self._keys.pop(incident.id, None)
        self._keys[incident.id] = key
        if len(self._keys) > MAX_KNOWN:
            del self._keys[next(iter(self._keys))]

    def is_free(self, incident_id: str, key: RunKey) -> bool:
        """Whether an incident of the run with this key may have the id: no incident here has it, or one of the same run."""
        if (known := self._keys.get(incident_id)) is not None:
            return known == key
        return not is_by_hand(incident_id) and incident_id not in self._stored()

    def _key(self, incident: Incident) -> RunKey | None:
        if incident.node_captures:
            return run_key(incident.node_captures[0])
        job = incident.exit.job if incident.exit else incident.job
        return job_key(job, self._node) if job else None
