"""Meets the other nodes of a job before it starts, as its ranks would: at the rendezvous, then at ports of the nodes themselves.

Every node listens at a port of its own, comes to the rendezvous with its name and that port, gets the list of all who came, and then
connects to some of them (`mldebug.probes.preflight.rendezvous.tries`). All within `MEETING_SECONDS`; nothing listens afterwards. What strangers
send is read up to a limit, and answered by nothing.
"""

import asyncio
import errno
import ipaddress
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import msgspec
import psutil

from mldebug.core.redact import clean
from mldebug.probes.preflight.rendezvous import (
    LATE,
    STRANGER,
    Endpoint,
    MeetingNode,
    MeetingResult,
    busy_words,
    listed,
    never_met,
    own_everywhere,
)

MEETING_SECONDS = 25.0  # nodes start their checks some seconds apart
CONNECT_SECONDS = 5.0  # a connection between two nodes; the second try of a lost packet comes after one second, the third after three
LINGER_SECONDS = 2 * CONNECT_SECONDS  # for which a node that has tried all others still answers
AGAIN_SECONDS = 0.25
MOST_NODES = 4096
LINE_BYTES = 1 << 10
LIST_BYTES = 1 << 20

T = TypeVar("T")


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a connection. `token`: of this meeting; `port`: where the sender listens itself, 0: it only tries whether it comes through."""

    token: str
    node: str
    port: int = 0


class NodeMeeting:
    """One meeting as this node takes part in it. `nodes`: how many are to come; `token`: what their greetings bear; `seconds`: for all."""

    def __init__(self, where: Endpoint, node: str, nodes: int, token: str, seconds: float = MEETING_SECONDS) -> None:  # fmt: skip
        self._where, self._node, self._nodes, self._token = (
            where,
            node,
            min(nodes, MOST_NODES),
            token,
        )
        self._deadline = time.monotonic() + seconds
        self._came: list[MeetingNode] = []
        self._visitors: set[str] = set()
        self._complete = asyncio.Event()
        self._greeted: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def take_part(self) -> MeetingResult:
        """Meet the others, and say whom this node could not reach."""
        try:
            addresses = await self._addresses()
        except OSError as error:
            return MeetingResult(wrong=f"is not known here: {error.strerror or error}")
        if self._nodes > 1 and self._where.host in ("localhost", *_loopback([self._where.host])):
            return MeetingResult(wrong=own_everywhere(self._nodes))
        if _is_own(addresses):
            return await self._receive()
        return await self._visit(addresses[0])

    async def _addresses(self) -> list[str]:
        loop = asyncio.get_running_loop()
        found = loop.getaddrinfo(self._where.host, self._where.port, type=socket.SOCK_STREAM)
        try:
            return [str(one[4][0]) for one in await self._in_time(found)]
        except TimeoutError:
            raise OSError(errno.ETIMEDOUT, "no answer to the question for its address") from None

    async def _receive(self) -> MeetingResult:
        """Be the one to whom all others come."""
        try:
            socket_of_all = listener(self._where.port)
        except OSError as error:
            busy = error.errno == errno.EADDRINUSE
            return MeetingResult(own=True, wrong=busy_words(holder_of(self._where.port)) if busy else f"cannot be used: {error.strerror}")  # fmt: skip
        async with self._answering(socket_of_all):
            if self._nodes <= 1:
                return MeetingResult(own=True, came=1)
            async with self._answering(listener(0)) as own:
                self._add(MeetingNode(name=self._node, address="", port=_port(own)))
                with suppress(TimeoutError):
                    await self._in_time(self._complete.wait())
                self._complete.set()
                return msgspec.structs.replace(await self._try_others(_port(own)), own=True)

    async def _visit(self, address: str) -> MeetingResult:
        """Come to the node at which all meet."""
        if self._nodes <= 1:
            reason = await _try_once(address, self._where.port)
            fine = reason in (
                0,
                errno.ECONNREFUSED,
            )  # that nobody listens there yet is as it should be
            return MeetingResult(wrong="" if fine else never_met(reason, self._where.host))
        async with self._answering(listener(0)) as own:
            hello = Hello(token=self._token, node=self._node, port=_port(own))
            reason = errno.ECONNREFUSED
            while reason == errno.ECONNREFUSED and time.monotonic() < self._deadline:
                reason, line = await self._say(address, self._where.port, hello, self._left() + LINGER_SECONDS, limit=LIST_BYTES)  # fmt: skip
                if not reason and not self._take_list(line, address):
                    reason = STRANGER
                await asyncio.sleep(AGAIN_SECONDS if reason else 0)
            if reason:
                return MeetingResult(wrong=never_met(reason, self._where.host))
            return await self._try_others(_port(own))

    def _take_list(self, line: bytes, address: str) -> bool:
        """Keep the list of who came; the node of the rendezvous itself stands in it without an address."""
        try:
            came = msgspec.json.decode(line, type=list[MeetingNode])
        except msgspec.DecodeError:
            return False
        self._came = [one if one.address else msgspec.structs.replace(one, address=address) for one in came[:MOST_NODES]]  # fmt: skip
        return True

    async def _try_others(self, port: int) -> MeetingResult:
        """Connect to the others, and answer those who connect to this node."""
        chosen = listed(self._came, self._node, port)
        hello = Hello(token=self._token, node=self._node)
        answers = await asyncio.gather(
            *(self._say(one.address, one.port, hello, CONNECT_SECONDS) for one in chosen)
        )
        failed = {
            clean(one.name, 80): reason or STRANGER
            for one, (reason, line) in zip(chosen, answers, strict=True)
            if reason or line.strip() != one.name.encode()
        }
        with suppress(TimeoutError):
            await asyncio.wait_for(self._all_have_tried(), LINGER_SECONDS)
        return MeetingResult(came=len(self._came), tried=len(chosen) - len(failed), failed=failed)

    async def _all_have_tried(self) -> None:
        """Return when all who try this node have come."""
        names = [one.name for one in self._came]
        coming = {one.name for one in self._came if self._node in (other.name for other in listed(self._came, one.name, one.port))} if len(set(names)) == len(names) else set(names)  # fmt: skip
        while coming - self._visitors - {self._node}:
            await asyncio.sleep(0.05)

    @asynccontextmanager
    async def _answering(self, place: socket.socket) -> AsyncIterator[asyncio.Server]:
        """A context in which who comes to this socket is answered. Whoever is connected still at its end is hung up on."""
        server = await asyncio.start_server(self._receive_one, sock=place, limit=LINE_BYTES)
        try:
            yield server
        finally:
            server.close()
            await asyncio.sleep(0)  # who has come at the last moment is known after it
            for writer in self._greeted.values():
                writer.close()
            await server.wait_closed()

    def _receive_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._greet(reader, writer))
        self._greeted[task] = writer
        task.add_done_callback(self._greeted.pop)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection: with the list of all once they have come, or with this node's name to one that tries the way here."""
        with suppress(OSError, TimeoutError, ValueError, asyncio.LimitOverrunError):
            line = await asyncio.wait_for(reader.readline(), CONNECT_SECONDS)
            hello = msgspec.json.decode(line, type=Hello)
            if hello.token == self._token:
                writer.write(await self._answer(hello, str(writer.get_extra_info("peername")[0])))
                await writer.drain()
        writer.close()

    async def _answer(self, hello: Hello, address: str) -> bytes:
        if not hello.port:
            self._visitors.add(hello.node)
            return f"{self._node}\n".encode()
        self._add(MeetingNode(name=hello.node, address=address.removeprefix("::ffff:"), port=hello.port))  # fmt: skip
        await self._complete.wait()  # of which the one who receives has the deadline
        return msgspec.json.encode(self._came) + b"\n"

    def _add(self, one: MeetingNode) -> None:
        if not self._complete.is_set() and len(self._came) < self._nodes:
            self._came.append(one)
        if len(self._came) >= self._nodes:
            self._complete.set()

    async def _say(self, address: str, port: int, hello: Hello, seconds: float, limit: int = LINE_BYTES) -> tuple[int, bytes]:  # fmt: skip
        """Send a greeting, and return the line that comes back. The first number is an errno or `LATE`, 0 where all went well. `seconds`: for
        the answer, once the connection stands.
        """
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection(address, port, limit=limit), CONNECT_SECONDS)  # fmt: skip
        except TimeoutError:
            return LATE, b""
        except OSError as error:
            return error.errno or errno.EIO, b""
        try:
            writer.write(msgspec.json.encode(hello) + b"\n")
            return 0, await asyncio.wait_for(reader.readline(), seconds + AGAIN_SECONDS)
        except TimeoutError:
            return LATE, b""
        except (OSError, ValueError):
            return STRANGER, b""
        finally:
            writer.close()

    def _left(self) -> float:
        return max(0.1, self._deadline - time.monotonic())

    async def _in_time(self, what: Awaitable[T]) -> T:
        return await asyncio.wait_for(what, self._left())


class MeetingThread(threading.Thread):
    """Takes part in a meeting beside the other checks of a node. A question for an address that hangs holds up nobody: the thread is left."""

    def __init__(self, where: Endpoint, node: str, nodes: int, token: str, seconds: float = MEETING_SECONDS) -> None:  # fmt: skip
        super().__init__(name="rendezvous", daemon=True)
        self._arguments = (where, node, nodes, token, seconds)
        self._longest = seconds + 2 * CONNECT_SECONDS + LINGER_SECONDS
        self._result = MeetingResult(wrong="could not be tried: its address was asked for in vain")

    def run(self) -> None:
        """Meet the other nodes, and keep what came of it."""

        async def meet() -> None:
            self._result = await NodeMeeting(*self._arguments).take_part()

        try:
            asyncio.run(meet())
        except OSError as error:
            self._result = MeetingResult(wrong=f"could not be tried: {error.strerror or error}")

    def result(self) -> MeetingResult:
        """Which nodes reach the rendezvous address and each other. Waits until the test is over."""
        self.join(self._longest)
        return self._result


def listener(port: int) -> socket.socket:
    """A socket that listens at all addresses of this node, as PyTorch's store does; 0: at any free port. Raises OSError."""
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):  # noqa: S104 - for as long as the nodes meet
        try:
            place = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # without IPv6
        try:
            place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                place.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            place.bind((address, port))
            place.listen(1024)
        except OSError as error:
            place.close()
            if error.errno == errno.EADDRNOTAVAIL and family == socket.AF_INET6:
                continue
            raise
        return place
    raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))


def holder_of(port: int) -> str:
    """Who listens at a port of this node: `python3 (process 812)`; "" where this user may not see it."""
    with suppress(psutil.Error, OSError):
        for one in psutil.net_connections("tcp"):
            if one.status == psutil.CONN_LISTEN and one.laddr and one.laddr.port == port and one.pid:  # fmt: skip
                return f"{clean(psutil.Process(one.pid).name(), 40)} (process {one.pid})"
    return ""


def _is_own(addresses: Iterable[str]) -> bool:
    """Whether one of these addresses is this node's: an address of another node cannot be bound."""
    for address in addresses:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as trial:
            trial.bind((address, 0))
            return True
    return False


def _loopback(hosts: Iterable[str]) -> list[str]:
    """Those that are addresses of the loopback interface."""
    found = []
    for one in hosts:
        with suppress(ValueError):
            if ipaddress.ip_address(one).is_loopback:
                found.append(one)
    return found


async def _try_once(address: str, port: int) -> int:
    """0 where something listens there, else the errno or `LATE`."""
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(address, port), CONNECT_SECONDS)
    except TimeoutError:
        return LATE
    except OSError as error:
        return error.errno or errno.EIO
    writer.close()
    return 0


def _port(place: asyncio.Server) -> int:
    return int(place.sockets[0].getsockname()[1])
