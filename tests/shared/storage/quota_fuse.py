"""A FUSE filesystem in memory that refuses writes with EDQUOT beyond a quota, and shows lots of room: as file servers with quotas do.

python quota_fuse.py MOUNTPOINT BYTES
"""

import errno
import itertools
import os
import stat
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from shared.storage.slow_fuse import (
    DESTROY,
    FLUSH,
    GETATTR,
    HEAD,
    INIT,
    LOOKUP,
    OPEN,
    OPENDIR,
    READ,
    READDIR,
    RELEASE,
    RELEASEDIR,
    ROOT,
    SILENT,
    STATFS,
    init_answer,
    mount,
    mounted_by,
)  # fmt: skip

SETATTR, MKDIR, UNLINK, RMDIR, WRITE, FSYNC, CREATE = 4, 9, 10, 11, 16, 20, 35
DONE = (RELEASE, RELEASEDIR, FLUSH, FSYNC, DESTROY)
SIZE_SET = 1 << 3  # of SETATTR's mask
ROOM = 1 << 20  # free blocks of 4 KiB


class RefusedError(Exception):
    """The request is answered with an error number."""


@dataclass
class Node:
    """A file or folder."""

    number: int
    mode: int
    uid: int
    changed: int  # unix seconds
    data: bytearray = field(default_factory=bytearray)
    names: dict[bytes, "Node"] = field(default_factory=dict)


class QuotaServer:
    """Answers the kernel's requests, one after the other."""

    def __init__(self, device: int, quota: int) -> None:
        self._device, self._left = device, quota
        self._nodes = {ROOT: Node(ROOT, stat.S_IFDIR | 0o777, 0, int(time.time()))}
        self._numbers = itertools.count(ROOT + 1)

    def serve(self) -> None:
        """Answer until the filesystem is unmounted."""
        while True:
            try:
                request = os.read(self._device, (1 << 20) + 4096)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR):
                    continue
                return
            _, opcode, unique, number, uid, *_ = HEAD.unpack_from(request)
            if opcode in SILENT:
                continue
            try:
                self._send(unique, self._answer(opcode, number, uid, request[HEAD.size :]))
            except RefusedError as refused:
                self._send(unique, b"", refused.args[0])

    def _answer(self, opcode: int, number: int, uid: int, body: bytes) -> bytes:
        node = self._nodes.get(number) or self._nodes[ROOT]
        if opcode == INIT:
            return init_answer()
        if opcode in (OPEN, OPENDIR):
            return struct.pack("<Q2I", number, 0, 0)
        if opcode == STATFS:
            return struct.pack("<5Q10I", ROOM, ROOM - 9, ROOM - 9, 1 << 20, 1 << 19, 4096, 255, 4096, *[0] * 7)  # fmt: skip
        if opcode in (LOOKUP, UNLINK, RMDIR):
            return self._named(opcode, node, body.rstrip(b"\0"))
        if opcode in (GETATTR, SETATTR):
            return self._attributes(node, body if opcode == SETATTR else b"")
        if opcode == MKDIR:
            return self._entry(self._make(node, body[8:].rstrip(b"\0"), stat.S_IFDIR | 0o777, uid))
        if opcode == CREATE:
            made = self._make(node, body[16:].rstrip(b"\0"), stat.S_IFREG | 0o666, uid)
            return self._entry(made) + struct.pack("<Q2I", made.number, 0, 0)
        if opcode in (READ, READDIR):
            _, offset, size = struct.unpack_from("<2QI", body)
            return self._listed(node, offset, size) if opcode == READDIR else bytes(node.data[offset : offset + size])  # fmt: skip
        if opcode == WRITE:
            return self._written(node, body)
        if opcode in DONE:
            return b""
        raise RefusedError(errno.ENOSYS)

    def _named(self, opcode: int, folder: Node, name: bytes) -> bytes:
        if name not in folder.names:
            raise RefusedError(errno.ENOENT)
        if opcode == LOOKUP:
            return self._entry(folder.names[name])
        self._left += len(folder.names.pop(name).data)
        return b""

    def _make(self, folder: Node, name: bytes, mode: int, uid: int) -> Node:
        made = Node(next(self._numbers), mode, uid, int(time.time()))
        self._nodes[made.number] = folder.names[name] = made
        return made

    def _written(self, node: Node, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<2QI", body)
        more = max(0, offset + size - len(node.data))
        if more > self._left:
            raise RefusedError(errno.EDQUOT)
        self._left -= more
        node.changed = int(time.time())
        node.data.extend(bytes(more))
        node.data[offset : offset + size] = body[40 : 40 + size]
        return struct.pack("<2I", size, 0)

    def _attributes(self, node: Node, wanted: bytes) -> bytes:
        if wanted and struct.unpack_from("<I", wanted)[0] & SIZE_SET:
            (size,) = struct.unpack_from("<Q", wanted, 16)
            self._left += len(node.data) - size
            node.data = node.data[:size].ljust(size, b"\0")
        return struct.pack("<Q2I", 0, 0, 0) + self._inode(node)

    def _entry(self, node: Node) -> bytes:
        return struct.pack("<4Q2I", node.number, 0, 0, 0, 0, 0) + self._inode(node)

    def _inode(self, node: Node) -> bytes:
        size = len(node.data)
        return struct.pack("<6Q10I", node.number, size, size // 512, *[node.changed] * 3, 0, 0, 0, node.mode, 1, node.uid, 0, 0, 4096, 0)  # fmt: skip

    def _listed(self, folder: Node, offset: int, size: int) -> bytes:
        found = b""
        for place, (name, node) in enumerate(folder.names.items()):
            entry = struct.pack("<2Q2I", node.number, place + 1, len(name), node.mode >> 12) + name
            entry = entry.ljust((len(entry) + 7) // 8 * 8, b"\0")
            if place >= offset and len(found) + len(entry) <= size:
                found += entry
        return found

    def _send(self, unique: int, body: bytes, error: int = 0) -> None:
        try:
            os.write(self._device, struct.pack("<IiQ", 16 + len(body), -error, unique) + body)
        except OSError:  # who asked has been interrupted, or it is unmounted
            return


@contextmanager
def quota_fuse(folder: Path, quota: int) -> Iterator[Path]:
    """The mounted filesystem, which takes so many bytes."""
    target = folder / "home"
    target.mkdir()
    with mounted_by(Path(__file__), target, str(quota)):
        yield target


if __name__ == "__main__":
    QuotaServer(mount(sys.argv[1], "server:/home", "fuse.quota"), int(sys.argv[2])).serve()
