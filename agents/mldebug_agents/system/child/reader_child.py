"""The reader child: open a path without doing harm, read a piece of it, answer.

It runs in a process of its own because any of these calls may block for ever. Nothing that a job chose is opened
before it is known to be a regular file: opening a FIFO or a device has effects. Below `/proc/PID/root` symbolic links
resolve inside that root, so a link to /etc/shadow means the container's.

One `ReadRequest` names any number of paths; each gets, in order, a `ReadAnswer`.
"""

import contextlib
import ctypes
import errno
import os
import re
import socket
import stat
import struct
from enum import IntEnum

import msgspec

from mldebug_agents.system.child import listing, reader_writes
from mldebug_agents.system.child.link import ChildLink
from mldebug_agents.system.child.refusals import Refusal, Refused

MAX_BODY = 1 << 30
MAX_SOURCE = 4 << 20  # bytes of a file that is searched for a line
MAX_LINE = 400  # characters
HEAD = 64  # bytes

_IN_ROOT = re.compile(rb"(.*?/proc/(?:\d+|self)/root)/(.*)", re.DOTALL)
_OWN_FILE = re.compile(rb"/proc/(?:\d+|self)/(?:task/\d+/)?[a-z_]+")
_MAGIC = re.compile(rb".*/proc/(?:\d+|self)(?:/task/\d+)?/fd/\d+", re.DOTALL)
_OWNER = re.compile(rb".*?/proc/(\d+)/root/", re.DOTALL)
_PATH = os.O_PATH | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_OPENAT2 = 437  # the same number on every architecture
_RESOLVE_IN_ROOT = 0x10
_MAX_LINKS = 40
_libc = ctypes.CDLL(None, use_errno=True)


class ReadOperation(IntEnum):
    """What the reader child can do with a path."""

    KERNEL = 1  # a /proc or /sys file: the first bytes
    FILE = 2  # all of a regular file
    TAIL = 3  # the last bytes of a regular file
    LINE = 4  # one line of a text file
    EXISTS = 5
    EXECUTABLE = 6
    MEMORY = 7  # of /proc/PID/mem, from the address that stands in for the line
    FROM = 8  # a regular file from the offset that stands in for the line
    POKE = 9  # one byte into a FIFO of the user that stands in for the line
    ASK = 10  # a worker server, the question that stands in for the line
    LIST = 11  # what lies below a folder: entries at most; how deep stands in for the line
    HEADS = 12  # of a regular file: the 64 bytes at each stride; offset and stride stand in for the line
    LINK = 13  # is it a symbolic link? What is not there is none


FileId = tuple[int, int, int, int, int]  # inode, device, mode, uid, gid


class ReadRequest(msgspec.Struct, frozen=True, array_like=True):
    """The same operation for several paths. `limit`: bytes; `line`: a line number, or what the operation says."""

    operation: ReadOperation
    paths: tuple[bytes, ...]
    limit: int = 0
    line: int = 0


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
    with contextlib.suppress(ConnectionError):
        while request := link.receive():
            for path in request.paths:
                link.send(answer(request.operation, path, request.limit, request.line))


def answer(operation: ReadOperation, path: bytes, limit: int, line: int) -> ReadAnswer:
    """Carry out one operation; never raises for a bad path."""
    try:
        return look(operation, path, limit, line)
    except Refused as refused:
        return ReadAnswer(status=int(refused.refusal))
    except TimeoutError:  # that of a socket has no number
        return ReadAnswer(status=errno.ETIMEDOUT)
    except OSError as error:
        return ReadAnswer(status=error.errno or errno.EIO)


def look(operation: ReadOperation, path: bytes, limit: int, line: int) -> ReadAnswer:
    """Carry out one operation; raises OSError or `Refused`."""
    if operation is ReadOperation.EXISTS:
        return ReadAnswer(_exists(path))
    if operation is ReadOperation.EXECUTABLE:
        return ReadAnswer(_executable(path))
    if operation is ReadOperation.LINK:
        return ReadAnswer(_link(path))
    if operation in (ReadOperation.POKE, ReadOperation.ASK):
        return ReadAnswer(_touch(operation, path, limit, line))
    if operation is ReadOperation.LIST:
        return ReadAnswer(listing.listed(locate(path, follow=False), limit, line))
    fd = _open(path)
    file_id = None
    try:
        facts = os.fstat(fd)
        if operation is ReadOperation.KERNEL:
            data = _read(fd, limit)
        elif operation is ReadOperation.MEMORY:
            data = os.pread(fd, limit, line)
        elif operation is ReadOperation.FROM:
            os.lseek(fd, min(line, facts.st_size), os.SEEK_SET)
            file_id = (facts.st_ino, facts.st_dev, facts.st_mode, facts.st_uid, facts.st_gid)
            data = _read(fd, limit)
        elif operation is ReadOperation.HEADS:
            data = _heads(fd, limit, line & 0xFFFFFFFF, line >> 32)
        elif operation is ReadOperation.TAIL:
            os.lseek(fd, max(0, facts.st_size - limit), os.SEEK_SET)
            data = _read(fd, limit)
        else:
            data = _whole(fd, limit if operation is ReadOperation.FILE else MAX_SOURCE)
        if operation is ReadOperation.LINE:
            data = pick_line(data, line)
        return ReadAnswer(data, facts.st_size, facts.st_mtime, file_id=file_id)
    finally:
        os.close(fd)


def pick_line(data: bytes, line: int) -> bytes:
    """Return one line (the first is 1), cut to `MAX_LINE` characters; raises `Refused` beyond the end."""
    lines = data.split(b"\n")
    if not 1 <= line <= len(lines) or (line == len(lines) and not lines[-1]):
        raise Refused(Refusal.NO_SUCH_LINE)
    return lines[line - 1].decode(errors="replace").rstrip("\r")[:MAX_LINE].encode()


def locate(path: bytes, *, follow: bool) -> int:
    """Return an O_PATH descriptor of what the path names: nothing is opened, links below a root stay inside."""
    flags = _PATH if follow else _PATH | os.O_NOFOLLOW
    inside = _IN_ROOT.fullmatch(path)
    if not inside:
        return os.open(path, flags)
    root = os.open(inside[1], _PATH | os.O_DIRECTORY)
    try:
        return open_inside(root, inside[2], flags)
    finally:
        os.close(root)


def open_inside(root: int, rest: bytes, flags: int) -> int:
    """openat2(RESOLVE_IN_ROOT), or the same by hand where the kernel (< 5.6) or a seccomp filter has none."""
    how = struct.pack("<QQQ", flags, 0, _RESOLVE_IN_ROOT)
    for _ in range(8):
        fd = _libc.syscall(_OPENAT2, root, rest or b".", how, len(how))
        if fd >= 0:
            return int(fd)
        if ctypes.get_errno() != errno.EAGAIN:  # EAGAIN: a rename somewhere came between
            break
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EPERM):
        return walk_inside(root, rest, flags)
    raise OSError(number, os.strerror(number))


def walk_inside(root: int, rest: bytes, flags: int) -> int:
    """Resolve `rest` below the directory `root` component by component; `..` and links never leave it."""
    trail = [root]
    names = rest.split(b"/")[::-1]
    links = 0
    try:
        while names:
            name = names.pop()
            if name == b"..":
                if len(trail) > 1:
                    os.close(trail.pop())
                continue
            if name in (b"", b"."):
                continue
            trail.append(os.open(name, _PATH | os.O_NOFOLLOW, dir_fd=trail[-1]))
            is_link = stat.S_ISLNK(os.fstat(trail[-1]).st_mode)
            if is_link and (any(names) or not flags & os.O_NOFOLLOW):
                links += 1
                _follow(trail, names)
                if links > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        return os.dup(trail[-1])
    finally:
        for fd in trail[1:]:
            os.close(fd)


def _follow(trail: list[int], names: list[bytes]) -> None:
    link = trail.pop()
    try:
        target = os.readlink(b"", dir_fd=link)
    finally:
        os.close(link)
    if target.startswith(b"/"):
        while len(trail) > 1:
            os.close(trail.pop())
    names.extend(target.split(b"/")[::-1])


def _open(path: bytes) -> int:
    """Open a regular file. A final link is refused, but for /proc/PID/fd/N, which is the file itself."""
    if _OWN_FILE.fullmatch(path):  # never a FIFO or a device: half the system calls
        return os.open(path, _READ | os.O_NOFOLLOW)
    handle = locate(path, follow=bool(_MAGIC.fullmatch(path)))
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISLNK(mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if not stat.S_ISREG(mode):
            raise Refused(Refusal.NOT_REGULAR)
        return os.open(b"/proc/self/fd/%d" % handle, _READ)
    finally:
        os.close(handle)


def _touch(operation: ReadOperation, path: bytes, limit: int, line: int) -> bytes:
    """`tcp:PORT:PID:ADDRESS` stands for a process at a port of the loopback interface; any other path is held, and nothing opened."""
    if path.startswith(b"tcp:"):
        return reader_writes.ask_tcp(os.fsdecode(path[4:]), line, limit)
    handle = locate(path, follow=False)
    try:
        if stat.S_ISLNK(os.fstat(handle).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if operation is ReadOperation.POKE:
            reader_writes.poke(handle, line)
            return b""
        owner = _OWNER.match(path)
        return reader_writes.ask_unix(handle, int(owner[1]) if owner else os.getpid(), line, limit)
    finally:
        os.close(handle)


def _exists(path: bytes) -> bytes:
    try:
        os.close(locate(path, follow=True))
    except (FileNotFoundError, NotADirectoryError):
        return b""
    return b"1"


def _link(path: bytes) -> bytes:
    try:
        handle = locate(path, follow=False)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    try:
        return b"1" if stat.S_ISLNK(os.fstat(handle).st_mode) else b""
    finally:
        os.close(handle)


def _executable(path: bytes) -> bytes:
    try:
        handle = locate(path, follow=True)
    except (FileNotFoundError, NotADirectoryError):
        return b""
    try:
        regular = stat.S_ISREG(os.fstat(handle).st_mode)
        return b"1" if regular and os.access(b"/proc/self/fd/%d" % handle, os.X_OK) else b""
    finally:
        os.close(handle)


def _whole(fd: int, limit: int) -> bytes:
    data = _read(fd, limit + 1)
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
