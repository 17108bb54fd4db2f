"""Worker threads for everything that may take long: orders come through a queue, results go into the main loop's inbox.

Work that hangs cannot be cancelled, and is not started twice: while all threads of a worker are
busy the next order waits, and a worker whose order is past its deadline is reported as stuck until
the order is done.
"""

import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple

from mldebug.status.snapshot import SourceState

MOST_WAITING = 64  # orders, of one user


class Result(NamedTuple):
    """The result of an order to a worker: a value, or the exception that the work raised."""

    worker: str
    order: Any
    value: Any
    error: Exception | None


class OrderQueue:
    """Orders that wait for a thread, shared fairly between users.

    The user with the fewest orders being carried out is next, and one thread is kept for other
    users, so that nobody's many orders keep another's out. Safe from any thread.
    """

    def __init__(self, threads: int, owner_key: Callable[[Any], object] | None) -> None:
        self._owner_key = owner_key or (lambda _: None)
        self._most = max(1, threads - 1) if owner_key else threads  # under way, of one user
        self._changed = threading.Condition()
        self._waiting: dict[object, deque[Any]] = {}
        self._under_way: Counter[object] = Counter()

    def __len__(self) -> int:
        with self._changed:
            return sum(map(len, self._waiting.values()))

    def put(self, order: Any) -> bool:
        """Add an order. False where `MOST_WAITING` of the same user already wait."""
        who = self._owner_key(order)
        with self._changed:
            waiting = self._waiting.setdefault(who, deque())
            if len(waiting) >= MOST_WAITING:
                return False
            waiting.append((order, who))
            self._changed.notify()
        return True

    def get(self) -> tuple[Any, object]:
        """Wait for the next order. Returns it with its user; pass the user to `done` afterwards."""
        with self._changed:
            (who, *_) = self._changed.wait_for(self._ready)
            waiting = self._waiting.pop(who)
            found: tuple[Any, object] = waiting.popleft()
            if waiting:
                self._waiting[who] = waiting  # behind all others
            self._under_way[who] += 1
            return found

    def done(self, who: object) -> None:
        """Note that an order of this user is finished."""
        with self._changed:
            self._under_way[who] -= 1
            self._under_way += Counter()  # without those that have none
            self._changed.notify()

    def _ready(self) -> list[object]:
        ready = [who for who in self._waiting if self._under_way[who] < self._most]
        return sorted(ready, key=lambda who: self._under_way[who])


class Worker:
    """Daemon threads that carry out one kind of order by calling `work`, and put each result into `inbox`.

    `deadline`: seconds after which an order is taken to be stuck; `threads`: orders at a time; `owner_key`:
    returns the user whom an order serves, where one worker serves several.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Any], Any],
        inbox: "queue.SimpleQueue[Result | None]",
        deadline: float,
        threads: int = 1,
        owner_key: Callable[[Any], object] | None = None,
    ) -> None:
        self.name = name
        self._work = work
        self._inbox = inbox
        self._deadline = deadline
        self._orders = OrderQueue(threads, owner_key)
        self._since: dict[int, float] = {}  # hand -> when it began
        self._seconds = 0.0
        self._error = ""
        self._success: float | None = None  # unix
        for hand in range(threads):
            threading.Thread(
                target=self._run, args=(hand,), name=f"mldebug-{name}", daemon=True
            ).start()

    @property
    def busy(self) -> bool:
        """Whether an order is being carried out, or waits."""
        return bool(self._since) or len(self._orders) > 0

    def order(self, what: Any) -> bool:
        """Queue an order. False where too many of its user already wait."""
        return self._orders.put(what)

    def state(self) -> SourceState:
        """The state of the worker for status and metrics: the last result, its duration, and
        whether an order is past its deadline.
        """
        oldest = min(list(self._since.values()), default=None)
        stuck = oldest is not None and time.monotonic() - oldest > self._deadline
        return SourceState(
            name=self.name,
            success=not self._error,
            seconds=round(self._seconds, 4),
            stuck=stuck,
            error=self._error,
            last_success=self._success,
        )

    def _run(self, hand: int) -> None:
        while True:
            order, who = self._orders.get()
            self._since[hand] = started = time.monotonic()
            value, error = None, None
            try:
                value = self._work(order)
            except Exception as raised:  # noqa: BLE001 - the one place that catches
                error = raised
            self._seconds = time.monotonic() - started
            del self._since[hand]
            self._error = f"{type(error).__name__}: {error}" if error else ""
            if error is None:
                self._success = time.time()
            self._orders.done(who)
            self._inbox.put(Result(self.name, order, value, error))
