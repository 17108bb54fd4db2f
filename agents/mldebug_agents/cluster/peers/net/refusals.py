"""Counts refused requests and connections by reason, and logs each host once. Safe from any thread."""

import logging
import threading
from collections import Counter

from mldebug.core.redact import clean

log = logging.getLogger("mldebug")

REASONS = (
    *(
        "network",
        "certificate",
        "handshake",
        "stranger",
        "slow",
        "name",
        "malformed",
        "size",
        "incident",
        "storm",
    ),
)
MAX_LOGGED = 1000  # lines in the log; after that they are only counted


class Refusals:
    """Counts refused requests of other agents by reason.

    The reasons: `network`: from an address where no agent may be, or a job has named such an address; `certificate`: the
    client showed no certificate, or that of another cluster; `handshake`: the client does not speak TLS as an agent does;
    `stranger`: a host that this agent has called shows no valid certificate; `slow`: the client takes too long to send its
    request; `name`: the client uses another node's name; `malformed` and `size`: the message is invalid or too large;
    `incident`: the message names an incident that belongs to another run; `storm`: the client had one run captured too
    often.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._logged: set[tuple[str, str]] = set()

    @property
    def counts(self) -> dict[str, int]:
        """How many requests were refused, by reason."""
        with self._lock:
            return dict(self._counts)

    def count(self, reason: str, who: str, why: str) -> None:
        """Count one refused request. Only the first with the same `who` and `why` is logged as well. `reason`: the kind of refusal, one of `REASONS`, under which it is counted. `who`: the sender; `why`: the
        details. The sender's host may have chosen both, so control characters are removed and the length is bounded before they are
        logged.
        """
        who, why = clean(who, 60), clean(why, 200)
        with self._lock:
            self._counts[reason] += 1
            known = (who, why) in self._logged or len(self._logged) >= MAX_LOGGED
            if not known:
                self._logged.add((who, why))
        if not known:
            log.warning("other nodes: %s is refused: %s", who or "somebody", why)
