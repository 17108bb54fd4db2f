"""Connections to PostgreSQL: a few that are used again, and none that a restart of the server has broken."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from mldebug.core.files import read_secret

MOST = 8  # connections of one hub
WAIT = 20.0  # seconds for one of them
MAX_PASSWORD = 4096  # bytes
CONNECT = 5  # seconds
LONGEST = 60_000  # milliseconds of one statement
KEEP: dict[str, Any] = {
    "connect_timeout": CONNECT,
    "application_name": "mldebug-hub",
    # a server that is gone without a word is noticed within half a minute
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}

Link = psycopg.Connection[tuple[object, ...]]


def conninfo(text: str) -> str:
    """The connection string with our limits where it sets none. Raises ValueError where it is none, or has a password in it."""
    try:
        given = conninfo_to_dict(text)
    except psycopg.Error as error:
        raise ValueError(str(error).strip()) from error
    if "password" in given:
        raise ValueError("it has a password in it: put that into hub.database_password_file")
    return make_conninfo("", **{**KEEP, **given})


class Links:
    """Lends connections to threads, at most `MOST` at a time. `password_file` is read anew for each connection that is made."""

    def __init__(self, text: str, password_file: Path | None = None) -> None:
        """Opens nothing yet."""
        self._text, self._password_file = text, password_file
        self._room = threading.BoundedSemaphore(MOST)
        self._lock = threading.Lock()
        self._idle: list[Link] = []

    @contextmanager
    def lent(self) -> Iterator[Link]:
        """A connection for this thread alone, each statement a transaction of its own. Raises OSError for whatever the database says."""
        if not self._room.acquire(timeout=WAIT):
            raise OSError("the hub's database: all connections are busy")
        try:
            with self._one() as link:
                yield link
        except psycopg.Error as error:
            raise OSError(f"the hub's database: {_in_words(error)}") from error
        finally:
            self._room.release()

    def close(self) -> None:
        """Close the connections that no thread uses now."""
        with self._lock:
            idle, self._idle = self._idle, []
        for link in idle:
            link.close()

    @contextmanager
    def _one(self) -> Iterator[Link]:
        with self._lock:
            link = self._idle.pop() if self._idle else None
        if link is None:
            link = self._made()
        try:
            yield link
        except BaseException:
            link.close()
            self.close()  # the others were made by the same server, which may be gone
            raise
        with self._lock:
            self._idle.append(link)

    def _made(self) -> Link:
        link = psycopg.connect(self._text, autocommit=True, prepare_threshold=None, password=self._password())  # fmt: skip
        # What is acknowledged outlives a power cut of the database's machine, whatever its default is
        link.execute("SET synchronous_commit = on")
        link.execute(f"SET statement_timeout = {LONGEST}")
        return link

    def _password(self) -> str | None:
        if self._password_file is None:
            return None
        way_out = "put the password of hub.database into a file: chmod 600 FILE"
        return read_secret(self._password_file, way_out, MAX_PASSWORD).decode().strip()


def _in_words(error: psycopg.Error) -> str:
    """The first line that the server or libpq says; the name of the error where it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
