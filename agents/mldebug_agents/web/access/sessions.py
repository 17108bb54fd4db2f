"""Sessions of users who have logged in over TCP, kept in memory for some hours each, and a limit on wrong tokens.

A session is a random number. Only hashes are kept: of that number, and of the token it was opened with.
"""

import hashlib
import hmac
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from mldebug.cluster.source_shares import source_of

LIFE = 12 * 3600.0  # seconds
MOST = 64  # sessions; the oldest gives way
TRIES, ALL_TRIES, WINDOW = 5, 50, 60.0  # wrong tokens of one address and of all, in so many seconds


class _LoginSession(NamedTuple):
    until: float
    token: bytes


class Sessions:
    """All open sessions, and recent attempts with a wrong token. Thread-safe; `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._open: dict[bytes, _LoginSession] = {}
        self._wrong: dict[str, deque[float]] = {}

    def open(self, token: str) -> str:
        """Open a session with this token and return its secret, which goes into the cookie. The oldest of too many sessions
        is closed.
        """
        made = secrets.token_urlsafe(32)
        with self._lock:
            self._sweep()
            while len(self._open) >= MOST:
                del self._open[next(iter(self._open))]
            self._open[digest(made)] = _LoginSession(self._clock() + LIFE, digest(token))
        return made

    def holds(self, shown: str, token: str) -> bool:
        """Whether this is the secret of an open session that was opened with the present token."""
        with self._lock:
            found = self._open.get(digest(shown))
        if found is None or found.until <= self._clock():
            return False
        return hmac.compare_digest(found.token, digest(token))

    def close(self, shown: str) -> None:
        """End the session with this secret."""
        with self._lock:
            self._open.pop(digest(shown), None)

    def tries(self, address: str, *, right: bool) -> bool:
        """Whether a login attempt from this address may be answered. An attempt with the right token always may, because
        others may guess from the same address. A wrong token is counted, and is not answered where this address, or all
        addresses together, sent too many wrong ones recently.
        """
        if right:
            return True
        address = source_of(address)
        with self._lock:
            self._forget()
            mine = len(self._wrong.get(address, ()))
            if mine >= TRIES or sum(map(len, self._wrong.values())) >= ALL_TRIES:
                return False
            self._wrong.setdefault(address, deque()).append(self._clock())
            return True

    def _forget(self) -> None:
        before = self._clock() - WINDOW
        for address, times in list(self._wrong.items()):
            while times and times[0] <= before:
                times.popleft()
            if not times:
                del self._wrong[address]

    def _sweep(self) -> None:
        now = self._clock()
        self._open = {one: kept for one, kept in self._open.items() if kept.until > now}


def digest(text: str) -> bytes:
    """The SHA-256 of a secret, which is stored and compared instead of it."""
    return hashlib.sha256(text.encode(errors="replace")).digest()
