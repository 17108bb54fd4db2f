"""Worker servers: PyTorch's own, found by the thread that accepts there, and impostors that answer anything."""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mldebug.capture.flight_recorder.access import AccessKind, RankFacts, plan
from mldebug.capture.flight_recorder.dump import MAX_DUMP
from mldebug.core.model import FlightRecord, RankIdentity
from mldebug_agents.capture.flight_recorder.available import rank_facts
from mldebug_agents.capture.flight_recorder.worker_servers import (
    SECONDS,
    ask_servers,
)
from mldebug_agents.jobs.ranks.libraries import InstalledSoftware, Program, libraries
from mldebug_agents.system.child.reader_writes import WorkerServerQuestion
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import Unreadable
from mldebug_agents.system.spawn import ForkedWorker, Spawner
from shared.capture.dumps import as_json, calls, dump, made
from shared.capture.servers import ask_server
from shared.system.hung import state, wait_until
from shared.system.patience import PATIENCE
from shared.system.whose import MINE

SERVES = """
import sys
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _WorkerServer
where, rendezvous = sys.argv[1:]
dist.init_process_group("gloo", init_method=rendezvous, rank=0, world_size=1)
for _ in range(3):
    dist.all_reduce(torch.ones(2))
group = dist.new_group([0], group_desc="dp")
dist.broadcast(torch.ones(5), 0, group=group)
server = _WorkerServer(where) if "/" in where else _WorkerServer(where, 0)
print("ready", flush=True)
sys.stdin.read()
server.shutdown()
"""


@pytest.fixture
def reader() -> Iterator[Reader]:
    with Spawner() as spawner, Reader(spawner) as it:
        yield it


@contextmanager
def serving(where: str, folder: Path) -> Iterator[int]:
    """The pid of a process of gloo with a worker server."""
    argv = [sys.executable, "-c", SERVES, where, f"file://{folder}/rendezvous"]
    with subprocess.Popen(argv, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == b"ready\n"
        try:
            yield job.pid
        finally:
            job.kill()


def known(reader: Reader, pid: int) -> RankFacts:
    host = Host()
    found = host.process_state(pid, files=True)
    assert found is not None
    one = RankIdentity(rank=0, world_size=1, pid=pid, start_ticks=found.start_ticks)
    program = Program(libraries=libraries(Path(f"/proc/{pid}/maps").read_bytes()))
    installed = InstalledSoftware(host, reader).of("1a2b", pid, program.libraries)
    return rank_facts(host, one, program, installed, found)


def signals(pid: int) -> tuple[str, int]:
    found = Host().process_state(pid)
    assert found is not None
    return found.state, found.pending_signals


@pytest.mark.parametrize("where", ["unix", "127.0.0.1", "::1"])
def test_a_rank_of_gloo_tells_by_its_worker_server(
    reader: Reader, tmp_path: Path, where: str
) -> None:
    pytest.importorskip("torch")
    where = str(tmp_path / "server") if where == "unix" else where
    with serving(where, tmp_path) as pid:
        wait_until(lambda: known(reader, pid).servers)  # the thread is at its accept
        told_of = known(reader, pid)
        assert told_of.torch == (2, 13)
        assert told_of.backends == {"gloo"}
        (place,) = told_of.servers
        if "/" in where:
            assert place == f"/proc/{pid}/root{where}"
        else:
            assert place.startswith("tcp:")
            assert place.endswith(f":{pid}:{where}")
        assert [way.kind for way in plan(told_of).ways] == [AccessKind.SERVER]
        wait_until(lambda: state(pid) == "S")
        before = signals(pid)
        answer = ask_server(reader, place, MINE, 1)
        assert isinstance(answer, FlightRecord), answer
        groups = {group.description: group for group in answer.groups}
        assert (groups["default_pg"].backend, groups["default_pg"].enqueued) == ("gloo", 3)
        assert [one.op for one in groups["dp"].calls] == ["broadcast"]
        assert signals(pid) == before


def test_a_rank_that_is_stopped_costs_two_seconds_at_most(reader: Reader, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with serving(str(tmp_path / "server"), tmp_path) as pid:
        wait_until(lambda: known(reader, pid).servers)
        (place,) = known(reader, pid).servers
        os.kill(pid, 19)
        wait_until(lambda: state(pid) == "T")
        started = time.monotonic()
        assert "timed out" in str(ask_server(reader, place, MINE, 1))
        assert time.monotonic() - started < 6 * PATIENCE
        assert state(pid) == "T"
        wait_until(lambda: reader.stuck == ())  # its child is dead
        assert reader.read_file("/etc/hostname", max_bytes=1 << 16, rights=MINE)  # goes on at once


def test_a_process_without_such_a_thread_is_never_asked(reader: Reader, tmp_path: Path) -> None:
    """Its other sockets are those of gloo, of NCCL, of the store: a question there could do harm."""
    code = (
        "import socket, sys\nserver = socket.create_server(('127.0.0.1', 0))\n"
        "print('ready', flush=True)\nserver.accept()"
    )
    with subprocess.Popen([sys.executable, "-S", "-c", code], stdout=-1) as one:
        assert one.stdout is not None
        one.stdout.readline()
        wait_until(lambda: state(one.pid) == "S")
        assert known(reader, one.pid).servers == ()
        one.kill()


# --- impostors -----------------------------------------------------------------------------------

LIST = b'HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n["fr_trace_json"]'
BODY = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n"


@contextmanager
def listening(
    path: Path, answer: Callable[[socket.socket, bytes], object]
) -> Iterator[list[bytes]]:
    """Our own process listens there; what it was asked."""
    results: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    try:
                        results.append(connection.recv(4096))
                        answer(connection, results[-1])
                    except OSError:
                        pass

        thread = threading.Thread(target=serve)
        thread.start()
        yield results
        server.shutdown(socket.SHUT_RDWR)
    thread.join(20)


def trace(body: bytes) -> Callable[[socket.socket, bytes], object]:
    """Answers the list of handlers as it should, and then this."""
    return lambda connection, requests: connection.sendall(LIST if requests[:3] == b"GET" else body)


def flood(connection: socket.socket, data: bytes) -> None:
    connection.sendall(BODY % (1 << 40))
    while True:
        connection.sendall(bytes(1 << 16))


def drip(connection: socket.socket, data: bytes) -> None:
    connection.sendall(BODY % 1000)
    while True:
        connection.sendall(b"x")
        time.sleep(0.05)


BAD = {
    "Connection reset": lambda connection, requests: None,
    "no worker server answers": lambda connection, requests: connection.sendall(b"SSH-2.0\r\n\r\n"),
    "it refuses": lambda connection, requests: connection.sendall(b"HTTP/1.1 404 No\r\n\r\n"),
    "or it refuses": lambda connection, requests: connection.sendall(b"\r\n" * 20_000),
    "no list of handlers": lambda connection, requests: connection.sendall(BODY % 2 + b"{}"),
    "larger than allowed": flood,
    "timed out": drip,
    "not believed": trace(BODY % 4 + b'{"a"'),
    "not believed: it is not what": trace(BODY % 15 + b'{"entries":[7]}'),
    "it has no Flight Recorder": lambda connection, requests: connection.sendall(BODY % 2 + b"[]"),
}  # fmt: skip


@pytest.mark.parametrize("why", BAD)
def test_an_answer_is_refused_because(reader: Reader, tmp_path: Path, why: str) -> None:
    path = tmp_path / "server"
    with listening(path, BAD[why]):
        started = time.monotonic()
        answer = ask_server(reader, f"/proc/{os.getpid()}/root{path}", MINE, 1)
        assert why in str(answer), answer
        assert time.monotonic() - started < 8 * PATIENCE


def test_whoever_reads_meanwhile_does_not_wait(reader: Reader, tmp_path: Path) -> None:
    """The question to a job that is silent holds up nobody who looks at the node."""
    event, release = threading.Event(), threading.Event()

    def hold(connection: socket.socket, _: bytes) -> None:
        event.set()
        release.wait(20)

    path = tmp_path / "server"
    with listening(path, hold):
        place = f"/proc/{os.getpid()}/root{path}"
        asking = threading.Thread(target=ask_server, args=(reader, place, MINE, 1))
        asking.start()
        assert event.wait(20)
        assert reader.read_file("/etc/hostname", max_bytes=1 << 16, rights=MINE)
        assert asking.is_alive()
        release.set()
        asking.join(20)


def test_a_child_that_does_not_come_back_is_not_followed_by_another(
    reader: Reader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hangs in the kernel outlives its kill: the same place is left alone until it is gone."""
    release, gone = threading.Event(), threading.Event()
    monkeypatch.setattr(ForkedWorker, "gone", lambda _: gone.is_set())
    path = tmp_path / "server"
    with listening(path, lambda *_: release.wait(30)) as opened:
        place = f"/proc/{os.getpid()}/root{path}"
        results = [ask_server(reader, place, MINE, 1, 0.5) for _ in range(3)]
        gone.set()
        release.set()
    assert "timed out" in str(results[0])
    assert results[1:] == ["its worker server: an earlier question has not come back"] * 2
    assert len(opened) == 1
    assert reader.stuck == ()


def test_many_that_never_answer_cost_no_more_than_one(reader: Reader, tmp_path: Path) -> None:
    release = threading.Event()
    path = tmp_path / "server"
    with listening(path, lambda *_: release.wait(30)):
        places = {rank: [f"/proc/{os.getpid()}/root{path}"] * 2 for rank in range(8)}
        started = time.monotonic()
        answers = ask_servers(reader, places, dict.fromkeys(places, MINE), 1)
        took = time.monotonic() - started
        release.set()
    assert sorted(answers) == list(range(8))
    assert all("timed out" in str(one) for one in answers.values())
    assert took < (SECONDS + 3) * PATIENCE, "not the eight times two questions of 2 s"
    assert ask_servers(reader, places, dict.fromkeys(places, MINE), 1, 0.0) == {}


def test_nccl_is_asked_for_all_calls_and_never_for_the_active_ones_alone(
    reader: Reader, tmp_path: Path
) -> None:
    """NCCL leaves the members of a batch open for ever; that they are done only the calls after them tell."""
    batch = [made("all_reduce", 1, state="scheduled"), made("coalesced", 1)]
    everything = as_json(dump([*batch, *calls(5, first=2)]))
    handlers = LIST.replace(b"fr_trace_json", b"dump_nccl_trace_json").replace(b"17", b"24")

    def answer(connection: socket.socket, data: bytes) -> None:
        body = as_json(dump(batch[:1])) if b"onlyactive" in data else everything
        connection.sendall(handlers if data[:3] == b"GET" else BODY % len(body) + body)

    with listening(tmp_path / "server", answer) as opened:
        reply = ask_server(reader, f"/proc/{os.getpid()}/root{tmp_path}/server", MINE, 4)
    assert isinstance(reply, FlightRecord), reply
    assert (reply.groups[0].enqueued, reply.groups[0].completed) == (5, 5)
    assert [one.split()[1] for one in opened] == [b"/handler/", b"/handler/dump_nccl_trace_json"]


def test_an_answer_of_a_larger_job_is_refused(reader: Reader, tmp_path: Path) -> None:
    body = as_json(dump(calls(3)))
    with listening(tmp_path / "server", trace(BODY % len(body) + body)):
        place = f"/proc/{os.getpid()}/root{tmp_path}/server"
        assert isinstance(ask_server(reader, place, MINE, 4), FlightRecord)
        assert "a job with more than 3 ranks" in str(ask_server(reader, place, MINE, 3))


def test_an_answer_of_a_smaller_job_is_refused(reader: Reader, tmp_path: Path) -> None:
    """Its default group are not the ranks of ours."""
    body = as_json(dump(calls(3)))
    with listening(tmp_path / "server", trace(BODY % len(body) + body)):
        answer = ask_server(reader, f"/proc/{os.getpid()}/root{tmp_path}/server", MINE, 8)
    assert answer == (
        "its worker server: its answer is not believed: it is of a job with 4 ranks and not 8"
    )


def test_only_the_rank_itself_is_asked(reader: Reader, tmp_path: Path) -> None:
    """The path that a job names may be the socket of anybody."""
    path = tmp_path / "server"
    other = subprocess.Popen(["sleep", "100"])
    with listening(path, trace(LIST)) as opened:
        answer = ask_server(reader, f"/proc/{other.pid}/root{path}", MINE, 1)
        other.kill()
        other.wait(20)
        assert answer == "its worker server: another process listens there"
    assert b"".join(opened) == b""


@pytest.mark.parametrize("kind", ["file", "link", "gone"])
def test_what_is_no_socket_is_left_alone(reader: Reader, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "server"
    if kind == "file":
        path.write_bytes(b"")
    elif kind == "link":
        path.symlink_to("/run/nobody")
    place = f"/proc/{os.getpid()}/root{path}"
    answer = reader.ask_server(
        place, WorkerServerQuestion.HANDLERS, max_bytes=MAX_DUMP, rights=MINE
    )
    assert isinstance(answer, Unreadable)
    why = {"file": "not a socket", "link": "a symbolic link", "gone": "no such file"}[kind]
    assert why in answer.reason
