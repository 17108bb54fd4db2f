"""One worker thread for each thing that may take long: work comes through a queue, results go into the node's inbox.

Nothing that cannot be cancelled is started twice: while a worker is busy its next order waits, and a worker past its
deadline is reported as stuck until it comes back.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from mldebug.snapshot import SourceState


class Result(NamedTuple):
    """What one order came to: a value, or the error that the work raised."""

    worker: str
    order: Any
    value: Any
    error: Exception | None


class Worker:
    """A daemon thread that carries out one kind of order, one at a time."""

    def __init__(
        self, name: str, work: Callable[[Any], Any], inbox: "queue.Queue[Result]", deadline: float
    ) -> None:
        self.name = name
        self._work = work
        self._inbox = inbox
        self._deadline = deadline
        self._orders: queue.Queue[Any] = queue.Queue(maxsize=64)
        self._since: float | None = None
        self._seconds = 0.0
        self._error = ""
        self._thread = threading.Thread(target=self._run, name=f"mldebug-{name}", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Is an order being carried out, or waiting?"""
        return self._since is not None or not self._orders.empty()

    def order(self, what: Any) -> bool:
        """Ask for work; False where too many orders wait already."""
        try:
            self._orders.put_nowait(what)
        except queue.Full:
            return False
        return True

    def state(self) -> SourceState:
        """How the worker does, for status and metrics."""
        since = self._since
        stuck = since is not None and time.monotonic() - since > self._deadline
        return SourceState(
            name=self.name,
            success=not self._error,
            seconds=round(self._seconds, 4),
            stuck=stuck,
            error=self._error,
        )

    def _run(self) -> None:
        while True:
            order = self._orders.get()
            self._since = started = time.monotonic()
            value, error = None, None
            try:
                value = self._work(order)
            except Exception as raised:  # noqa: BLE001 - the one place that catches
                error = raised
            self._seconds, self._since = time.monotonic() - started, None
            self._error = f"{type(error).__name__}: {error}" if error else ""
            self._inbox.put(Result(self.name, order, value, error))
