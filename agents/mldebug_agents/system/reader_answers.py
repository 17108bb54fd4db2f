"""What the reader child answers, as the main process takes it in: requests out, answers in, reasons in words."""

import contextlib
import errno
import os
from collections.abc import Iterator
from socket import socket

import msgspec

from mldebug_agents.system.child.reader_child import ANSWER
from mldebug_agents.system.child.refusals import Refusal
from mldebug_agents.system.spawn import Worker

_REASONS = {
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENOENT: "no such file",
    errno.ENOTDIR: "no such file",
    errno.ESRCH: "no such process",
    errno.ELOOP: "a symbolic link, which is not followed",
}
_REFUSALS = {
    Refusal.NOT_REGULAR: "not a regular file",
    Refusal.TOO_LARGE: "larger than allowed",
    Refusal.NO_SUCH_LINE: "no such line",
    Refusal.NOT_A_FIFO: "not a FIFO",
    Refusal.NOT_THEIRS: "not of the rank's user",
    Refusal.NOT_A_SOCKET: "not a socket",
    Refusal.OTHER_PROCESS: "another process listens there",
    Refusal.NO_WORKER_SERVER: "no worker server answers there, or it refuses",
    Refusal.SHARED_PORT: "not asked: other processes answer at its port; give each rank a port of its own",
    Refusal.UNSEEN: "not asked: its open files may not be read, and so not whose answer it would be",
}
_CHUNK = 1 << 18


class Unreadable(msgspec.Struct, frozen=True):
    """Why a path gave nothing. `stuck`: it did not answer, which is evidence by itself."""

    reason: str
    stuck: bool = False
    errno: int | None = None


class Tail(msgspec.Struct, frozen=True):
    """The end of a file, its whole size (bytes) and its modification time (unix)."""

    data: bytes
    size: int
    mtime: float


class Piece(msgspec.Struct, frozen=True):
    """Bytes of a file from an offset on, and what the file was at that moment: size (bytes), mtime (unix), identity."""

    data: bytes
    size: int
    mtime: float
    inode: int
    device: int
    mode: int = 0o100644
    uid: int = 0
    gid: int = 0


class Answer(msgspec.Struct):
    """What came of one path: its data, the file's size (bytes) and modification time (unix) where it was opened."""

    data: bytes
    size: int = 0
    mtime: float = 0.0


def converse(worker: Worker, request: bytes, timeout: float) -> Iterator[Answer | Unreadable]:
    """Send a request and yield its answers in order; TimeoutError when nothing comes for `timeout` seconds."""
    connection = worker.socket
    connection.settimeout(timeout)
    connection.sendall(request)
    incoming = bytearray()
    while True:
        _fill(connection, incoming, ANSWER.size)
        status, length, size, mtime = ANSWER.unpack_from(incoming)
        end = ANSWER.size + length
        _fill(connection, incoming, end)
        answer = Answer(bytes(incoming[ANSWER.size : end]), size, mtime)
        del incoming[:end]
        yield judge(status, answer)


def _fill(connection: socket, incoming: bytearray, size: int) -> None:
    while len(incoming) < size:
        chunk = connection.recv(_CHUNK)
        if not chunk:
            raise ConnectionResetError(errno.ECONNRESET, "it hung up")
        incoming += chunk


def judge(status: int, answer: Answer) -> Answer | Unreadable:
    """Turn the status of an answer (0, an errno, a `Refusal`) into the answer or its reason."""
    if status == 0:
        return answer
    if status > 0:
        return Unreadable(_REASONS.get(status) or os.strerror(status), errno=status)
    return Unreadable(_REFUSALS[Refusal(status)])


def encode(path: str, answers: dict[str, Answer | Unreadable]) -> bytes | None:
    """Return the path as the kernel takes it; one that cannot be a path gets its answer here."""
    with contextlib.suppress(UnicodeEncodeError):
        raw = os.fsencode(path)
        if b"\0" not in raw:
            return raw
    answers[path] = Unreadable("not a path")
    return None
