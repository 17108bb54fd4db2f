"""The state server: a child process of the agent that alone touches the state dir and carries out
one request after another.

It is a process, not a thread, because a process with a file open on a hung mount cannot end: so the
agent still can.
"""

import contextlib
import errno
import logging
import os
import socket
import sqlite3
from collections.abc import Callable
from pathlib import Path

import msgspec

from mldebug.core.errors import MldebugError
from mldebug.core.report_model import Report
from mldebug.incidents.report_store import ReportStore
from mldebug_agents.state.database import Database, errno_of
from mldebug_agents.state.folder import FolderLock, OccupiedError
from mldebug_agents.state.messages import (
    MAX_BODY,
    CheckState,
    CloseState,
    DeleteRun,
    DeviceInode,
    OpenSocket,
    OpenState,
    PruneReports,
    RemoveReport,
    SaveReport,
    StateOrder,
    StateReply,
    StoredExits,
    StoreLeftovers,
    StoreMemo,
    StoreRun,
)
from mldebug_agents.state.settled_clock import SettledClock
from mldebug_agents.system.child.link import ChildLink
from mldebug_agents.web.listeners import open_unix, reachable

MAX_NAMES = 4096  # reports of earlier agents that are known by their ids

Answer = tuple[StateReply, socket.socket | None]


def serve(connection: socket.socket) -> None:
    """The main function of the state child: carry out requests until the agent closes the connection."""
    notes = _WarningsForAgent()
    logging.getLogger("mldebug").handlers[:] = [notes]
    server = StateServer()
    link = ChildLink(connection, msgspec.msgpack.Decoder(StateOrder), max_body=MAX_BODY)
    with contextlib.suppress(ConnectionError):  # the agent is gone
        while True:
            reply, listener = answer(server, link.receive())
            reply = msgspec.structs.replace(reply, notes=notes.take())
            link.send(reply, listener.fileno() if listener else None)
            if listener:
                listener.close()


def answer(server: "StateServer", order: StateOrder) -> Answer:
    """Carry out one request. Never raises: disk errors and exceptions of our own become the reply."""
    reply, listener = _answer(server, order)
    gone = server.gone and not isinstance(order, CloseState)
    return msgspec.structs.replace(reply, gone=gone), listener


def _answer(server: "StateServer", order: StateOrder) -> Answer:
    try:
        return server.execute(order)
    except MldebugError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and not isinstance(order, OpenState):
            return _failed(cause), None  # refused at the start, it is trouble of the disk later
        refusal = (error.message, error.way_out, int(error.exit_code))
        return StateReply(refusal=refusal, occupied=isinstance(error, OccupiedError)), None
    except OSError as error:
        return _failed(error), None
    except sqlite3.Error as error:
        number = errno_of(error)
        return StateReply(errno=number, error=f"{os.strerror(number)} (SQLite: {error})"), None
    except Exception as error:  # noqa: BLE001 - a child that ends here would end at every try
        return StateReply(defect=f"{type(error).__name__}: {error}"[:300]), None


def _failed(error: OSError) -> StateReply:
    return StateReply(errno=error.errno or errno.EIO, error=error.strerror or str(error))


class StateServer:
    """Serves one state dir in the child process. The first `OpenState` request names it."""

    def __init__(self, clock: SettledClock | None = None) -> None:
        self._clock = clock or SettledClock()
        self._folder = Path()
        self._lock: FolderLock | None = None
        self._database = Database(Path())
        self._lost = ""  # what the agent has to be told of the place
        self._orders: dict[type, Callable[..., Answer | None]] = {
            OpenState: self._open,
            CheckState: lambda _: None,
            OpenSocket: lambda order: self._open_socket(order.place),
            StoreRun: lambda order: self._database.keep(order),
            StoredExits: lambda order: self._database.keep_ends(order),
            StoreMemo: lambda order: self._database.remember(order.memo),
            DeleteRun: lambda order: self._database.forget(order.job_id),
            StoreLeftovers: lambda order: self._database.leave(order.leftovers),
            SaveReport: self._save,
            RemoveReport: lambda order: ReportStore(self._folder).remove(order.report_id),
            PruneReports: self._prune,
            CloseState: self._end,
        }

    @property
    def gone(self) -> bool:
        """Whether the state dir that was held has gone, and nothing of it is open here any more."""
        return self._lock is not None and self._lock.gone

    def execute(self, order: StateOrder) -> Answer:
        """Carry out one request, and return the reply and the listening socket if one was opened.

        Raises OSError or sqlite3.Error where a later try may succeed, MldebugError where none will.
        """
        if isinstance(order, OpenState) and self._lock is None:
            self._folder = Path(order.state_dir)
            self._lock = FolderLock(self._folder, order.pid, order.held)
            self._database = Database(self._folder / "agent.sqlite")
        if not isinstance(order, CloseState):
            self._check_folder()
        reply, listener = self._orders[type(order)](order) or (StateReply(), None)
        lost, self._lost = self._lost, ""
        held = self._lock.held if self._lock else None
        return msgspec.structs.replace(reply, held=held, lost=lost), listener

    def _check_folder(self) -> None:
        """Hold the folder that the path shows now: a folder that was removed takes all writes, and keeps none."""
        if self._lock is None:
            raise ConnectionError("no state dir was named")
        try:
            lost = self._lock.take()
        except BaseException:
            self._database.disconnect()
            raise
        if not lost and not self._database.intact():
            lost = f"has lost its {self._database.path.name}"
        if lost:
            self._database.disconnect()
            self._lost = lost

    # --- opening and closing -----------------------------------------------------------------------

    def _open(self, order: OpenState) -> Answer:
        found = self._database.load()
        reply, listener = self._try_socket() if order.listener else (StateReply(), None)
        names = tuple(ReportStore(self._folder).names()[:MAX_NAMES])
        return msgspec.structs.replace(reply, found=found, reports=names), listener

    def _try_socket(self) -> Answer:
        """A folder that cannot hold a socket may still hold the rest."""
        try:
            return self._open_socket()
        except OSError as error:
            return StateReply(error=error.strerror or str(error)), None

    def _open_socket(self, served: DeviceInode | None = None) -> Answer:
        with contextlib.suppress(OSError):  # there is no socket file any more: a new one is opened
            if served is not None and self._socket_file() == served:
                return StateReply(
                    socket_file=served
                ), None  # something else of the state dir was lost
        listener = open_unix(self._folder)
        return StateReply(socket_file=self._socket_file()), listener

    def _socket_file(self) -> DeviceInode:
        with reachable(self._folder) as path:
            facts = os.lstat(path)
        return facts.st_dev, facts.st_ino

    def _end(self, order: CloseState) -> None:
        # another agent has put its own there
        with contextlib.suppress(OSError):
            if self._socket_file() == order.socket_file:
                with reachable(self._folder) as path:
                    os.unlink(path)
        self._database.disconnect()
        if self._lock is not None:
            self._lock.give_back()

    # --- reports -----------------------------------------------------------------------------------

    def _save(self, order: SaveReport) -> None:
        report = msgspec.json.decode(order.report, type=Report)
        ReportStore(self._folder).save(
            report, order.html, order.evidence, owner_uid=order.owner_uid
        )

    def _prune(self, order: PruneReports) -> None:
        ReportStore(self._folder).prune(by_age=self._clock.settled())


class _WarningsForAgent(logging.Handler):
    """What is logged here goes home with the next reply: the helper's children have no stderr."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._notes: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the text of a log record, for the reply to the agent."""
        self._notes.append(record.getMessage())

    def take(self) -> tuple[str, ...]:
        """Return the kept texts and forget them."""
        notes, self._notes = tuple(self._notes), []
        return notes
