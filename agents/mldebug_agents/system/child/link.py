"""The stream socket between the agent and one of its children, as both ends use it: whole messages of known types.

A message is `HEAD` (bytes of its body, and whether a file descriptor comes along), the body (a struct as msgpack) and, where
announced, one byte that carries the descriptor. Both ends were forked from one agent, so they are always of one version.
"""

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

import msgspec

from mldebug_agents.system.child.worker import ForkedWorker

HEAD = struct.Struct("<Q?")
MAX_BODY = 16 << 20  # bytes of one message, unless a link allows more or less
HUNG_UP = "it hung up"
_CHUNK = 1 << 20
T = TypeVar("T")


class WorkerStarter(Protocol):
    """The part of `Spawner` that forks child processes which run a function of mldebug."""

    def fork_worker(self, name: str, leave: float = 0.0) -> ForkedWorker:
        """Fork a child that runs the function registered under this name. `leave`: seconds that it has to take back what it has begun after
        this process has ended. Raises OSError where that is not possible.
        """
        ...


class ChildLink(Generic[T]):
    """One end of a connection to a child; `decoder` decodes the messages that arrive. A call waits
    for as long as the socket's timeout.

    All methods raise OSError: TimeoutError when time is over, ConnectionError when the other end is
    gone (with `gone` as its text), sends more than `max_body` bytes, or sends what the decoder does
    not know.
    """

    def __init__(
        self,
        connection: socket.socket,
        decoder: msgspec.msgpack.Decoder[T],
        *,
        max_body: int = MAX_BODY,
        gone: str = HUNG_UP,
    ) -> None:
        self._connection = connection
        self._decoder = decoder
        self._encoder = msgspec.msgpack.Encoder()
        self._max_body, self._gone = max_body, gone
        self._data = bytearray()  # what has come of a message that is not whole yet

    def send(self, message: msgspec.Struct, descriptor: int | None = None) -> None:
        """Send one message to the other end, with a file descriptor where one is given."""
        data = bytearray(HEAD.size)
        self._encoder.encode_into(message, data, HEAD.size)
        HEAD.pack_into(data, 0, len(data) - HEAD.size, descriptor is not None)
        self._connection.sendall(data)
        if descriptor is not None:
            socket.send_fds(self._connection, [b"+"], [descriptor])

    def receive(self) -> T:
        """Wait for one message.

        A part that has arrived when time is over is kept for the next call; a descriptor that comes
        with it is closed.
        """
        message, descriptor = self.receive_with_descriptor()
        if descriptor is not None:
            os.close(descriptor)
        return message

    def receive_with_descriptor(self) -> tuple[T, int | None]:
        """Wait for one message and the file descriptor sent with it (None without one), which the caller has to close.
        Raises ConnectionError where the other end is gone or the message cannot be decoded.
        """
        # never more than belongs to the message: a descriptor is lost where its byte is read without it
        while missing := self._missing():
            part = self._connection.recv(min(missing, _CHUNK))
            if not part:
                raise ConnectionError(self._gone)
            self._data += part
        _, carries = HEAD.unpack_from(self._data)
        descriptors = socket.recv_fds(self._connection, 1, 1)[1] if carries else []
        body, self._data = memoryview(self._data)[HEAD.size :], bytearray()
        try:
            return self._decoder.decode(body), descriptors[0] if descriptors else None
        except msgspec.MsgspecError as error:
            raise ConnectionError(f"a message makes no sense: {error}") from None

    def arrived(self) -> Iterator[T]:
        """All complete messages that have arrived, on a non-blocking socket."""
        with contextlib.suppress(BlockingIOError):
            while True:
                yield self.receive()

    def _missing(self) -> int:
        """Bytes until the message is whole, as far as is known."""
        if len(self._data) < HEAD.size:
            return HEAD.size - len(self._data)
        size, _ = HEAD.unpack_from(self._data)
        if size > self._max_body:
            raise ConnectionError("a message without end")
        return HEAD.size + int(size) - len(self._data)


def ask_once(
    worker: ForkedWorker,
    message: msgspec.Struct,
    decoder: msgspec.msgpack.Decoder[T],
    timeout: float,
    *,
    max_body: int = MAX_BODY,
) -> T:
    """Send one message to a newly forked child, return its answer, and kill the child. Raises
    OSError as `ChildLink` does.

    `timeout`: seconds that may pass without any byte from the child; `max_body`: bytes of its answer.
    """
    try:
        worker.socket.settimeout(timeout)
        link = ChildLink(worker.socket, decoder, max_body=max_body)
        link.send(message)
        return link.receive()
    finally:
        worker.kill()
