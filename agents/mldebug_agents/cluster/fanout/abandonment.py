"""Nobody waits for the answer any more: the command is interrupted, or a node sees that its answer has no reader left."""

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import NoReturn

PATIENCE = 2.0  # seconds between the signal that asks to end and the one that ends

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """A context in which SIGTERM and a closed terminal end the block as an exception, so that it can end what it has started."""
    before = {number: signal.getsignal(number) for number in _STOP_SIGNALS}
    for number, old in before.items():
        if old is not signal.SIG_IGN:  # nohup
            signal.signal(number, _leave)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    for each in _STOP_SIGNALS:
        signal.signal(each, signal.SIG_DFL)  # a second one ends at once
    raise SystemExit(128 + number)


def end_without_reader(fd: int) -> None:
    """Send this process SIGTERM when nobody can read what it writes to `fd` any more; a file has no reader to lose.

    sshd hangs up and kills nothing: without this a capture would go on for as long as it was given.
    """
    threading.Thread(target=_watch, args=(fd,), name="mldebug-reader-left", daemon=True).start()


def _watch(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, 0)
    poll.poll()  # POLLERR, POLLHUP
    while True:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(PATIENCE)
