"""A thread that looks at the nodes again and again, so that keys and drawing never wait for a node."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from mldebug.core.errors import MldebugError
from mldebug.core.redact import clean
from mldebug.status.merged_runs import ViewedNodes


class Looked(NamedTuple):
    """The newest look. `at`: monotonic seconds when it was begun; `trouble`: why the last one failed, "" where it did not."""

    nodes: ViewedNodes
    at: float
    trouble: str = ""


class LookThread:
    """Calls `look` every `interval` seconds, and `tell` after each. What fails once is tried again."""

    def __init__(self, look: Callable[[], ViewedNodes], interval: float, tell: Callable[[], None]) -> None:  # fmt: skip
        self._look, self._interval, self._tell = look, interval, tell
        self._newest: Looked | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mldebug-top-looks", daemon=True)
        self._thread.start()

    @property
    def newest(self) -> Looked | None:
        """The newest look; None before the first."""
        return self._newest

    def end(self) -> None:
        """Begin no more looks; one that still runs is left behind."""
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            try:
                self._newest = Looked(self._look(), began)
            except (MldebugError, OSError) as error:
                before = self._newest or Looked(ViewedNodes(), began)
                words = error.message if isinstance(error, MldebugError) else str(error)
                self._newest = before._replace(trouble=clean(words, 200))
            self._tell()
            self._over.wait(max(0.0, began + self._interval - time.monotonic()))
