"""One conversation with NCCL RAS over a plain socket (`src/ras/client.cc`), bounded in time and size.

connect                     (a process that is stopped still accepts: then another try meets another process)
-> CLIENT PROTOCOL 2        <- SERVER PROTOCOL 2
-> TIMEOUT 1                <- OK
-> SET FORMAT json          <- OK, or before NCCL 2.28.7: ERROR: Unknown command …
-> STATUS, VERBOSE STATUS   <- the answer, up to the end of the connection
"""

import re
import socket
import time
from collections.abc import Callable

from mldebug_agents.jobs.ranks.ras_address import RasAddress

PROTOCOL = 2  # since NCCL 2.24
HANDSHAKE = 1.0  # seconds for one line
COLLECT = 1  # seconds that RAS may wait for one process
MAX_LINE = 4096
CHUNK = 1 << 16
_SERVER = re.compile(rb"SERVER PROTOCOL (\d{1,6})\s*", re.IGNORECASE)


class RasConnectionError(Exception):
    """RAS gave no answer; the message says why.

    `again`: another try may meet another process of the job, which may answer. `silent`: nothing listens at that address.
    """

    def __init__(self, why: str, *, again: bool = False, silent: bool = False) -> None:
        super().__init__(why)
        self.again, self.silent = again, silent


class RasConnection:
    """One TCP connection to NCCL RAS. `deadline`: time.monotonic() when all of it must be over. Raises `RasConnectionError`."""

    def __init__(self, place: RasAddress, deadline: float) -> None:
        self._deadline = deadline
        self._rest = b""
        timeout = min(HANDSHAKE, self._left())
        try:
            self.link = socket.create_connection(place, timeout=timeout)
        except ConnectionRefusedError:
            why = f"nobody listens at {place.host} port {place.port}"
            raise RasConnectionError(why, silent=True) from None
        except TimeoutError:
            raise RasConnectionError("no connection in time", again=True) from None
        except OSError as error:
            raise RasConnectionError(
                f"no connection: {(error.strerror or str(error)).lower()}"
            ) from None

    def ask(self, max_bytes: int, check: Callable[[socket.socket], None]) -> bytes:
        """Ask RAS for its status and return the raw answer: JSON since NCCL 2.28.7, text before. Closes the connection.

        `check` is called with the socket before the status is asked for; it verifies which process is connected, and what it raises
        passes through. Raises `RasConnectionError`, also for an answer of more than `max_bytes`.
        """
        try:
            self._send_hello()
            check(self.link)
            self._command(f"TIMEOUT {COLLECT}")
            json = self._command("SET FORMAT json")
            self._send("STATUS" if json else "VERBOSE STATUS")
            return self._answer(max_bytes)
        except TimeoutError:
            raise RasConnectionError("no answer in time", again=True) from None
        except ConnectionError:
            raise RasConnectionError("it hung up", again=True) from None
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise RasConnectionError(f"it broke off: {why}", again=True) from None
        finally:
            self.link.close()

    def _send_hello(self) -> None:
        self._send(f"CLIENT PROTOCOL {PROTOCOL}")
        line = self._line()
        match = _SERVER.fullmatch(line)
        if match is None:
            raise RasConnectionError("what answers there is not NCCL RAS")
        if int(match[1]) < PROTOCOL:
            raise RasConnectionError(f"it speaks protocol {int(match[1])}, of an NCCL before 2.24")

    def _command(self, text: str) -> bool:
        """Whether it obeys."""
        self._send(text)
        line = self._line().strip().upper()
        if line != b"OK" and not line.startswith(b"ERROR"):
            raise RasConnectionError("what answers there is not NCCL RAS")
        return line == b"OK"

    def _send(self, text: str) -> None:
        self.link.settimeout(min(HANDSHAKE, self._left()))
        self.link.sendall(f"{text}\n".encode())

    def _line(self) -> bytes:
        """One line, within a second: one that sends a byte now and then gets no more time."""
        until = min(self._deadline, time.monotonic() + HANDSHAKE)
        while b"\n" not in self._rest:
            if len(self._rest) > MAX_LINE:
                raise RasConnectionError("what answers there is not NCCL RAS")
            self._rest += self._receive(until) or self._hung_up()
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _hung_up(self) -> bytes:
        raise RasConnectionError("it hung up", again=True)

    def _answer(self, max_bytes: int) -> bytes:
        parts, size = [self._rest], len(self._rest)
        while chunk := self._receive(self._deadline):
            parts.append(chunk)
            size += len(chunk)
            if size > max_bytes:
                raise RasConnectionError(f"its answer has more than {max_bytes >> 20} MiB")
        return b"".join(parts)

    def _receive(self, until: float) -> bytes:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.link.settimeout(left)
        return self.link.recv(CHUNK)

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise RasConnectionError("no answer in time")
        return left
