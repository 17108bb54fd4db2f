"""Certificates of this node's own are read again when their files change: nobody restarts an agent for a renewal."""

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from mldebug.core.errors import MldebugError
from mldebug_agents.cluster.peers.identity import Identity, of_certificates

log = logging.getLogger("mldebug")

EVERY = 30.0  # seconds between two looks at the files


class Renewing:
    """Called for the identity to be used now; safe from any thread, and reads files, so never from the main loop's.

    `server` of the first one stays the context that listens: each handshake gets the newest from there.
    """

    def __init__(
        self,
        certificate: Path,
        key: Path,
        ca: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = (certificate, key, ca)
        self._seen = self._state()
        self.now = of_certificates(*self._files)
        self.now.server.sni_callback = self._handshake
        self._clock, self._looked = clock, clock()
        self._lock = threading.Lock()

    def __call__(self) -> Identity:
        """Look at the files from time to time; what cannot be used is told of, and the one before stays."""
        with self._lock:
            if self._clock() - self._looked >= EVERY:
                self._looked = self._clock()
                self._look()
        return self.now

    def _look(self) -> None:
        found = self._state()
        if found == self._seen or not all(found):
            return  # a file that is just being replaced comes back
        self._seen = found
        try:
            self.now = of_certificates(*self._files)
            log.info("the certificate of this node was read again")
        except MldebugError as error:
            log.error("the new certificate cannot be used, the old one stays: %s", error.message)

    def _handshake(self, link: object, name: object, context: object) -> None:
        """OpenSSL asks for the context of a name: all of ours have the newest."""
        link.context = self.now.server  # type: ignore[attr-defined]

    def _state(self) -> tuple[tuple[int, ...], ...]:
        return tuple(map(_state, self._files))


def _state(file: Path) -> tuple[int, ...]:
    try:
        found = os.stat(file)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
