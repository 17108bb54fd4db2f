"""A line on the terminal that says that a command is still at work. It begins after two seconds, and nothing of it is left."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

LATE = 2.0  # seconds without an answer, after which people wonder
EVERY = 1.0
ERASE = "\r\x1b[K"


@contextmanager
def progress_line(doing: str, *, stream: TextIO | None = None) -> Iterator[None]:
    """Show `doing` and the seconds so far while the block runs, on a terminal's stderr only. Nothing may be printed meanwhile.

    It takes a timer's signal in place of a thread, since the process starter is forked before there are threads; a timer is
    not inherited by children. Only for the main thread.
    """
    shown = stream or sys.stderr
    if not shown.isatty():
        yield
        return
    began = time.monotonic()

    def show(_number: int, _frame: FrameType | None) -> None:
        shown.write(f"{ERASE}{doing} … {time.monotonic() - began:.0f} s")
        shown.flush()

    before = signal.signal(signal.SIGALRM, show)
    signal.setitimer(signal.ITIMER_REAL, LATE, EVERY)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if time.monotonic() - began >= LATE:
            shown.write(ERASE)
            shown.flush()
