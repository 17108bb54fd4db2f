"""What the reader child writes: one byte into the FIFO of a job, one fixed question to the worker server of a rank.

Both go to a path that a job chose, so both are opened first without effect, are what they should be and belong to the user of the
rank, and neither ever waits for longer than it says.
"""

import errno
import os
import socket
import stat
import struct
import time
from enum import IntEnum

from mldebug_agents.starting.refusals import Refusal, Refused

ASKED_FOR = 3.0  # seconds for one answer of a worker server
MAX_HEAD = 16 << 10  # bytes before the answer itself
_TRIGGER = b"1"
_PEER = struct.Struct("3i")  # SO_PEERCRED: pid, uid, gid


class Question(IntEnum):
    """What a worker server may be asked: nothing of it changes the job, or gathers stacks."""

    HANDLERS = 0
    NCCL = 1
    OTHERS = 2
    STATUS = 3  # of NCCL: three numbers for each group
    PENDING = 4  # calls of NCCL


REQUESTS = {
    Question.HANDLERS: b"GET /handler/",
    Question.NCCL: b"POST /handler/dump_nccl_trace_json",
    Question.OTHERS: b"POST /handler/fr_trace_json",
    Question.STATUS: b"POST /handler/dump_nccl_trace_json?includecollectives=false",
    Question.PENDING: b"POST /handler/dump_nccl_trace_json?onlyactive=true",
}


def poke(handle: int, uid: int) -> None:
    """Write one byte into the FIFO that an O_PATH descriptor holds; raises OSError (ENXIO: nobody reads it) or `Refused`."""
    facts = os.fstat(handle)
    if not stat.S_ISFIFO(facts.st_mode):
        raise Refused(Refusal.NOT_A_FIFO)
    if facts.st_uid != uid:
        raise Refused(Refusal.NOT_THEIRS)
    fifo = os.open(b"/proc/self/fd/%d" % handle, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.write(fifo, _TRIGGER)
    finally:
        os.close(fifo)


def ask_unix(handle: int, pid: int, question: int, limit: int) -> bytes:
    """Ask the process that listens on the socket an O_PATH descriptor holds, if it is this one."""
    if not stat.S_ISSOCK(os.fstat(handle).st_mode):
        raise Refused(Refusal.NOT_A_SOCKET)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(ASKED_FOR)
        connection.connect(f"/proc/self/fd/{handle}")
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        if _PEER.unpack(raw)[0] != pid:
            raise Refused(Refusal.OTHER_PROCESS)
        return _ask(connection, Question(question), limit)


def ask_tcp(port: int, question: int, limit: int) -> bytes:
    """Ask who listens on this port of the loopback interface; the caller knows that it is the rank."""
    with socket.create_connection(("127.0.0.1", port), ASKED_FOR) as connection:
        return _ask(connection, Question(question), limit)


def _ask(connection: socket.socket, question: Question, limit: int) -> bytes:
    deadline = time.monotonic() + ASKED_FOR
    head = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    connection.sendall(REQUESTS[question] + head)
    data = bytearray()
    while (end := _end(data)) is None or len(data) < end:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        chunk = connection.recv(1 << 16)
        if not chunk:
            raise ConnectionResetError(errno.ECONNRESET, "it hung up")
        data += chunk
        if len(data) > limit + MAX_HEAD:
            raise Refused(Refusal.TOO_LARGE)
    return bytes(data[data.index(b"\r\n\r\n") + 4 : end])


def _end(data: bytearray) -> int | None:
    """How long the whole answer is; None as long as that is not told. Raises `Refused` for what is no such answer."""
    head, found, _ = bytes(data[:MAX_HEAD]).partition(b"\r\n\r\n")
    if not found:
        if len(data) >= MAX_HEAD:
            raise Refused(Refusal.NO_WORKER_SERVER)
        return None
    first, *lines = head.split(b"\r\n")
    if not first.startswith(b"HTTP/1.") or first.split(b" ")[1:2] != [b"200"]:
        raise Refused(Refusal.NO_WORKER_SERVER)
    for line in lines:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length" and value.strip().isdigit():
            return len(head) + 4 + int(value)
    raise Refused(Refusal.NO_WORKER_SERVER)
