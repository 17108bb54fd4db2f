"""Ends a command whose answer nobody waits for any more: after a signal, or when the reader of its output has gone."""

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
    """A context in which SIGTERM and SIGHUP (a closed terminal) raise SystemExit, so that the block can end what it has
    started. A second signal ends the process at once; a signal that is ignored (nohup) stays ignored.
    """
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


def end_without_reader(fd: int, patience: float = PATIENCE) -> None:
    """Send this process SIGTERM, again and again, as soon as the pipe or socket `fd` has no reader any more. A file never loses
    its reader. `patience`: seconds between two.

    sshd closes its pipes and kills nothing: without this a capture would go on until its time limit.
    """
    threading.Thread(
        target=_watch, args=(fd, patience), name="mldebug-reader-left", daemon=True
    ).start()


def _watch(fd: int, patience: float) -> None:
    poll = select.poll()
    poll.register(fd, 0)
    poll.poll()  # POLLERR, POLLHUP
    while True:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(patience)
