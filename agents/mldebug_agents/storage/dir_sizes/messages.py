"""What the agent and the child that counts trees say to each other: a size, then that many bytes of JSON."""

import socket
import struct
from collections.abc import Iterator

import msgspec

from mldebug.storage.dir_sizes import TreeState

NAME = "trees"  # of the worker that the process starter forks
SIZE = struct.Struct("<I")
MAX_BODY = 1 << 20


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """One directory to keep; seconds between two counts where events do not tell, and where they do."""

    path: str
    root: str = ""  # below which the node's own files lie, and inside which links resolve
    rescan: float = 600.0
    verify: float = 6 * 3600.0
    max_inodes: int = 20_000_000


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """All of them: the first and only message to the child."""

    orders: tuple[Order, ...]


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """About the tree of that number: the child begins to work on it (None), or what it knows after that."""

    number: int
    state: TreeState | None = None


def send(link: socket.socket, message: Orders | Told) -> None:
    """Send one message; raises OSError."""
    body = msgspec.json.encode(message)
    link.sendall(SIZE.pack(len(body)) + body)


class Incoming:
    """Takes messages off a socket; what has come of one is kept until the rest is there."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._data = bytearray()

    def bodies(self) -> Iterator[bytes]:
        """All whole ones that are there. On a socket that does not wait; raises ConnectionError at its end."""
        ended = False
        try:
            while chunk := self._link.recv(1 << 16):
                self._data += chunk
            ended = True
        except BlockingIOError:
            pass
        while (body := self._take()) is not None:
            yield body
        if ended:
            raise ConnectionError("it hung up")

    def wait(self) -> bytes:
        """The next one; raises ConnectionError at the end."""
        while (body := self._take()) is None:
            chunk = self._link.recv(1 << 16)
            if not chunk:
                raise ConnectionError("it hung up")
            self._data += chunk
        return body

    def _take(self) -> bytes | None:
        if len(self._data) < SIZE.size:
            return None
        (size,) = SIZE.unpack_from(self._data)
        if size > MAX_BODY:
            raise ConnectionError("a message without end")
        if len(self._data) < SIZE.size + size:
            return None
        body = bytes(self._data[SIZE.size : SIZE.size + size])
        del self._data[: SIZE.size + size]
        return body
