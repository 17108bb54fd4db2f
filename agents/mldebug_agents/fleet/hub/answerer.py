"""Answers questions from the events that a hub stores, for operators and for users.

Operators may ask everything; users see the jobs that are their own, and no other user's.
"""

import threading
import time
from collections.abc import Callable

from mldebug.core.errors import AccessError, UsageError
from mldebug.core.redact import clean
from mldebug.fleet.answers.hours import GROUPS, HoursList, hours
from mldebug.fleet.answers.incidents import (
    IncidentList,
    IncidentQuery,
    SimilarIncidents,
    search,
    similar,
)
from mldebug.fleet.answers.jobs import JobList, job_list
from mldebug.fleet.answers.lemons import WINDOW, LemonList, lemons
from mldebug.fleet.answers.node_list import NodeList, node_list
from mldebug.fleet.answers.nodes import NodeHistory, history
from mldebug.fleet.answers.retry import RetryAdvice, advice
from mldebug.fleet.events import AnyEvent
from mldebug.fleet.hub_model import EventFilter, FleetStore

FRESH = 5.0  # seconds for which a list of lemons is given again at least
SHARE = 10  # times what it took to make it: whoever asks for metrics has it made for no more than a tenth of the time
EVIDENCE = ("incident", "hardware_fault", "probe")  # kinds that speak for or against nodes
HOURLY = ("node_health", "attempt")
OF_JOBS = ("attempt", "incident", "checkpoint")
OF_INCIDENTS = ("incident", "note")
OPERATORS = "ask as an operator: with the hub's token, as root, or as a member of hub.group"


class Answerer:
    """Answers from one store. Safe from any thread. `uid` of each question: the user who asks; None for an operator."""

    def __init__(self, store: FleetStore, now: Callable[[], float] = time.time) -> None:
        self._store, self._now = store, now
        self._lock = threading.Lock()
        self._lemons: LemonList | None = None
        self._until = 0.0  # monotonic

    def lemons(self, uid: int | None) -> LemonList:
        """The nodes against which there is evidence. Raises AccessError for users: the evidence is of other users' jobs, too."""
        if uid is not None:
            raise AccessError("which nodes are lemons is for operators", OPERATORS)
        return self.all_lemons()

    def all_lemons(self) -> LemonList:
        """The nodes against which there is evidence; for the hub itself; some seconds old at most."""
        with self._lock:
            began = time.monotonic()
            if self._lemons is None or began >= self._until:
                self._lemons = lemons(self._evidence(), self._now())
                over = time.monotonic()
                self._until = over + max(FRESH, SHARE * (over - began))
            return self._lemons

    def jobs(self, uid: int | None, name: str = "") -> JobList:
        """The jobs of this user (None: of everybody) with their time lines; `name`: only those of this name, or with a run of this id."""
        events = self._store.find(EventFilter(kinds=OF_JOBS, uid=uid, job=name or None))
        if name and not events:
            runs = self._store.find(EventFilter(kinds=OF_JOBS, uid=uid, run=name))
            owners = {(one.job, one.uid) for one in runs}
            found = [self._store.find(EventFilter(kinds=OF_JOBS, uid=who, job=job)) for job, who in owners]  # fmt: skip
            events = [event for some in found for event in some]
        return job_list(events)

    def node(self, uid: int | None, name: str) -> NodeHistory:
        """The history of one node. Raises AccessError for users who are no operators, UsageError where the node has sent no event."""
        if uid is not None:
            raise AccessError("the history of a node is for operators", OPERATORS)
        own = self._store.find(EventFilter(kinds=(*EVIDENCE, "node_health"), node=name))
        others = self._store.find(EventFilter(kinds=("incident",), since=self._now() - WINDOW))
        events = sorted({one.id: one for one in (*own, *others)}.values(), key=lambda one: one.at)
        found = history(name, events, self.all_lemons())
        if not found.entries and not found.last_sent:
            raise UsageError(f"nothing was heard of a node {clean(name, 60)!r}", "mldebug lemons")
        return found

    def nodes(self, uid: int | None) -> NodeList:
        """All nodes. Raises AccessError for users."""
        if uid is not None:
            raise AccessError("the list of nodes is for operators", OPERATORS)
        newest = EventFilter(kinds=("node_health",), since=self._now() - WINDOW, newest=True)
        return node_list(self._store.find(newest), self.all_lemons(), self._now())

    def incidents(self, uid: int | None, wanted: IncidentQuery) -> IncidentList:
        """The incidents of this user's jobs (None: all) that fit."""
        return search(self._of_incidents(uid, wanted.since), wanted)

    def similar(self, uid: int | None, incident: str) -> SimilarIncidents:
        """What is like one incident. Raises UsageError where this user has none of this id."""
        found = similar(self._of_incidents(uid, 0.0), incident)
        if found is None:
            raise UsageError(f"no incident {clean(incident, 60)!r} of yours is known to the hub", "mldebug fleet search")  # fmt: skip
        return found

    def hours(self, uid: int | None, by: str, since: float) -> HoursList:
        """The GPU hours of this user's jobs (None: of all) since a moment (unix), by user, job or all. Raises UsageError for another word."""
        if by not in GROUPS:
            raise UsageError(f"GPU hours are summed by {', '.join(GROUPS)}, not by {clean(by, 40)!r}", "mldebug fleet goodput --by user")  # fmt: skip
        # an attempt that began before is told anew each hour while it runs
        events = self._store.find(EventFilter(kinds=("attempt",), uid=uid, since=since, newest=True))  # fmt: skip
        return hours(events, by, since)

    def _of_incidents(self, uid: int | None, since: float) -> list[AnyEvent]:
        """Incidents and notes, with attempts, which know the names of users."""
        found = self._store.find(EventFilter(kinds=OF_INCIDENTS, uid=uid, since=since))
        found += self._store.find(EventFilter(kinds=("attempt",), uid=uid, since=self._now() - WINDOW, newest=True))  # fmt: skip
        return sorted(found, key=lambda one: one.at)

    def retry(self, uid: int | None, name: str) -> RetryAdvice:
        """Whether the newest job of this name (or with a run of this id) can be started again. Raises UsageError where there is none."""
        found = self.jobs(uid, name).jobs if name else ()
        if not found:
            raise UsageError(f"no job {clean(name, 60)!r} of yours is known to the hub", "mldebug retry-advice JOB")  # fmt: skip
        line = found[0]
        events = self._store.find(EventFilter(kinds=OF_JOBS, uid=line.uid, job=line.job))
        return advice(line, events, self._evidence(), self.all_lemons(), self._now())

    def _evidence(self) -> list[AnyEvent]:
        """What speaks for or against nodes. Inventories and attempts come each hour: of each the newest is enough."""
        since = self._now() - WINDOW
        found = self._store.find(EventFilter(kinds=EVIDENCE, since=since))
        found += self._store.find(EventFilter(kinds=HOURLY, since=since, newest=True))
        return sorted(found, key=lambda one: one.at)
