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
    """The reasons: network: an address where no agent may be, or to which a job must not send us; certificate: none, or of
    another cluster; handshake: does not speak TLS as an agent does; stranger: a host we were sent to has no valid certificate;
    slow: takes too long to send its request; name: another node's name; malformed, size: a message that is invalid or too
    large; incident: names an incident that another run has; storm: had one run captured too often.
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
        """Count one refused request. `who` and `why` are not trusted, since another host chose them: they are cleaned
        before they are logged.
        """
        who, why = clean(who, 60), clean(why, 200)
        with self._lock:
            self._counts[reason] += 1
            known = (who, why) in self._logged or len(self._logged) >= MAX_LOGGED
            if not known:
                self._logged.add((who, why))
        if not known:
            log.warning("other nodes: %s is refused: %s", who or "somebody", why)
