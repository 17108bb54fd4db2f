"""Answers questions from the events that a hub stores, for operators and for users.

Operators may ask everything; users see the jobs that are their own, and no other user's.
"""

import threading
import time
from collections.abc import Callable

from mldebug.core.errors import AccessError
from mldebug.fleet.answers.lemons import WINDOW, LemonList, lemons
from mldebug.fleet.events import AnyEvent
from mldebug.fleet.hub_model import EventFilter, FleetStore

FRESH = 5.0  # seconds for which a list of lemons is given again
EVIDENCE = (
    "incident",
    "hardware_fault",
    "node_health",
    "probe",
)  # kinds that speak for or against nodes
OPERATORS = "ask as an operator: with the hub's token, as root, or as a member of hub.group"


class Answerer:
    """Answers from one store. Safe from any thread. `uid` of each question: the user who asks; None for an operator."""

    def __init__(self, store: FleetStore, now: Callable[[], float] = time.time) -> None:
        self._store, self._now = store, now
        self._lock = threading.Lock()
        self._lemons: LemonList | None = None
        self._made_at = -FRESH

    def lemons(self, uid: int | None) -> LemonList:
        """The nodes against which there is evidence. Raises AccessError for users: the evidence is of other users' jobs, too."""
        if uid is not None:
            raise AccessError("which nodes are lemons is for operators", OPERATORS)
        return self.all_lemons()

    def all_lemons(self) -> LemonList:
        """The nodes against which there is evidence; for the hub itself; some seconds old at most."""
        with self._lock:
            now = time.monotonic()
            if self._lemons is None or now - self._made_at >= FRESH:
                self._lemons = lemons(self._evidence(), self._now())
                self._made_at = time.monotonic()
            return self._lemons

    def _evidence(self) -> list[AnyEvent]:
        since = self._now() - WINDOW
        return self._store.find(EventFilter(kinds=EVIDENCE, since=since))
