"""The agent's end of the connection to the state server, the child process that alone touches the state dir.

A call waits until the disk answers, however long that takes, so only the writer thread may call. A
child that has died is replaced; one that hangs is left behind when the agent ends.
"""

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from mldebug.core.errors import AccessError, ExitCode, MldebugError, UsageError
from mldebug.core.report_model import Report
from mldebug_agents.state.folder import OccupiedError
from mldebug_agents.state.messages import (
    MAX_BODY,
    CloseState,
    DeviceInode,
    OpenSocket,
    OpenState,
    PruneReports,
    RemoveReport,
    SaveReport,
    StateOrder,
    StateReply,
)
from mldebug_agents.system.child.link import ChildLink, WorkerStarter
from mldebug_agents.system.spawn import ForkedWorker

log = logging.getLogger("mldebug")

NAME = "state"  # of the worker that the process starter forks
GONE = "the state process is gone"
_REPLIES = msgspec.msgpack.Decoder(StateReply)


class StateClient:
    """Access to a state dir through the child process that serves it.

    Raises what the child has raised, and ConnectionError where the child is gone or the agent ends.
    """

    def __init__(
        self,
        starter: WorkerStarter,
        state_dir: Path,
        on_loss: Callable[[str], None],
        on_gone: Callable[[], None] = lambda: None,
        *,
        listener: bool = False,
    ) -> None:
        """`on_loss` is called with words when the state dir had to be begun anew; `on_gone` when it went, and what its path
        shows now cannot be used.
        """
        self.worker: ForkedWorker | None = None
        self._starter = starter
        self._state_dir = state_dir
        self._on_loss, self._on_gone = on_loss, on_gone
        self._wants_socket = listener
        self._socket_file: DeviceInode | None = None  # of our socket file
        self._held: DeviceInode | None = None  # the lock file
        self._ended = False

    def open(self) -> tuple[StateReply, socket.socket | None]:
        """Have the child lock the state dir and read it; a child is started where there is none.

        Returns the reply and, until it was opened once, the listening Unix socket if one was
        wanted.
        """
        listener = self._wants_socket and self._socket_file is None
        reply, got = self._exchange(
            OpenState(str(self._state_dir), os.getpid(), listener, self._held)
        )
        self._socket_file = reply.socket_file or self._socket_file
        return reply, got

    def open_socket(self) -> socket.socket | None:
        """Try again to open the agent's Unix socket.

        Returns the listening socket, or None while the socket file of an earlier agent is still there; raises OSError where none can be
        opened.
        """
        self._have_child()
        reply, listener = self._exchange(OpenSocket(self._socket_file))
        self._socket_file = reply.socket_file or self._socket_file
        return listener

    def ask(self, order: StateOrder) -> None:
        """Have an order carried out.

        If the child has ended, a new one is started once, which opens the state dir first.
        """
        try:
            self._ask(order)
        except ConnectionError:
            if self._ended:
                raise
            log.warning("the child that keeps %s has ended: a new one goes on", self._state_dir)
            self._ask(order)

    def _ask(self, order: StateOrder) -> None:
        self._have_child()
        self._exchange(order)

    def _have_child(self) -> None:
        """Start a child where there is none: whatever it is asked first, it has to know the state dir before."""
        if self.worker is None:
            self._exchange(OpenState(str(self._state_dir), os.getpid(), False, self._held))

    def end(self) -> None:
        """Have the child remove the socket file, close the database and release the lock; then close the connection.

        Later calls raise ConnectionError.
        """
        if self.worker is not None:
            self._exchange(CloseState(self._socket_file))
        self._ended = True
        self.hang_up()

    def hang_up(self) -> None:
        """Close the connection to the child that keeps the state, and do not wait for its end. An idle child ends at once; one whose disk hangs ends when
        the disk answers.
        """
        worker, self.worker = self.worker, None
        if worker is not None:
            worker.hang_up()

    def _exchange(self, order: StateOrder) -> tuple[StateReply, socket.socket | None]:
        if self._ended:
            raise ConnectionError("the agent ends")
        worker = self.worker = self.worker or self._starter.fork_worker(NAME)
        try:
            link = ChildLink(worker.socket, _REPLIES, max_body=MAX_BODY, gone=GONE)
            link.send(order)
            reply, descriptor = link.receive_with_descriptor()
        except OSError:
            self.hang_up()
            raise
        for note in reply.notes:
            log.warning("%s", note)
        listener = socket.socket(fileno=descriptor) if descriptor is not None else None
        if reply.gone:
            self._socket_file = None
            self._on_gone()
        _raise(reply, listener)
        self._held = reply.held or self._held
        if reply.lost:
            self._on_loss(reply.lost)
        return reply, listener


class RemoteArchive:
    """Writes reports as `mldebug.incidents.report_store.ReportStore` does, but in the child process."""

    def __init__(self, client: StateClient) -> None:
        self._client = client

    def save(
        self,
        report: Report,
        html: str,
        evidence: Mapping[str, bytes],
        *,
        owner_uid: int | None = None,
    ) -> None:
        """Write one report, its HTML page and evidence files. A report with the same id is replaced.

        `owner_uid`: the user to whom the files shall belong; None: the agent's own.
        """
        report_json = msgspec.json.encode(report)
        self._client.ask(SaveReport(report_json, html, dict(evidence), owner_uid))

    def remove(self, report_id: str) -> None:
        """Remove the report with this id."""
        self._client.ask(RemoveReport(report_id))

    def prune(self) -> None:
        """Remove the reports that are too old or beyond the limits of number and size."""
        self._client.ask(PruneReports())


def _raise(reply: StateReply, listener: socket.socket | None) -> None:
    if reply.refusal is None and not reply.errno and not reply.defect:
        return
    if listener is not None:
        with contextlib.suppress(OSError):  # what is raised below is the reason
            listener.close()
    if reply.defect:
        raise RuntimeError(f"a defect of mldebug: {reply.defect}")
    if reply.refusal is None:
        raise OSError(reply.errno, reply.error)
    message, way_out, code = reply.refusal
    if reply.occupied:
        raise OccupiedError(message, way_out)
    kind = {ExitCode.USAGE: UsageError, ExitCode.MISSING: AccessError}.get(ExitCode(code))
    raise (kind or MldebugError)(message, way_out)
