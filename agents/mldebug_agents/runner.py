"""One worker for each thing that may take long: work comes through a queue, results go into the node's inbox.

Nothing that cannot be cancelled is started twice: while all hands of a worker are busy the next order waits, and a worker
with an order past its deadline is reported as stuck until that comes back.
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
    """Daemon threads that carry out one kind of order, as many at a time as it has `hands`."""

    def __init__(
        self,
        name: str,
        work: Callable[[Any], Any],
        inbox: "queue.SimpleQueue[Result | None]",
        deadline: float,
        hands: int = 1,
    ) -> None:
        self.name = name
        self._work = work
        self._inbox = inbox
        self._deadline = deadline
        self._orders: queue.Queue[Any] = queue.Queue(maxsize=64)
        self._since: dict[int, float] = {}  # hand -> when it began
        self._seconds = 0.0
        self._error = ""
        for hand in range(hands):
            threading.Thread(
                target=self._run, args=(hand,), name=f"mldebug-{name}", daemon=True
            ).start()

    @property
    def busy(self) -> bool:
        """Is an order being carried out, or waiting?"""
        return bool(self._since) or not self._orders.empty()

    def order(self, what: Any) -> bool:
        """Ask for work; False where too many orders wait already."""
        try:
            self._orders.put_nowait(what)
        except queue.Full:
            return False
        return True

    def state(self) -> SourceState:
        """How the worker does, for status and metrics."""
        oldest = min(list(self._since.values()), default=None)
        stuck = oldest is not None and time.monotonic() - oldest > self._deadline
        return SourceState(
            name=self.name,
            success=not self._error,
            seconds=round(self._seconds, 4),
            stuck=stuck,
            error=self._error,
        )

    def _run(self, hand: int) -> None:
        while True:
            order = self._orders.get()
            self._since[hand] = started = time.monotonic()
            value, error = None, None
            try:
                value = self._work(order)
            except Exception as raised:  # noqa: BLE001 - the one place that catches
                error = raised
            self._seconds = time.monotonic() - started
            del self._since[hand]
            self._error = f"{type(error).__name__}: {error}" if error else ""
            self._inbox.put(Result(self.name, order, value, error))
