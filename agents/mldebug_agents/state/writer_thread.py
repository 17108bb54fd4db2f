"""The one thread that waits for the state dir, so that a hung or full disk costs reports that wait
in memory, but never stops the agent.

Each write waits under a key, so a newer state of the same run or report replaces the older one.
Reports go first, their owners in turns; all else is written in the order in which it came.
What fails is tried again until it works. The number of waiting writes is limited, and dropped
reports are counted.
"""

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mldebug.core.errors import MldebugError
from mldebug.status.snapshot import SourceState
from mldebug_agents.state import failure_text
from mldebug_agents.state.folder import OccupiedError

log = logging.getLogger("mldebug")

Work = Callable[[], None]

MAX_REPORTS = 16
MAX_STATES = 1024
MAX_EVENTS = 4096  # beside the others: no storm of events pushes out the state of a run
RETRY_FIRST, RETRY_MOST = 1.0, 30.0  # seconds between two tries
DEADLINE = 20.0  # seconds after which one piece of work counts as stuck
REPORT = "report:"
EVENT = ("memo:event:", "memo:fleet:")  # beginnings of keys
FAILURES = (OSError, MldebugError)
SILENT = -1  # the trouble that is no answer


class _Report(NamedTuple):
    """A report that waits: whose it is, and the keys of what has to be written before it, where that came before it."""

    owner: object
    after: tuple[str, ...]


class WriterThread:
    """Carries out queued writes to the state dir in a thread of its own.

    It first calls `open_place` until that works. If that raises an `MldebugError`, or any write an
    `OccupiedError`, the error is kept in `refusal` and the thread ends. Any thread may call; only
    `start` and `close` wait for the disk, up to their timeouts.
    """

    def __init__(self, place: Path, open_place: Work, *, retry: float = RETRY_FIRST) -> None:
        """`place` is the state dir, for the log."""
        self.lost = 0
        self.refusal: MldebugError | None = None
        self._place = place
        self._open = open_place
        self._retry = self._pause = retry
        self._todo: dict[str, Work] = {}
        self._reports: dict[str, _Report] = {}  # by key: those that wait, and some that waited
        self._turn = 0
        self._turns: dict[object, int] = {}  # by owner of a report that waits: when he had his last
        self._change = threading.Condition()
        self._tried, self._opened, self._released = (threading.Event() for _ in range(3))
        self._closing = False
        self._since: float | None = None
        self._seconds = 0.0
        self._error = ""
        self._success: float | None = None  # unix
        self._logged: set[int] = set()  # troubles that the log has, since all went well
        self._failures: list[Exception] = []  # of this round, since the state dir was last made
        self._lost_before = 0
        self._thread = threading.Thread(target=self._run, name="mldebug-write", daemon=True)

    @property
    def opened(self) -> bool:
        """Whether the folder in which the agent keeps its state has been opened."""
        return self._opened.is_set()

    @property
    def waiting(self) -> int:
        """How many reports are not on disk yet."""
        with self._change:
            return sum(key.startswith(REPORT) for key in self._todo)

    @property
    def idle(self) -> bool:
        """Whether nothing waits to be written."""
        with self._change:
            return not self._todo

    def start(self, timeout: float) -> bool:
        """Start the thread and open the state dir.

        False where that fails for now, or takes longer than `timeout` seconds. Raises the error of
        a dir that can never be used.
        """
        self._thread.start()
        if not self._tried.wait(timeout):
            self._log_once(SILENT, f"no answer in {timeout:g} s")
        if self.refusal is not None:
            raise self.refusal
        return self.opened

    def release(self) -> None:
        """Let the thread begin to write. Call it once the state of the earlier agent has been taken over."""
        self._released.set()

    def put(
        self,
        key: str,
        work: Work,
        *,
        last: bool = True,
        owner: object = None,
        after: tuple[str, ...] = (),
    ) -> None:
        """Queue a write. A waiting one with the same key is replaced.

        `last`: it goes behind all that wait, else it keeps the place of the one that it replaces;
        `owner`: whose report it is (who has most waiting loses the oldest if there are too many);
        `after`: what is written before this report, where it waits already.
        """
        with self._change:
            if key.startswith(REPORT):
                self._reports[key] = _Report(owner, after)
            if last:
                self._todo.pop(key, None)
            self._todo[key] = work
            self._bound(key)
            self._change.notify_all()

    def waits(self, key: str) -> bool:
        """Whether a write with this key still waits."""
        with self._change:
            return key in self._todo

    def begin_anew(self) -> None:
        """Note that a write found the state dir gone and made it anew: what failed before in this round is tried again at once, and not
        reported. Called in the writer's thread.
        """
        self._failures = []

    def drop(self, key: str) -> None:
        """Remove the waiting write with this key, if there is one."""
        with self._change:
            self._todo.pop(key, None)

    def state(self) -> SourceState:
        """The state of the writer, for status and metrics."""
        return SourceState(
            name="write",
            success=not self._error,
            seconds=round(self._seconds, 4),
            stuck=self._stuck,
            error=self._error,
            last_success=self._success,
        )

    def log_if_stuck(self) -> None:
        """Log where one write has taken longer than `DEADLINE` seconds.

        The main loop calls it, because the thread cannot do it itself.
        """
        if self._stuck:
            self._log_once(SILENT, f"no answer in {DEADLINE:g} s")

    @property
    def _stuck(self) -> bool:
        since = self._since
        return since is not None and time.monotonic() - since > DEADLINE

    def close(self, timeout: float) -> bool:
        """Write what waits, for at most `timeout` seconds.

        Reports that still wait are lost, counted and logged. Returns False if the thread hangs.
        """
        with self._change:
            self._closing = True
            self._change.notify_all()
        if self._thread.is_alive():
            self._thread.join(timeout)
        if count := self.waiting:
            self.lost += count
            reason = self._error or "it gives no answer"
            log.error("%s", failure_text.undone(self._place, count, reason))
        return not self._thread.is_alive()

    def _bound(self, added: str) -> None:
        """Drop the oldest of a kind of which there are too many now; a storm of events costs no count of each."""
        if added.startswith(EVENT):
            if len(self._todo) > MAX_EVENTS:
                self._drop_first([key for key in self._todo if key.startswith(EVENT)], MAX_EVENTS)
            return
        if len(self._todo) > MAX_STATES:
            states = [key for key in self._todo if not key.startswith(EVENT)]
            self._drop_first(states, MAX_STATES)
        if added.startswith(REPORT):
            self._bound_reports()

    def _drop_first(self, keys: list[str], most: int) -> None:
        if len(keys) > most:
            del self._todo[keys[0]]

    def _bound_reports(self) -> None:
        reports = [key for key in self._todo if key.startswith(REPORT)]
        self._reports = {key: self._reports[key] for key in reports}
        held = Counter(one.owner for one in self._reports.values())
        self._turns = {owner: turn for owner, turn in self._turns.items() if owner in held}
        if len(reports) > MAX_REPORTS:  # who has most loses his oldest
            most = max(held.values())
            del self._todo[next(key for key in reports if held[self._reports[key].owner] == most)]
            self.lost += 1
            if self.lost == self._lost_before + 1:  # the end of the trouble tells how many
                log.error(
                    "%d reports wait for the state dir %s: the oldest is dropped for each new one",
                    *(MAX_REPORTS, self._place),
                )

    # --- in the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        if not self._get_in():
            return
        while not (self._released.wait(0.2) or self._closing):
            pass
        while True:
            with self._change:
                while not self._todo and not self._closing:
                    self._change.wait()
                if not self._todo:
                    return
            done = self._round()
            if self.refusal is not None or not (done or self._rest()):
                return

    def _get_in(self) -> bool:
        while True:
            failed = self._carry_out(self._open)
            if not isinstance(failed, MldebugError):
                self._note(failed)
            if failed is None:
                self._opened.set()
                self._tried.set()
                return True
            self.refusal = failed if isinstance(failed, MldebugError) else None
            self._tried.set()
            if self.refusal is not None or not self._rest():
                return False

    def _round(self) -> bool:
        """Try all that waits, once each; True where the disk took all of it."""
        with self._change:
            others = deque(key for key in self._todo if not key.startswith(REPORT))
        self._failures = []
        tried: set[str] = set()
        while (key := self._next(others, tried)) is not None:
            tried.add(key)
            failed = self._try(key)
            self._failures += [failed] if failed else []
            if isinstance(failed, OccupiedError):
                self.refusal = failed
                return False
        self._note(self._failures[0] if self._failures else None)
        if not self._failures:
            self._pause = self._retry
        return not self._failures

    def _next(self, others: "deque[str]", tried: set[str]) -> str | None:
        """What is to be tried now: the report of the owner who had none for the longest time, also one that has come since the
        round began, after what has to be written before it; else the next of the `others`. None where all was tried.
        """
        with self._change:
            waiting = [key for key in self._reports if key in self._todo and key not in tried]
            if waiting:
                key = min(waiting, key=lambda one: self._turns.get(self._reports[one].owner, 0))
                if (before := self._before(key, tried)) is not None:
                    return before
                self._turn += 1
                self._turns[self._reports[key].owner] = self._turn
                return key
        while others:
            if (key := others.popleft()) not in tried:
                return key
        return None

    def _before(self, report: str, tried: set[str]) -> str | None:
        """What has to be written before this report and was not tried yet. What came later may delete the run, and waits."""
        order = list(self._todo)
        earlier = set(order[: order.index(report)]) - tried
        return next((key for key in self._reports[report].after if key in earlier), None)

    def _try(self, key: str) -> Exception | None:
        """Do what waits under a key; a failure of the disk is returned, and it waits on."""
        with self._change:
            work = self._todo.get(key)
        if work is None:
            return None
        failed = self._carry_out(work)
        if isinstance(failed, FAILURES):
            return failed
        with self._change:
            if self._todo.get(key) is work:
                del self._todo[key]
        if failed is not None:
            self.lost += 1
            log.error("%s cannot be written: %s", key, failure_text.why(failed), exc_info=failed)
        return None

    def _carry_out(self, work: Work) -> Exception | None:
        self._since = started = time.monotonic()
        failed: Exception | None = None
        try:
            work()
        except Exception as error:  # noqa: BLE001 - the one place that catches
            failed = error
        self._seconds, self._since = time.monotonic() - started, None
        return failed

    def _note(self, failed: Exception | None) -> None:
        """Tell a change, and only that."""
        self._error = failure_text.why(failed) if failed else ""
        self._success = self._success if failed else time.time()
        if failed is not None:
            self._log_once(failure_text.number(failed), self._error)
        elif self._logged:
            self._logged.clear()
            log.info("%s", failure_text.working(self._place, self.lost - self._lost_before))
            self._lost_before = self.lost

    def _log_once(self, kind: int, reason: str) -> None:
        if kind not in self._logged and not self._closing:
            self._logged.add(kind)
            log.error("%s", failure_text.failing(self._place, reason, kind, MAX_REPORTS))

    def _rest(self) -> bool:
        """Wait before the next try; False where there is none."""
        with self._change:
            if self._closing:
                return False
            self._change.wait_for(lambda: self._closing, self._pause)
        self._pause = min(RETRY_MOST, 2 * self._pause)
        return True
