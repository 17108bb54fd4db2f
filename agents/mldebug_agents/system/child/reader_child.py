"""The reader child: opens a path without doing harm, reads a piece of it, answers.

It is a process of its own because any of these calls may block for ever. Nothing that a job names
is opened before it is known to be a regular file: opening a FIFO or a device has effects.
`job_paths` decides whose rights count and how a path is resolved. One `ReadRequest` names any
number of paths; each gets a `ReadAnswer`, in order.
"""

import errno
import os
import re
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum

import msgspec

from mldebug_agents.system.child import listing, reader_writes
from mldebug_agents.system.child.job_paths import OPERATOR, WRITE, Rights, closing, held, reopen
from mldebug_agents.system.child.link import ChildLink
from mldebug_agents.system.child.refusals import Refusal, Refused
from mldebug_agents.system.process import timed_read

MAX_BODY = 1 << 30
MAX_SOURCE = 4 << 20  # bytes of a file that is searched for a line
MAX_LINE = 400  # characters
AROUND = 2  # lines before and after one that are read with it
HEAD = 64  # bytes

_OWN_FILE = re.compile(rb"/proc/(?:\d+|self)/(?:task/\d+/)?[a-z_]+")
_OWNER = re.compile(rb"/proc/(\d+)/root/", re.DOTALL)
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


class ReadOperation(IntEnum):
    """The operations that the reader child (the process that opens paths which may hang) can do with a path."""

    KERNEL = 1  # a /proc or /sys file: the first bytes
    FILE = 2  # all of a regular file
    TAIL = 3  # the last bytes of a regular file
    MEMORY = 7  # of /proc/PID/mem, from the address that stands in for the line
    FROM = 8  # a regular file from the offset that stands in for the line
    POKE = 9  # one byte into a FIFO of the user that stands in for the line
    ASK = 10  # a worker server, the question that stands in for the line
    LIST = 11  # what lies below a folder: entries at most; how deep stands in for the line
    HEADS = 12  # of a regular file: the 64 bytes at each stride; offset and stride stand in for the line
    LINES = 14  # that line of a text file and those around it
    TIMED = 15  # how long a read past the caches takes; `line` picks the block
    LINK = 13  # is it a symbolic link? What is not there is none


FileId = tuple[int, int, int, int, int]  # inode, device, mode, uid, gid


class ReadRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request to do the same thing (`operation`) with several paths. `limit`: bytes, or entries of a listing; `line`: a
    line number, or another number that the operation needs.
    """

    operation: ReadOperation
    paths: tuple[bytes, ...]
    limit: int = 0
    line: int = 0
    rights: Rights = OPERATOR
    place: int = 0  # of `held`


class ReadAnswer(msgspec.Struct, frozen=True, array_like=True):
    """The result for one path: its data, with the file's size (bytes) and modification time (unix) when it was opened."""

    data: bytes = b""
    size: int = 0
    mtime: float = 0.0
    status: int = 0  # or an errno, or a `Refusal`, which is negative
    file_id: FileId | None = None  # with `Operation.FROM`


def serve(connection: socket.socket) -> None:
    """Answer requests until the agent closes the connection: the main function of the reader child."""
    link = ChildLink(connection, msgspec.msgpack.Decoder(ReadRequest), max_body=MAX_BODY)
    with suppress(ConnectionError):  # the agent is gone
        while request := link.receive():
            for path in request.paths:
                link.send(answer(request, path))


def answer(request: ReadRequest, path: bytes) -> ReadAnswer:
    """Carry out the request for one of its paths; never raises for a bad path."""
    try:
        return look(request, path)
    except Refused as refused:
        return ReadAnswer(status=int(refused.refusal))
    except TimeoutError:  # that of a socket has no number
        return ReadAnswer(status=errno.ETIMEDOUT)
    except OSError as error:
        return ReadAnswer(status=error.errno or errno.EIO)


def look(request: ReadRequest, path: bytes) -> ReadAnswer:
    """Carry out the request for one of its paths; raises OSError or `Refused`."""
    if request.operation in _WITHOUT_READING:
        return ReadAnswer(_WITHOUT_READING[request.operation](request, path))
    with _opened(request, path) as fd:
        facts = os.fstat(fd)
        data = _data(request, fd, facts)
        file_id = None
        if request.operation is ReadOperation.FROM:
            file_id = (facts.st_ino, facts.st_dev, facts.st_mode, facts.st_uid, facts.st_gid)
        return ReadAnswer(data, facts.st_size, facts.st_mtime, file_id=file_id)


def _data(request: ReadRequest, fd: int, facts: os.stat_result) -> bytes:
    operation, limit, line = request.operation, request.limit, request.line
    if operation is ReadOperation.KERNEL:
        return _read(fd, limit)
    if operation is ReadOperation.MEMORY:
        return os.pread(fd, limit, line)
    if operation is ReadOperation.LINES:
        return pick_lines(_whole(fd, facts, MAX_SOURCE), line)
    if not facts.st_size:  # a file of /proc says so, too, and this process's own would tell of us
        return b""
    if operation is ReadOperation.FROM:
        os.lseek(fd, min(line, facts.st_size), os.SEEK_SET)
        return _read(fd, limit)
    if operation is ReadOperation.HEADS:
        return _heads(fd, limit, line & 0xFFFFFFFF, line >> 32)
    if operation is ReadOperation.TAIL:
        os.lseek(fd, max(0, facts.st_size - limit), os.SEEK_SET)
        return _read(fd, limit)
    return _whole(fd, facts, limit)


def pick_lines(data: bytes, line: int) -> bytes:
    """One line of a text (the first is 1) and `AROUND` lines before and after it, as far as there are any, each cut to
    `MAX_LINE` characters, with line ends between them; raises `Refused` where there is no such line.
    """
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()  # what follows the last line end is no line
    if not 1 <= line <= len(lines):
        raise Refused(Refusal.NO_SUCH_LINE)
    some = lines[max(0, line - 1 - AROUND) : line + AROUND]
    return b"\n".join(one.decode(errors="replace").rstrip("\r")[:MAX_LINE].encode() for one in some)


@contextmanager
def _opened(request: ReadRequest, path: bytes) -> Iterator[int]:
    """A file of the kernel as it is; any other only where it is a regular file, with the rights that the request names."""
    if request.operation in (ReadOperation.KERNEL, ReadOperation.MEMORY):
        with closing(_kernel_file(path)) as fd:
            yield fd
        return
    with held(path, request.rights, place=request.place) as (handle, access):
        fd = reopen(handle, access)
    with closing(fd):
        yield fd


def _kernel_file(path: bytes) -> int:
    """Nothing that a job named leads here: below its root and behind its descriptors only rights open a file."""
    if _OWN_FILE.fullmatch(path):  # never a FIFO or a device: half the system calls
        return os.open(path, _READ | os.O_NOFOLLOW)
    with held(path, OPERATOR) as (handle, access):
        return reopen(handle, access)


def _touch(request: ReadRequest, path: bytes) -> bytes:
    """`tcp:PORT:PID:ADDRESS` stands for a process at a port of the loopback interface; any other path is held, and nothing opened."""
    if path.startswith(b"tcp:"):
        return reader_writes.ask_tcp(os.fsdecode(path[4:]), request.line, request.limit)
    with held(path, request.rights) as (handle, access):
        if stat.S_ISLNK(os.fstat(handle).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        access.check(handle, WRITE)
        if request.operation is ReadOperation.POKE:
            reader_writes.write_byte(handle, request.line)
            return b""
        owner = _OWNER.match(path)
        pid = int(owner[1]) if owner else os.getpid()
        return reader_writes.ask_unix(handle, pid, request.line, request.limit)


def _link(request: ReadRequest, path: bytes) -> bytes:
    try:
        with held(path, request.rights) as (handle, _):
            return b"1" if stat.S_ISLNK(os.fstat(handle).st_mode) else b""
    except (FileNotFoundError, NotADirectoryError):
        return b""


def _timed(request: ReadRequest, path: bytes) -> bytes:
    begun = time.monotonic()
    with held(path, request.rights, place=request.place) as (handle, access):
        found = time.monotonic()
        fd = reopen(handle, access, more=os.O_DIRECT)
    with closing(fd):
        return timed_read.timed(fd, (begun, found, time.monotonic()), request.limit, request.line)


def _listed(request: ReadRequest, path: bytes) -> bytes:
    with held(path, request.rights, place=request.place) as (handle, access):
        return listing.listed(handle, access, request.limit, request.line)


def _whole(fd: int, facts: os.stat_result, limit: int) -> bytes:
    data = _read(fd, limit + 1) if facts.st_size else b""
    if len(data) > limit:
        raise Refused(Refusal.TOO_LARGE)
    return data


def _read(fd: int, limit: int) -> bytes:
    chunks = []
    while limit > 0 and (chunk := os.read(fd, min(limit, 1 << 16))):
        chunks.append(chunk)
        limit -= len(chunk)
    return b"".join(chunks)


def _heads(fd: int, limit: int, start: int, stride: int) -> bytes:
    """At most `limit` bytes, to the end of the file; what lies between the heads is not read."""
    heads: list[bytes] = []
    while (
        stride > 0 and len(heads) < limit // HEAD and len(head := os.pread(fd, HEAD, start)) == HEAD
    ):
        heads.append(head)
        start += stride
    return b"".join(heads)


_WITHOUT_READING = {
    ReadOperation.LINK: _link,
    ReadOperation.LIST: _listed,
    ReadOperation.TIMED: _timed,
    ReadOperation.POKE: _touch,
    ReadOperation.ASK: _touch,
}
