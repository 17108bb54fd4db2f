"""The agent's SQLite database, one file: a row per run, exits of ranks, small named values (memos),
and processes that could not be ended.

Raises sqlite3.Error and OSError; only the state server uses it.
"""

import contextlib
import errno
import logging
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mldebug_agents.state.messages import Memo, StoredExits, StoredRow, StoredState, StoreRun
from mldebug_agents.system.child.leftovers import Leftover

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    job_id TEXT PRIMARY KEY, memory BLOB NOT NULL, incident BLOB, kept_at REAL NOT NULL DEFAULT (unixepoch())
);
CREATE TABLE IF NOT EXISTS ends (job_id TEXT PRIMARY KEY, told BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS memos (name TEXT PRIMARY KEY, told BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS leftovers (pid INTEGER, start_ticks INTEGER, words TEXT, PRIMARY KEY (pid, start_ticks));
"""
VERSION = 1
"""Of the schema, in `PRAGMA user_version`; 0 is that of release 0.1.0, which has the same tables."""
_COLUMNS = {
    "runs": ("job_id", "memory", "incident", "kept_at"),
    "ends": ("job_id", "told"),
    "memos": ("name", "told"),
    "leftovers": ("pid", "start_ticks", "words"),
}
_ERRNOS = {
    "SQLITE_FULL": errno.ENOSPC,
    "SQLITE_READONLY": errno.EROFS,
    "SQLITE_BUSY": errno.EAGAIN,
    "SQLITE_LOCKED": errno.EAGAIN,
    "SQLITE_PERM": errno.EACCES,
}


_NONE = type(None)


def _fitting(rows: list[Any], *kinds: tuple[type, ...]) -> Iterator[Any]:
    """The rows whose values are of these kinds: SQLite stores anything in any column."""
    return (
        row
        for row in rows
        if all(isinstance(one, kind) for one, kind in zip(row, kinds, strict=True))
    )


def errno_of(error: sqlite3.Error) -> int:
    """The errno that best fits an SQLite error, found by its name; EIO for all others."""
    name = str(getattr(error, "sqlite_errorname", ""))
    known = (number for begin, number in _ERRNOS.items() if name.startswith(begin))
    return next(known, errno.EIO)


class ForeignSchemaError(sqlite3.DatabaseError):
    """The file is an SQLite database, but not one that this version can use: its tables differ, or
    a newer release wrote it.
    """


class Database:
    """The file `agent.sqlite` of a state dir; it is opened when it is first used."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._link: sqlite3.Connection | None = None
        self._file: os.stat_result | None = None

    def intact(self) -> bool:
        """Whether the open file is still the one at this path (it was not removed or replaced).

        True where no file is open.
        """
        if self._link is None or self._file is None:
            return True
        try:
            return os.path.samestat(self._file, os.stat(self.path))
        except FileNotFoundError:
            return False

    def load(self) -> StoredState:
        """Read everything that is stored; empty where there is no file.

        A damaged file, or one of another schema, is renamed to `.broken` and begun anew. Rows of
        wrong types are left out. Raises sqlite3.OperationalError where the disk fails.
        """
        if not self.path.exists():
            return StoredState()
        try:
            self._check_schema()
            rows = self._do("SELECT job_id, CAST(memory AS BLOB), CAST(incident AS BLOB) FROM runs")
            ends = self._do("SELECT job_id, CAST(told AS BLOB) FROM ends")
            memos = self._do("SELECT name, CAST(told AS BLOB) FROM memos")
            left = self._do("SELECT pid, start_ticks, words FROM leftovers")
        except sqlite3.OperationalError:
            raise  # a full or ailing disk: there may be something to read later
        except sqlite3.DatabaseError as error:
            self._set_aside(error)
            return StoredState()
        return StoredState(
            rows=tuple(StoredRow(*one) for one in _fitting(rows, (str,), (bytes,), (bytes, _NONE))),
            ends=tuple(StoredExits(*one) for one in _fitting(ends, (str,), (bytes,))),
            memos=tuple(Memo(*one) for one in _fitting(memos, (str,), (bytes,))),
            leftovers=tuple(Leftover(*one) for one in _fitting(left, (int,), (int,), (str,))),
        )

    def keep(self, order: StoreRun) -> None:
        """Store the row of one run in place of its earlier one."""
        self._do(
            "INSERT OR REPLACE INTO runs (job_id, memory, incident) VALUES (?, ?, ?)",
            *(order.job_id, order.memory, order.incident),
        )

    def keep_ends(self, order: StoredExits) -> None:
        """Store how the ranks of a run have exited, in place of what was stored before."""
        self._do("INSERT OR REPLACE INTO ends VALUES (?, ?)", order.job_id, order.data)

    def remember(self, memo: Memo) -> None:
        """Store a named value; empty data deletes it."""
        if memo.data:
            self._do("INSERT OR REPLACE INTO memos VALUES (?, ?)", memo.name, memo.data)
        else:
            self._do("DELETE FROM memos WHERE name = ?", memo.name)

    def forget(self, job_id: str) -> None:
        """Delete the row and the exits of one run."""
        self._do("DELETE FROM runs WHERE job_id = ?", job_id)
        self._do("DELETE FROM ends WHERE job_id = ?", job_id)

    def leave(self, leftovers: tuple[Leftover, ...]) -> None:
        """Store these processes that could not be ended, in place of the earlier list."""
        self._do("DELETE FROM leftovers")
        for one in leftovers:
            self._do("INSERT INTO leftovers VALUES (?, ?, ?)", one.pid, one.start_ticks, one.words)

    def disconnect(self) -> None:
        """Close the file; the next call opens it again. Never raises."""
        link, self._link = self._link, None
        if link is not None:
            with contextlib.suppress(sqlite3.Error):  # what was not stored was told when it failed
                link.close()

    # --- inside --------------------------------------------------------------------------------------

    def _connect(self) -> sqlite3.Connection:
        if self._link is None:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._file = os.fstat(handle)
            os.close(handle)
            link = sqlite3.connect(self.path, timeout=1.0, isolation_level=None)
            with contextlib.ExitStack() as undo:
                undo.callback(link.close)
                # with an exclusive lock WAL needs no shared memory, which network file systems do not have
                link.execute("PRAGMA locking_mode=EXCLUSIVE")
                link.execute("PRAGMA journal_mode=WAL")
                self._make_tables(link)
                undo.pop_all()
            self._link = link
        return self._link

    def _make_tables(self, link: sqlite3.Connection) -> None:
        """In a new file. An older one may lack a table; one that has others is left as it is."""
        version = link.execute("PRAGMA user_version").fetchone()[0]
        if version > VERSION:
            raise ForeignSchemaError(f"its schema is {version}, and this mldebug knows {VERSION}")
        if version == VERSION:
            return
        try:
            link.executescript(f"BEGIN;{_SCHEMA}PRAGMA user_version = {VERSION};COMMIT;")
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorname", "") == "SQLITE_ERROR":  # no trouble of the disk
                raise ForeignSchemaError(str(error)) from error
            raise

    def _check_schema(self) -> None:
        kinds = dict(self._do("SELECT name, type FROM sqlite_master"))
        for table, columns in _COLUMNS.items():
            if kinds.get(table) != "table":
                raise ForeignSchemaError(f"{table} is no table")
            there = tuple(one[1] for one in self._do(f"PRAGMA table_info({table})"))
            if there != columns:
                raise ForeignSchemaError(f"table {table} has the columns {', '.join(there)}"[:200])

    def _do(self, statement: str, *values: object) -> list[Any]:
        try:
            return self._connect().execute(statement, values).fetchall()
        except sqlite3.Error:
            self.disconnect()
            raise

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        what = "of another schema" if isinstance(error, ForeignSchemaError) else "damaged"
        aside = self.path.with_name(self.path.name + ".broken")
        logging.getLogger("mldebug").error(
            "%s is %s (%s): kept as %s, begun anew",
            *(self.path, what, error, aside.name),
        )
        self.disconnect()
        for tail in ("-wal", "-shm"):
            self.path.with_name(self.path.name + tail).unlink(missing_ok=True)
        os.replace(self.path, aside)
