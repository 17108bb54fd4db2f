"""Parses an HTTP answer that arrives in pieces; the caller does the reading. Pure."""

import re

from mldebug_agents.cluster.peers.net.errors import CutError, RefusedError, StalledRunError

MAX_HEAD = 16 << 10  # bytes
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})[ \r]", re.ASCII)
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,12})[ \t]*\r\n", re.IGNORECASE)
_CODED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
_END = b"\r\n\r\n"


def head(host: str, path: str, length: int) -> bytes:
    """The head of a POST request with a body of `length` bytes."""
    named = f"[{host}]" if ":" in host else host
    lines = f"POST {path} HTTP/1.1\r\nHost: {named}\r\nContent-Length: {length}\r\n\r\n"
    return lines.encode("ascii", errors="replace")


class HttpAnswer:
    """Parses an HTTP answer that arrives in pieces. `most`: bytes that its body may have."""

    def __init__(self, most: int) -> None:
        self.status = 0
        self._most = most
        self._got = bytearray()  # head and body until the head is read; then the body
        self._length: int | None = None  # of the body; None: until they hang up

    @property
    def begun(self) -> bool:
        """Whether any byte of the answer has arrived."""
        return bool(self._got or self.status)

    def feed(self, data: bytes) -> bool:
        """Add the bytes that arrived, b"" for the end of the connection. Returns whether the answer is complete.

        Raises RefusedError where the body is larger than `most` or this is no answer of an agent, CutError where it ends too early.
        """
        if data and not self._got and not self.status and not b"HTTP/1.".startswith(data[:7]):
            raise _strange()
        self._got += data
        if not self.status:
            self._read_head()
        if self.status and self._too_large():
            raise RefusedError(f"its answer is larger than {self._most >> 10} KiB")
        if not data and not self._ended():
            raise CutError("it hung up in the middle of its answer" if self._got else "it hung up")
        return bool(self.status) and (not data or len(self._got) == self._length)

    def body(self) -> bytes:
        """The body of a complete answer, once. Where its status is not 200, RefusedError (for 423 StalledRunError) with the beginning of the body as message."""
        body = bytes(self._got)
        self._got.clear()  # an answer with traces has tens of MiB
        if self.status != 200:
            words = body[:300].decode(errors="replace")
            kind = StalledRunError if self.status == 423 else RefusedError
            raise kind(words or f"status {self.status}")
        return body

    def _read_head(self) -> None:
        end = self._got.find(_END)
        if end < 0 and len(self._got) <= MAX_HEAD:
            return
        head = bytes(self._got[: end + 2])
        status, length = _STATUS.match(head), _LENGTH.search(head)
        if end < 0 or status is None or _CODED.search(head):
            raise _strange()
        self.status = int(status[1])
        self._length = int(length[1]) if length else None
        del self._got[: end + len(_END)]

    def _too_large(self) -> bool:
        return max(len(self._got), self._length or 0) > self._most

    def _ended(self) -> bool:
        """May it end here?"""
        return bool(self.status) and self._length in (None, len(self._got))


def _strange() -> RefusedError:
    return RefusedError("it does not answer as an agent does")
