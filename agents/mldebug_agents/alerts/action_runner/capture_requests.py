"""Captures that an alert or an action requests. Requests for one run within a minute share a capture, so no run is captured twice
at a time.

Requests may come from any thread, and a worker takes the captures; the main loop only passes on which jobs exist.
"""

import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import NamedTuple

from mldebug.core.errors import MldebugError
from mldebug.core.model import Job, NodeCapture
from mldebug_agents.capture.capture import Capturer
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.system.workers import Result, Worker

WORKER = "ordered captures"
DEADLINE = 120.0
PAUSE = 60.0  # seconds between two of one run
WATCH = 1.0  # seconds that a capture looks for movement


class CaptureRequest(NamedTuple):
    """An order to capture one run: `job` on this node or, where that is None, the run `name` that has ranks on other nodes
    only. `report` gets the id of the report.
    """

    name: str
    job: Job | None
    report: "Future[str]"


class PendingReport(NamedTuple):
    """The answer to a request: a future that gives the report's id, and how many seconds ago the same capture was requested."""

    report: "Future[str]"
    age: float  # seconds since the same was asked for; 0: it was asked for now


class CaptureRequests:
    """Captures that users or actions request.

    `write` makes a report of a capture of this node, `across` one of all nodes; both return the report's id, or raise.
    """

    def __init__(
        self,
        capturer: Callable[[float], Capturer],
        inbox: "queue.SimpleQueue[Result | None]",
        write: Callable[[NodeCapture], str],
        across: Callable[[str, Job | None], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write, self._across = write, across
        self._capturer, self._clock = capturer, clock
        self._jobs: Mapping[str, Job] = {}  # replaced as a whole
        self._found = Discovery()
        self._last: dict[str, tuple[float, Future[str]]] = {}
        self._lock = threading.Lock()  # of `_last`
        self.worker = Worker(WORKER, self._take, inbox, DEADLINE)

    def show(self, jobs: Mapping[str, Job], found: Discovery) -> None:
        """Set the jobs and processes that are on this node now."""
        self._jobs, self._found = jobs, found

    @property
    def jobs(self) -> Mapping[str, Job]:
        """The jobs on this node, by id."""
        return self._jobs

    @property
    def used(self) -> tuple[Worker, ...]:
        """The worker that captures, for the agent's status; empty while no capture was requested lately."""
        return (self.worker,) if self._last else ()

    def ask(self, name: str, job: Job | None) -> PendingReport:
        """Request a capture of `job`, or of the run `name` on other nodes where that is None. If the same was requested
        less than `PAUSE` seconds ago, that request is returned. Raises MldebugError where too many captures wait.
        """
        key, now = job.id if job is not None else name, self._clock()
        with self._lock:
            self._last = {one: old for one, old in self._last.items() if now - old[0] < PAUSE}
            if key in self._last:
                at, report = self._last[key]
                return PendingReport(report, max(now - at, 0.001))
            report = Future()
            if not self.worker.order(CaptureRequest(name, job, report)):
                raise MldebugError("too many captures wait", "ask again later")
            self._last[key] = (now, report)
        return PendingReport(report, 0.0)

    def _take(self, order: CaptureRequest) -> None:
        """In the worker."""
        try:
            order.report.set_result(self._taken(order))
        except Exception as error:
            order.report.set_exception(error)
            raise

    def _taken(self, order: CaptureRequest) -> str:
        if self._across is not None:
            try:
                return self._across(order.name, order.job)
            except MldebugError:
                if order.job is None:
                    raise
        if order.job is None:
            raise MldebugError("no rank of it is on this node", "ask the agent of its node")
        found = self._found
        capturer = self._capturer(WATCH)
        return self._write(
            capturer.capture(order.job, found.children, found.remarks, found.gaps, quiet=None)
        )
