"""Worker servers on TCP: several processes may listen at one port, and only the rank itself is asked."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mldebug.core.model import FlightRecord
from mldebug_agents.capture.flight_recorder.available import servers
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner
from shared.capture.dumps import as_json, calls, dump
from shared.capture.servers import ask_server
from shared.system.hung import state, wait_until
from shared.system.whose import MINE

SHARED = "its worker server: not asked: other processes answer at its port; give each rank a port of its own"
LISTENS = """
import ctypes, os, socket, sys, threading
address, port, body = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode()
server = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
if ":" in address:
    server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
server.bind((address, port))
server.listen()
def serve():
    ctypes.CDLL(None).prctl(15, b"pt_workerserver", 0, 0, 0)
    print(server.getsockname()[1], flush=True)
    while True:
        connection, _ = server.accept()
        asked = connection.recv(4096)
        if asked:
            told = b'["fr_trace_json"]' if asked[:3] == b"GET" else body
            print(asked.split()[1].decode(), flush=True)
            connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(told) + told)
        connection.close()
one = threading.Thread(target=serve)
one.start()
one.join()
"""


@pytest.fixture
def reader() -> Iterator[Reader]:
    with Spawner() as spawner, Reader(spawner) as it:
        yield it


@contextmanager
def listening(address: str, port: int, count: int) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A process with the thread of a worker server, which tells of that many calls; its port. What it is asked it prints."""
    argv = [sys.executable, "-c", LISTENS, address, str(port), as_json(dump(calls(count)))]
    with subprocess.Popen(argv, stdout=-1) as one:
        assert one.stdout is not None
        try:
            yield one, int(one.stdout.readline())
        finally:
            one.kill()


def place_of(pid: int) -> str:
    """Where its worker server listens, once its thread is at its accept."""

    def found() -> tuple[str, ...]:
        process = Host().process_state(pid, files=True)
        return tuple(servers(Host(), pid, process, {})) if process else ()

    wait_until(found)
    (place,) = found()
    return place


def calls_of(reader: Reader, pid: int) -> int | str:
    """How many calls its server tells of, or why it does not."""
    answer = ask_server(reader, place_of(pid), MINE, 4)
    return answer.groups[0].enqueued if isinstance(answer, FlightRecord) else answer


def requests_to(one: subprocess.Popen[bytes]) -> list[bytes]:
    """All that it was asked; it ends."""
    one.kill()
    assert one.stdout is not None
    return one.stdout.read().split()


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::", "::1"])
def test_a_rank_is_asked_at_the_address_that_it_listens_on(reader: Reader, address: str) -> None:
    with listening(address, 0, 3) as (rank, port):
        assert place_of(rank.pid) == f"tcp:{port}:{rank.pid}:{address}"
        assert calls_of(reader, rank.pid) == 3
        assert requests_to(rank) == [b"/handler/", b"/handler/fr_trace_json"]


def test_two_ranks_at_one_port_tell_each_its_own(reader: Reader) -> None:
    """PyTorch's servers share their port, and the kernel picks who gets a connection."""
    with listening("::", 0, 3) as (one, port), listening("::", port, 8) as (other, _):
        pairs = [(calls_of(reader, one.pid), calls_of(reader, other.pid)) for _ in range(8)]
    assert {first for first, _ in pairs} - {SHARED} == {3}
    assert {second for _, second in pairs} - {SHARED} == {8}


@pytest.mark.parametrize(("own", "others"), [("::1", "127.0.0.1"), ("::", "127.0.0.1")])
def test_nobody_else_at_that_port_of_the_other_protocol_is_asked(
    reader: Reader, own: str, others: str
) -> None:
    with listening(own, 0, 3) as (rank, port), listening(others, port, 8) as (other, _):
        assert calls_of(reader, rank.pid) == 3
        assert requests_to(other) == []


def test_somebody_else_who_takes_all_connections_is_not_asked(reader: Reader) -> None:
    """The kernel prefers who listens on that very address."""
    with listening("0.0.0.0", 0, 3) as (rank, port), listening("127.0.0.1", port, 8) as (other, _):
        assert calls_of(reader, rank.pid) == SHARED
        assert requests_to(other) == []


def test_a_rank_that_is_stopped_accepts_nothing(reader: Reader) -> None:
    with listening("127.0.0.1", 0, 3) as (rank, _):
        place = place_of(rank.pid)
        os.kill(rank.pid, signal.SIGSTOP)
        wait_until(lambda: state(rank.pid) == "T")
        assert "timed out" in str(ask_server(reader, place, MINE, 4))


def test_whose_open_files_may_not_be_read_is_not_asked() -> None:
    """Nobody could tell whether it is the rank that answers."""
    code = (
        "import os\nfrom mldebug_agents.system.child.reader_child import ReadOperation, ReadRequest, answer\n"
        "if os.geteuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        "print(answer(ReadRequest(ReadOperation.ASK, (), 99), b'tcp:{}:{}:127.0.0.1').status)"
    )
    with listening("127.0.0.1", 0, 3) as (_, port):
        ran = subprocess.run(
            [sys.executable, "-c", code.format(port, 1)], capture_output=True, check=True
        )
    assert int(ran.stdout) == -10
