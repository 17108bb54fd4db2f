"""A line on the terminal that says that a command is still at work. It begins after two seconds, and nothing of it is left."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TextIO, TypeVar

LATE = 2.0  # seconds without an answer, after which people wonder
EVERY = 1.0
ERASE = "\r\x1b[K"
T = TypeVar("T")


class ProgressLine:
    """The line `DOING … 12 s` on the terminal while a command waits, written again each second."""

    def __init__(self, doing: str, stream: TextIO) -> None:
        self._doing = doing
        self._stream = stream
        self._began = time.monotonic()
        self._visible = False

    def show(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        """Write the line in place of the one before; a signal handler."""
        self._visible = True
        self._stream.write(f"{ERASE}{self._doing} … {time.monotonic() - self._began:.0f} s")
        self._stream.flush()

    def now(self, doing: str) -> None:
        """Say something else from the next second on."""
        self._doing = doing

    def clear(self) -> None:
        """Take it off the terminal: before a result is printed, and at the end. It comes back with the next second."""
        if self._visible:
            self._visible = False
            self._stream.write(ERASE)
            self._stream.flush()

    def before(self, prints: Callable[[T], None]) -> Callable[[T], None]:
        """A function that clears the line and then calls `prints`."""

        def alone(some: T) -> None:
            self.clear()
            prints(some)

        return alone


@contextmanager
def progress_line(doing: str, *, stream: TextIO | None = None) -> Iterator[ProgressLine]:
    """Show `doing` and the seconds so far while the block runs, on a terminal's stderr only. Before anything is printed meanwhile,
    `clear` has to be called.

    It takes a timer's signal in place of a thread, since the process starter is forked before there are threads; a timer is
    not inherited by children. Only for the main thread.
    """
    line = ProgressLine(doing, stream or sys.stderr)
    if not (stream or sys.stderr).isatty():
        yield line
        return
    before = signal.signal(signal.SIGALRM, line.show)
    outer = signal.setitimer(signal.ITIMER_REAL, LATE, EVERY)
    try:
        yield line
    finally:
        signal.setitimer(signal.ITIMER_REAL, *outer)  # that of a line around this one
        signal.signal(signal.SIGALRM, before)
        line.clear()
