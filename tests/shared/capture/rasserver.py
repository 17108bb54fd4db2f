"""NCCL RAS as NCCL serves it, on real sockets: its conversation, recorded answers, and what may go wrong with it."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

H200 = Path(__file__).parents[2] / "fixtures" / "h200"
HOST = "192.0.2.2"  # of the recordings

HOLDS = """
import os, socket, threading
def hold():
    while socket.recv_fds(link, 1, 1)[1]:
        link.sendall(b".")
link = socket.socket(socket.AF_UNIX)
link.connect("\\0ras" + os.environ["NCCL_RAS_ADDR"].rpartition(":")[2])
threading.Thread(target=hold, daemon=True).start()
"""  # of a process for which a server answers: it gets every connection as well, as if it had accepted it

Serve = Callable[["Client"], None]


class Client:
    """One connection, as the server sees it."""

    def __init__(self, link: socket.socket, server: "RasServer") -> None:
        self.link = link
        self.server = server
        self._rest = b""

    def line(self) -> str:
        """The next command; "" once the other side has hung up."""
        while b"\n" not in self._rest:
            more = self.link.recv(4096)
            if not more:
                return ""
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        self.server.messages.append(line.decode())
        return line.decode()

    def say(self, text: str | bytes) -> None:
        """Send it."""
        self.link.sendall(text.encode() if isinstance(text, str) else text)


def is_foreign(link: socket.socket) -> bool:
    """Has somebody connected who is none of ours? An agent of another test on this node asks whatever serves RAS, too.

    Who has hung up before this could look is nobody's, thus not ours either.
    """
    peer = _plain(link.getpeername())
    holders = {
        one.pid for one in psutil.net_connections("tcp") if one.laddr and _plain(one.laddr) == peer
    }
    return holders.isdisjoint(_ours())


def _plain(address: tuple[Any, ...]) -> tuple[str, int]:
    """Host and port; an IPv4 host is the same whether a socket of IPv6 has it or not."""
    return str(address[0]).removeprefix("::ffff:"), int(address[1])


def _ours() -> set[int]:
    me = psutil.Process()
    return {me.pid, *(one.pid for one in me.children(recursive=True))}


class RasServer:
    """Listens at a port of its own choice. `serve` treats one connection; `heard` are all commands in order."""

    def __init__(
        self, serve: Serve, host: str = "127.0.0.1", port: int = 0, *, alone: bool = False
    ) -> None:
        self.serve = serve
        self._alone = alone  # in a network of its own: whoever comes is meant
        self.messages: list[str] = []
        self.connections = 0
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._door = socket.socket(family, socket.SOCK_STREAM)
        self._door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._door.bind((host, port))
        self._door.listen(64)
        self.port: int = self._door.getsockname()[1]
        self.address = f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"
        self._meets = socket.socket(socket.AF_UNIX)
        self._meets.bind(f"\0ras{self.port}")
        self._meets.listen()
        self._holder: socket.socket | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def speak_for(self) -> None:
        """Wait for a process that runs `HOLDS`: from now on it is the one that answers, as far as the kernel tells."""
        self._meets.settimeout(60)
        self._holder, _ = self._meets.accept()

    def close(self) -> None:
        """Listen no more."""
        self._door.shutdown(socket.SHUT_RDWR)
        for one in (self._door, self._meets, self._holder):
            if one is not None:
                one.close()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._door.accept()
            except OSError:
                return
            if not self._alone and is_foreign(link):
                link.close()
                continue
            self.connections += 1
            threading.Thread(target=self._treat, args=(link,), daemon=True).start()

    def _treat(self, link: socket.socket) -> None:
        with link, suppress(OSError):
            self._hand_over(link)
            self.serve(Client(link, self))
            if self._holder is not None:
                link.shutdown(socket.SHUT_RDWR)  # the holder has it open still

    def _hand_over(self, link: socket.socket) -> None:
        if self._holder is not None:
            socket.send_fds(self._holder, [b"."], [link.fileno()])
            self._holder.recv(1)


@contextmanager
def serving(serve: Serve, **where: Any) -> Iterator[RasServer]:
    """A server for a while."""
    server = RasServer(serve, **where)
    try:
        yield server
    finally:
        server.close()


# --- answers -------------------------------------------------------------------------------------


def recorded(name: str) -> list[tuple[float, str]]:
    """(time, answer or error) of every question in a one-second recording."""
    rows = [
        json.loads(line) for line in (H200 / "signals" / f"{name}.jsonl").read_text().splitlines()
    ]
    return [(row["t"], row["ras"]) for row in rows if row.get("ras")]


def recorded_text(name: str) -> list[str]:
    """The answers in text of `hang-NAME`; the file holds two, each after the server's first line as a Python literal."""
    text = (H200 / f"hang-{name}" / "nccl-ras.txt").read_text()
    return text.split("b'SERVER PROTOCOL 2\\n'\n")[1:]


def answer(
    counts: dict[int, dict[str, int]],
    *,
    pids: dict[int, int] | None = None,
    host: str = "127.0.0.1",
    size: int | None = None,
    missing: dict[int, dict[str, bool]] | None = None,
    key: str = "0x1",
) -> dict[str, Any]:
    """One communicator in NCCL's JSON: rank -> its counts, rank -> how it is missing; the pid of rank n is 100 + n."""
    pids = pids or {}
    place = {"cuda_dev": 0, "nvml_dev": 0, "host": host}
    ranks = [
        {"rank": n, "pid": pids.get(n, 100 + n), **place, "collective_counts": value}
        for n, value in counts.items()
    ]
    gone = [
        {"rank": n, "pid": pids.get(n, 100 + n), **place, "status": item}
        for n, item in (missing or {}).items()
    ]
    one = {"hash": key, "secondary_hash": "0x2:0x3", "size": size or len(ranks) + len(gone)}
    return {
        "nccl_version": "2.29.2",
        "communicators": [{**one, "ranks": ranks, "missing_ranks": gone}],
    }


# --- ways to serve -------------------------------------------------------------------------------


def speaks(json_answer: str | None, text_answer: str = "", protocol: int = 2) -> Serve:
    """As NCCL does; without `json_answer`, as before 2.28.7."""

    def serve(client: Client) -> None:
        json_wanted = False
        while command := client.line():
            if command.startswith("CLIENT PROTOCOL"):
                client.say(f"SERVER PROTOCOL {protocol}\n")
            elif command == "SET FORMAT json" and json_answer is not None:
                json_wanted = True
                client.say("OK\n")
            elif command.startswith("TIMEOUT"):
                client.say("OK\n")
            elif command in ("STATUS", "VERBOSE STATUS"):
                client.say((json_answer or "") if json_wanted else text_answer)
                return
            else:
                client.say(f"ERROR: Unknown command {command}\n")

    return serve


def says(value: Any) -> Serve:
    """This answer, in JSON."""
    return speaks(value if isinstance(value, str) else json.dumps(value, indent=2))


def silent(client: Client) -> None:
    """Accepts, as a stopped process does, and never says a word."""
    while client.line():
        pass


def garbage(client: Client) -> None:
    """Speaks something else."""
    client.say("HTTP/1.1 400 Bad Request\r\n\r\n")


def after_handshake(then: Serve) -> Serve:
    """Goes wrong when it is asked."""

    def serve(client: Client) -> None:
        while command := client.line():
            if command.endswith("STATUS"):
                then(client)
                return
            client.say("SERVER PROTOCOL 2\n" if command.startswith("CLIENT") else "OK\n")

    return serve


def half(text: str) -> Serve:
    """The first half of an answer, then the end."""
    return after_handshake(lambda client: client.say(text[: len(text) // 2]))


def floods(total: int) -> Serve:
    """So many bytes."""

    def flood(client: Client) -> None:
        for _ in range(total >> 20):
            client.say(b" " * (1 << 20))

    return after_handshake(flood)


def trickles(client: Client) -> None:
    """A byte now and then, in the middle of its first line."""
    for byte in b"SERVER PROTOCOL 2 and so on and on":
        client.say(bytes([byte]))
        time.sleep(0.2)


def drips(client: Client) -> None:
    """A byte a second, for as long as somebody listens."""
    for byte in b'{"nccl_version": "2.29.2", "communicators": []}':
        client.say(bytes([byte]))
        time.sleep(1.0)
