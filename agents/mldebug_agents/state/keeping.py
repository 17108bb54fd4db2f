"""The state keeper: a child of the agent that alone touches the state dir, in order, one thing at a time.

It is a process, not a thread, because a process that has a file open on a hung mount cannot end: the agent can.
"""

import contextlib
import logging
import os
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from mldebug.archive import Archive
from mldebug.errors import MldebugError
from mldebug.model import Report
from mldebug_agents.serving.doors import open_unix, reachable
from mldebug_agents.starting.leftovers import Leftover
from mldebug_agents.state.folder import Hold
from mldebug_agents.state.wire import (
    Door,
    End,
    Forget,
    Keep,
    Leave,
    Open,
    Order,
    Prune,
    Reply,
    Save,
    StoredRow,
    receive,
    send,
)

_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    job_id TEXT PRIMARY KEY, memory BLOB NOT NULL, incident BLOB, kept_at REAL NOT NULL DEFAULT (unixepoch())
);
CREATE TABLE IF NOT EXISTS leftovers (pid INTEGER, start_ticks INTEGER, words TEXT, PRIMARY KEY (pid, start_ticks));
"""


def serve(link: socket.socket) -> None:
    """Carry out orders until the agent hangs up."""
    notes = _Notes()
    logging.getLogger("mldebug").handlers[:] = [notes]
    keeping = Keeping()
    orders = msgspec.msgpack.Decoder(Order)
    with contextlib.suppress(ConnectionError):
        while True:
            body, _ = receive(link)
            reply, door = answer(keeping, orders.decode(body))
            reply = msgspec.structs.replace(reply, notes=notes.take())
            send(link, reply, door.fileno() if door else None)
            if door:
                door.close()


def answer(keeping: "Keeping", order: Order) -> tuple[Reply, socket.socket | None]:
    """Carry out one order; never raises for what the disk does."""
    try:
        return keeping.obey(order)
    except MldebugError as error:
        return Reply(refusal=(error.message, error.way_out, int(error.exit_code))), None
    except OSError as error:
        return Reply(errno=error.errno or 5, error=error.strerror or str(error)), None
    except sqlite3.Error as error:
        return Reply(errno=5, error=f"{type(error).__name__}: {error}"), None


class Keeping:
    """The state dir, once `Open` has named it."""

    def __init__(self) -> None:
        self._folder = Path()
        self._hold: Hold | None = None
        self._link: sqlite3.Connection | None = None
        self._orders: dict[type, Callable[..., Reply | None]] = {
            Keep: self._keep,
            Forget: self._forget,
            Leave: self._leave,
            Save: self._save,
            Prune: self._prune,
            End: self._end,
        }

    def obey(self, order: Order) -> tuple[Reply, socket.socket | None]:
        """Carry out one order. OSError, sqlite3.Error: it may work later; `MldebugError`: never."""
        if isinstance(order, Open):
            return self._open(order)
        if isinstance(order, Door):
            return self._open_door()
        return self._orders[type(order)](order) or Reply(), None

    # --- opening and closing -----------------------------------------------------------------------

    def _open(self, order: Open) -> tuple[Reply, socket.socket | None]:
        if self._hold is None:
            self._folder = Path(order.state_dir)
            self._hold = Hold(self._folder, order.pid)
        self._hold.take()
        rows, leftovers = self._load() if self._database.exists() else ((), ())
        found, door = self._try_door() if order.door else (Reply(), None)
        return msgspec.structs.replace(found, rows=rows, leftovers=leftovers), door

    def _try_door(self) -> tuple[Reply, socket.socket | None]:
        """A folder that has no room for a socket may have it for the rest."""
        try:
            return self._open_door()
        except OSError as error:
            return Reply(error=error.strerror or str(error)), None

    def _open_door(self) -> tuple[Reply, socket.socket]:
        door = open_unix(self._folder)
        with reachable(self._folder) as path:
            facts = os.lstat(path)
        return Reply(door=(facts.st_dev, facts.st_ino)), door

    def _end(self, order: End) -> None:
        with contextlib.suppress(OSError), reachable(self._folder) as path:
            facts = os.lstat(path)
            if (facts.st_dev, facts.st_ino) == order.door:
                os.unlink(path)
        self._disconnect()
        if self._hold is not None:
            self._hold.give_back()

    # --- reports -----------------------------------------------------------------------------------

    def _save(self, order: Save) -> None:
        report = msgspec.json.decode(order.report, type=Report)
        Archive(self._folder).save(report, order.html, order.evidence, owner_uid=order.owner_uid)

    def _prune(self, order: Prune) -> None:
        Archive(self._folder).prune()

    # --- the database ------------------------------------------------------------------------------

    @property
    def _database(self) -> Path:
        return self._folder / "agent.sqlite"

    def _load(self) -> tuple[tuple[StoredRow, ...], tuple[Leftover, ...]]:
        try:
            rows = self._do("SELECT job_id, CAST(memory AS BLOB), CAST(incident AS BLOB) FROM runs")
            left = self._do("SELECT pid, start_ticks, words FROM leftovers")
        except sqlite3.OperationalError:
            raise  # a full or ailing disk: there may be something to read later
        except sqlite3.DatabaseError as error:
            self._set_aside(error)
            return (), ()
        return tuple(StoredRow(*one) for one in rows), tuple(Leftover(*one) for one in left)

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        aside = self._database.with_name("agent.sqlite.broken")
        logging.getLogger("mldebug").error(
            "%s is damaged (%s): kept as %s, begun anew", self._database, error, aside.name
        )
        for tail in ("-wal", "-shm"):
            self._database.with_name(self._database.name + tail).unlink(missing_ok=True)
        os.replace(self._database, aside)

    def _connect(self) -> sqlite3.Connection:
        if self._link is None:
            os.close(os.open(self._database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            link = sqlite3.connect(self._database, timeout=1.0, isolation_level=None)
            with contextlib.ExitStack() as undo:
                undo.callback(link.close)
                # with an exclusive lock WAL needs no shared memory, which network file systems do not have
                link.execute("PRAGMA locking_mode=EXCLUSIVE")
                link.execute("PRAGMA journal_mode=WAL")
                link.executescript(_SCHEMA)
                undo.pop_all()
            self._link = link
        return self._link

    def _disconnect(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            with contextlib.suppress(sqlite3.Error):
                link.close()

    def _do(self, statement: str, *values: object) -> list[Any]:
        try:
            return self._connect().execute(statement, values).fetchall()
        except sqlite3.Error:
            self._disconnect()
            raise

    def _keep(self, order: Keep) -> None:
        self._do(
            "INSERT OR REPLACE INTO runs (job_id, memory, incident) VALUES (?, ?, ?)",
            *(order.job_id, order.memory, order.incident),
        )

    def _forget(self, order: Forget) -> None:
        self._do("DELETE FROM runs WHERE job_id = ?", order.job_id)

    def _leave(self, order: Leave) -> None:
        self._do("DELETE FROM leftovers")
        for one in order.leftovers:
            self._do("INSERT INTO leftovers VALUES (?, ?, ?)", one.pid, one.start_ticks, one.words)


class _Notes(logging.Handler):
    """What is logged here goes home with the next reply: the helper's children have no stderr."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._notes: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep it."""
        self._notes.append(record.getMessage())

    def take(self) -> tuple[str, ...]:
        """Give away what was kept."""
        notes, self._notes = tuple(self._notes), []
        return notes
