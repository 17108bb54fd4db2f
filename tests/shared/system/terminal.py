"""An interactive shell behind a real terminal, as a person types into it."""

import os
import pty
import re
import select
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

PROMPT = "ready>"
CLEAR = "\x15"  # Ctrl-U: the line is empty again
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[=>])")


class Terminal:
    """The screen is what came since the last key, without colours."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def type(self, keys: str, until: str, seconds: float = 30.0) -> str:
        """Type, and return what the shell shows by the time that `until` (a regex) is there."""
        os.write(self._descriptor, keys.encode())
        shown, end = "", time.monotonic() + seconds
        while not re.search(until, shown):
            assert time.monotonic() < end, f"no {until!r} after {keys!r}: {shown!r}"
            if select.select([self._descriptor], [], [], 0.1)[0]:
                shown = _ESCAPES.sub("", shown + os.read(self._descriptor, 65536).decode())
        return shown


@contextmanager
def terminal(argv: Sequence[str], environment: dict[str, str], folder: str) -> Iterator[Terminal]:
    """A program with a terminal of its own, 160 columns wide."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe(argv[0], list(argv), environment | {"COLUMNS": "160", "LINES": "60"})
    try:
        yield Terminal(descriptor)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(descriptor)
