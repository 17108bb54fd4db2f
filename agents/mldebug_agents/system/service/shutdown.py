"""The end of the agent after SIGTERM or SIGINT: in order if that works, and in limited time whatever hangs."""

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from mldebug.core.errors import MldebugError

log = logging.getLogger("mldebug")

SECONDS = 2.6  # from the signal to the end; 3 are promised
LAST_WORDS = 0.2
_ENDS = (signal.SIGTERM, signal.SIGINT)


class Shutdown:
    """Ends the agent within `seconds` of a signal. Make it first, in the main thread.

    The handlers `stop` and `reload` run inside signal handlers, so they may only set a flag. A
    guard thread is woken by the kernel's write to a pipe, so it acts even if the main thread hangs
    in a system call.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self.requested = False
        self._seconds = seconds
        self._stop: Callable[[], None] = _nothing
        self._reload: Callable[[], None] = _nothing
        self._stuck: Callable[[], str] = str
        self._error: MldebugError | None = None
        self._read, write = os.pipe()
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in _ENDS:
            signal.signal(number, self._end)
        signal.signal(signal.SIGHUP, lambda *_: self._reload())

    def begin(self) -> None:
        """Start the guard thread. Call it after the helper process was forked."""
        threading.Thread(target=self._guard, name="mldebug-ending", daemon=True).start()

    def set_handlers(
        self, stop: Callable[[], None], reload: Callable[[], None], stuck: Callable[[], str]
    ) -> None:
        """Set the functions to call on signals that stop and reload; `stop` is called at once if a signal came before.

        `stuck` returns what keeps the agent from ending, for the log.
        """
        self._stop, self._reload, self._stuck = stop, reload, stuck
        if self.requested:
            stop()

    def hurry(self, error: MldebugError) -> None:
        """The agent ends by itself because of this error: kill it if it is not gone in time, with
        the error's exit code, so that systemd sees a failure.
        """
        self._error = error
        threading.Thread(target=self._count_down, name="mldebug-hurry", daemon=True).start()

    def leave(self) -> None:
        """Called when everything is done: end the process at once if non-daemon threads live, which
        Python would wait for; else return. A second signal changes nothing: Python gives its
        handlers back as it ends, and such a signal would make a good end look like a kill.
        """
        for number in _ENDS:
            signal.signal(number, signal.SIG_IGN)
        if any(
            not one.daemon for one in threading.enumerate() if one is not threading.main_thread()
        ):
            _out()

    def _end(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        self._stop()

    def _guard(self) -> None:
        while not any(number in _ENDS for number in os.read(self._read, 64)):
            pass
        self._count_down()

    def _count_down(self) -> None:
        time.sleep(self._seconds)
        words = threading.Thread(target=self._last_words, daemon=True)
        words.start()
        words.join(LAST_WORDS)  # whoever reads the log may hang too
        _out(self._error.exit_code if self._error else 0)

    def _last_words(self) -> None:
        if self._error:
            log.error("%s", self._error.message)
        log.error("ended after %.1f s with work undone: %s", self._seconds, self._stuck())


def _out(code: int = 0) -> None:
    with contextlib.suppress(OSError, ValueError):  # stdout is closed
        sys.stdout.flush()
    os._exit(code)


def _nothing() -> None:
    """Before the agent is up there is nothing to tell."""
