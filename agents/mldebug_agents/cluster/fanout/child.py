"""The child that reaches nodes: ClusterShell runs ssh on each, or one local program, and each line of a reply is passed on.

It ends what it has started when its time is over or the main process closes the connection. Output of nodes is bounded here: only
lines of a reply are passed on, and of stderr the last line of each node.
"""

import contextlib
import os
import resource
import select
import signal
import socket
from typing import Any

import msgspec
from ClusterShell.Event import EventHandler
from ClusterShell.Task import Task, task_self
from ClusterShell.Topology import TopologyError
from ClusterShell.Worker.Ssh import SshClient, WorkerSsh

from mldebug.cluster.wire import MAX_LINE, read_line
from mldebug_agents.cluster.fanout.messages import FanoutNews, FanoutOrder
from mldebug_agents.system.child.leftovers import children_of
from mldebug_agents.system.child.link import ChildLink

MAX_MEMORY = (
    4 << 30
)  # bytes of address space: a node that writes without an end of line ends us, not the machine
MAX_ERRORS = 20_000  # lines of stderr of the command that runs here
MAX_ERROR = 400
MAX_OUTPUT = 16 << 20  # bytes of one node
BEAT = 0.25


def serve(connection: socket.socket) -> None:
    """The child's main function: reads one order, carries it out, and sends the output as it comes."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    link = ChildLink(connection, msgspec.msgpack.Decoder(FanoutOrder))
    with contextlib.suppress(OSError):  # the command that waited for it is gone
        try:
            _carry_out(link.receive(), link, connection)
            link.send(FanoutNews(over=True))
        except (TopologyError, MemoryError, ValueError) as error:
            link.send(FanoutNews(trouble=f"{type(error).__name__}: {error}"[:MAX_ERROR]))


def _carry_out(order: FanoutOrder, link: ChildLink[FanoutOrder], connection: socket.socket) -> None:
    task = task_self()
    for stream in ("stdout_msgtree", "stderr_msgtree"):
        task.set_default(stream, False)  # or it would keep all that is written
    task.set_default("auto_tree", bool(order.topology))
    settings = {
        "fanout": order.fanout,
        "connect_timeout": order.connect_timeout,
        "ssh_path": order.ssh,
        "ssh_options": order.ssh_options,
    }
    for name, value in settings.items():
        task.set_info(name, value)
    if not order.topology:  # what a gateway hands on comes from many nodes
        task.set_default("distant_worker", _BoundedSsh)
    else:
        os.environ["CLUSTERSHELL_GW_PYTHON_EXECUTABLE"] = order.python
        task.load_topology(order.topology)
    where: dict[str, Any] = {"nodes": ",".join(order.nodes), "tree": bool(order.topology)}
    worker = task.shell(
        order.command, handler=_Teller(link), stderr=True, timeout=order.timeout + order.grace,
        **(where if order.nodes else {}),
    )  # fmt: skip
    worker.set_write_eof()
    task.timer(BEAT, handler=_Listener(connection, task), interval=BEAT, autoclose=True)
    task.resume()


class _BoundedClient(SshClient):  # type: ignore[misc]  # ClusterShell ships no types
    """One connection: ClusterShell keeps a line that does not end, and goes through all of it at every read."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        SshClient.__init__(self, *arguments, **more)
        self._total = 0

    def _read(self, sname: str, size: int = 65_536) -> bytes:
        data: bytes = SshClient._read(self, sname, size)
        stream = self.streams[sname]
        if len(stream.rbuf) > 2 * MAX_LINE:
            stream.rbuf = b""
        self._total += len(data)
        if self._total > MAX_OUTPUT:
            self.popen.kill()
            self.worker.eh.flooded(self.key)
        return data


class _BoundedSsh(WorkerSsh):  # type: ignore[misc]
    SHELL_CLASS = _BoundedClient


class _Teller(EventHandler):  # type: ignore[misc]
    """Hands on what ClusterShell sees."""

    def __init__(self, link: ChildLink[FanoutOrder]) -> None:
        EventHandler.__init__(self)
        self._link = link
        self._last: dict[str, str] = {}
        self._errors = 0

    def ev_read(self, worker: Any, node: Any, sname: str, msg: bytes) -> None:
        """ClusterShell: a command has written a line to its stdout or stderr."""
        name = _name(worker, node)
        if sname == "stdout" and len(msg) <= 2 * MAX_LINE and read_line(msg) is not None:
            self._send(FanoutNews(node=name, line=msg.decode(errors="replace")))
        elif sname != "stdout" and msg.strip():
            self._error(name, msg[:MAX_ERROR].decode(errors="replace"))

    def _error(self, name: str, line: str) -> None:
        self._errors += 1
        if not name and self._errors <= MAX_ERRORS:
            self._send(FanoutNews(error=line))
        elif name:
            self._last[name] = line

    def flooded(self, name: str) -> None:
        """Note that the command wrote more than it may, and was ended."""
        self._last[name] = f"it wrote more than {MAX_OUTPUT >> 20} MiB"

    def ev_hup(self, worker: Any, node: Any, rc: int) -> None:
        """ClusterShell: the command has ended on one node."""
        name = _name(worker, node)
        self._send(FanoutNews(node=name, code=rc, error=self._last.pop(name, "")))

    def ev_close(self, worker: Any, timedout: bool) -> None:
        """ClusterShell: the command has ended on all nodes."""
        for node in worker.task.iter_keys_timeout() if timedout else ():
            name = _name(worker, node)
            self._send(FanoutNews(node=name, late=True, error=self._last.pop(name, "")))

    def _send(self, news: FanoutNews) -> None:
        with contextlib.suppress(OSError):  # `_Listener` sees it, too
            self._link.send(news)


def _name(worker: Any, node: Any) -> str:
    """The node's name; of the command that runs here ClusterShell knows none."""
    return node if isinstance(node, str) else ""


class _Listener(EventHandler):  # type: ignore[misc]
    """Sees the main process hang up: first a signal that lets a scheduler's command cancel what it has started."""

    def __init__(self, connection: socket.socket, task: Task) -> None:
        EventHandler.__init__(self)
        self._connection = connection
        self._task = task
        self._beats = 0

    def ev_timer(self, timer: Any) -> None:
        """ClusterShell: time to look whether the parent process is still there."""
        if not self._beats and not _hung_up(self._connection):
            return
        self._beats += 1
        if self._beats == 1:
            for child in children_of(os.getpid()):
                with contextlib.suppress(OSError):  # it has just ended
                    os.kill(child.pid, signal.SIGTERM)
        elif self._beats > 1 / BEAT:
            self._task.abort()


def _hung_up(connection: socket.socket) -> bool:
    readable, _, _ = select.select([connection], [], [], 0)
    return bool(readable) and not connection.recv(1, socket.MSG_PEEK)
