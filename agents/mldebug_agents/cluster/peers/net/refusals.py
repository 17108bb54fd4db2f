"""Hosts that were refused: counted by reason, each logged once. Safe from any thread."""

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
    """network: not from where agents may be, or a job wants somebody asked who is not there; certificate: none, or not one of ours;
    handshake: does not speak TLS as an agent does; stranger: whom this agent was sent to cannot prove that he is one;
    slow: takes too long to say what he wants; name: not the one that it may have; malformed, size: a message that cannot be;
    incident: it names one that another run has; storm: it has had one run captured too often."""

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
        """Count one refused request. `who` and `why` are not trusted: a stranger chose them."""
        who, why = clean(who, 60), clean(why, 200)
        with self._lock:
            self._counts[reason] += 1
            known = (who, why) in self._logged or len(self._logged) >= MAX_LOGGED
            if not known:
                self._logged.add((who, why))
        if not known:
            log.warning("other nodes: %s is refused: %s", who or "somebody", why)
