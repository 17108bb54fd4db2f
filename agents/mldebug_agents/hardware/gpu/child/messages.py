"""What the agent and its GPU reader say to each other over one stream socket: a size, then that many bytes of JSON."""

import socket
import struct
from typing import Literal

import msgspec

from mldebug.hardware.gpu.hands_off import HandsOff
from mldebug.hardware.gpu.readings import NodeGpus, NodeWatch

NAME = "gpus"  # of the worker that the process starter forks
SIZE = struct.Struct("<I")
MAX_BODY = 64 << 20

Wanted = Literal["watch", "full"]


class GpuRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Read something, by the plugin of that vendor; `options` are its settings as JSON."""

    number: int
    wanted: Wanted
    vendor: str
    options: msgspec.Raw = msgspec.Raw(b"{}")
    hands_off: tuple[HandsOff, ...] = ()  # touch none of these


class GpuReply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of the request of that number: a reading, or why there is none."""

    number: int
    watch: NodeWatch | None = None
    full: NodeGpus | None = None
    trouble: Literal["", "no_library", "driver_gone", "broken"] = ""
    reason: str = ""


def send(link: socket.socket, message: GpuRequest | GpuReply) -> None:
    """Send one message; raises OSError."""
    body = msgspec.json.encode(message)
    link.sendall(SIZE.pack(len(body)) + body)


class GpuMessageReader:
    """Takes messages off a socket. What has come of one when the time is over is kept for the next try."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._data = bytearray()

    def receive(self) -> bytes:
        """Receive one body; raises OSError: TimeoutError by the socket's own timeout, ConnectionError at its end."""
        self._fill(SIZE.size)
        (size,) = SIZE.unpack_from(self._data)
        if size > MAX_BODY:
            raise ConnectionError("a message without end")
        self._fill(SIZE.size + size)
        body = bytes(self._data[SIZE.size : SIZE.size + size])
        del self._data[: SIZE.size + size]
        return body

    def _fill(self, size: int) -> None:
        while len(self._data) < size:
            chunk = self._link.recv(1 << 18)
            if not chunk:
                raise ConnectionError("it hung up")
            self._data += chunk
