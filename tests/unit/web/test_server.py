"""The agent's doors: who may ask, what he sees, and addresses that cannot be had."""

import http.client
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from mldebug.config.schema import AgentConfig
from mldebug.core.errors import UsageError
from mldebug.core.model import Gap, Job, Remark
from mldebug.hardware.kernel_log.attribution import RankEvent
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind
from mldebug.jobs.run_records.model import RunRecord, StoredRecord
from mldebug.status.snapshot import FoundJobs, Snapshot
from mldebug.storage.checkpoints.state import SeriesState
from mldebug.storage.filesystems.state import CollectorState, Measure, StorageState
from mldebug_agents.system.gone import current
from mldebug_agents.web import peer_protocol
from mldebug_agents.web.client import AgentAnswer, ask_agent, found_jobs, inquire
from mldebug_agents.web.connection_limiter import EACH, MOST, ConnectionLimiter, LimitedConnection
from mldebug_agents.web.listeners import MAX_PATH, SOCKET, open_tcp, open_unix
from mldebug_agents.web.peer_credentials import PeerCredentials, group_number, view
from mldebug_agents.web.server import AgentServer
from mldebug_agents.web.unix_http import UnixConnection
from shared.goodput.histories import history
from shared.hardware.kernellines import fold
from shared.system.hung import hung_mount, wait_until
from shared.system.patience import PATIENCE
from shared.web.snapshots import moving, snapshot

NOBODY = 65534
ROOTS = msgspec.structs.replace(moving("r00t"), uid=0)
THEIRS = msgspec.structs.replace(moving("n0b0"), uid=NOBODY)
SNAPSHOT = snapshot(
    ROOTS,
    THEIRS,
    remarks=(Remark(kind="odd", message="two", pids=(7,)), Remark(kind="odd", message="node")),
    gaps=(Gap(what="environ", reason="denied", pid=7), Gap(what="kernel log", reason="denied")),
)
BECOME = """
import os, socket, sys
from pathlib import Path
import msgspec
from mldebug_agents.web.client import inquire
place, uid, gid, *groups = sys.argv[1:]
os.setgroups([int(one) for one in groups])
os.setresgid(int(gid), int(gid), int(gid))
os.setresuid(int(uid), int(uid), int(uid))
"""
ASK = "sys.stdout.buffer.write(msgspec.json.encode(inquire(Path(place))))"
SCRAPE = """
link = socket.socket(socket.AF_UNIX)
link.connect(place + "/agent.sock")
link.sendall(b"GET /metrics HTTP/1.0\\r\\n\\r\\n")
sys.stdout.buffer.write(link.makefile("rb").read())
"""
POST = SCRAPE.replace("GET /metrics", "POST /api/v1/PATH?job=j&uid=0")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A state dir that others may pass through; pytest's own folders are closed to them."""
    path = Path(tempfile.mkdtemp(prefix="mldebug-test-"))
    path.chmod(0o711)
    yield path
    shutil.rmtree(path)


@contextmanager
def serving(state_dir: Path, **settings: str) -> Iterator[AgentServer]:
    server = AgentServer(AgentConfig(state_dir=state_dir, **({"listen": ""} | settings)))
    server.publish(SNAPSHOT)
    server.start()
    server.serve_socket(open_unix(state_dir))
    try:
        yield server
    finally:
        server.stop(5)


def run_as(code: str, state_dir: Path, *ids: int) -> bytes:
    """A real process that gives up root before it asks: this Python may be closed to other users."""
    argv = [sys.executable, "-c", BECOME + code, str(state_dir), *map(str, ids)]
    return subprocess.run(argv, check=True, capture_output=True, timeout=60, cwd="/").stdout


def ask_as(
    state_dir: Path, uid: int, gid: int = NOBODY, groups: tuple[int, ...] = ()
) -> AgentAnswer:
    """Ask as that user."""
    return msgspec.json.decode(run_as(ASK, state_dir, uid, gid, *groups), type=AgentAnswer)


def runs(given: Snapshot | None) -> list[str]:
    assert given is not None
    return [run.id for run in given.runs]


root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")


# --- who sees what -------------------------------------------------------------------------------


def test_the_agents_own_user_sees_everything(folder: Path) -> None:
    with serving(folder):
        assert ask_agent(folder) == SNAPSHOT


@root_only
def test_an_ordinary_user_sees_his_own_runs_only(folder: Path) -> None:
    with serving(folder):
        observed = ask_as(folder, NOBODY).snapshot
    assert runs(observed) == ["n0b0"]
    assert observed is not None
    assert observed.hidden_runs == 1
    assert [one.message for one in observed.remarks] == ["node"]
    assert [one.what for one in observed.gaps] == ["kernel log"]
    assert observed.last_report == {}


@root_only
@pytest.mark.parametrize("groups", [(4242,), (1, 2, 4242, 7)])
def test_a_member_of_the_group_sees_everything(folder: Path, groups: tuple[int, ...]) -> None:
    with serving(folder, group="4242"):
        assert runs(ask_as(folder, NOBODY, groups=groups).snapshot) == ["r00t", "n0b0"]
        assert runs(ask_as(folder, NOBODY, gid=4242).snapshot) == ["r00t", "n0b0"]
        assert runs(ask_as(folder, NOBODY, groups=(4241,)).snapshot) == ["n0b0"]


@root_only
def test_a_stranger_sees_that_there_are_runs_and_no_more(folder: Path) -> None:
    with serving(folder):
        observed = ask_as(folder, 12345, 12345).snapshot
    assert observed is not None
    assert (observed.runs, observed.hidden_runs) == ((), 2)


@root_only
def test_an_ordinary_user_has_done_to_his_own_runs_what_root_has_to_all(folder: Path) -> None:
    result: list[tuple[str, int | None]] = []

    def verb(table: Mapping[str, str], uid: int | None) -> Snapshot:
        result.append((table["job"], uid))
        return SNAPSHOT

    server = AgentServer(AgentConfig(state_dir=folder, listen=""))
    server.own_verbs, server.verbs = {"/api/v1/dump": verb}, {"/api/v1/release": lambda _: SNAPSHOT}
    server.serve_socket(open_unix(folder))
    try:
        for uid in (NOBODY, 0):
            assert b"200 OK" in run_as(POST.replace("PATH", "dump"), folder, uid, uid)
        assert b"403 Forbidden" in run_as(POST.replace("PATH", "release"), folder, NOBODY, NOBODY)
    finally:
        server.stop(5)
    assert result == [("j", NOBODY), ("j", None)]


def test_what_takes_long_hears_when_whoever_asked_has_gone(folder: Path) -> None:
    """And of nobody who waits on: his answer comes."""
    begun, ends, answers = threading.Event(), threading.Event(), list[bool]()

    def verb(table: Mapping[str, str], uid: int | None) -> Snapshot:
        gone = current()
        begun.set()
        until = time.monotonic() + 10 * PATIENCE
        while not gone() and not ends.is_set() and time.monotonic() < until:
            time.sleep(0.05)
        answers.append(gone())
        return SNAPSHOT

    server = AgentServer(AgentConfig(state_dir=folder, listen=""))
    server.own_verbs = {"/api/v1/inspect": verb}
    server.serve_socket(open_unix(folder))
    try:
        for waits in (False, True):
            link = UnixConnection(folder, 10 * PATIENCE)
            link.request("POST", "/api/v1/inspect?job=j", headers={"Content-Length": "0"})
            assert begun.wait(10 * PATIENCE)
            if waits:
                ends.set()
                assert link.getresponse().status == 200
            link.close()
            wait_until(lambda number=1 + waits: len(answers) == number)
            begun.clear()
    finally:
        server.stop(5)
    assert answers == [True, False]


@root_only
def test_metrics_at_the_socket_hide_what_status_hides(folder: Path) -> None:
    with serving(folder):
        text = run_as(SCRAPE, folder, NOBODY, NOBODY).decode()
    assert 'run="n0b0"' in text
    assert "r00t" not in text


def test_whom_the_kernel_does_not_name_sees_nothing_of_others() -> None:
    assert view(SNAPSHOT, None, None).runs == ()
    assert view(SNAPSHOT, PeerCredentials(1, 12345, frozenset({4242})), 4242) == SNAPSHOT
    assert view(SNAPSHOT, PeerCredentials(1, 12345, frozenset({4242})), None).runs == ()


def test_what_others_write_and_save_is_hidden() -> None:
    rows = {
        "writers": tuple({"job": run, "line": "writes"} for run in ("r00t", "n0b0")),
        "filesystems": ({"mount": "/data", "line": "/data"},),
        "trees": (),
    }
    measures = (
        *(Measure(metric="mldebug_rank_written_bytes", labels=(run, "0"), value=1.0) for run in ("r00t", "n0b0")),
        Measure(metric="mldebug_filesystem_size_bytes", labels=("/data",), value=1.0),
    )  # fmt: skip
    storage = StorageState(parts=(CollectorState(name="x", at=1.0, measures=measures, rows=rows),))
    places = (SeriesState(folder="/ckpt/other", series="step_#"),)
    changed = msgspec.structs.replace(SNAPSHOT, storage=storage, checkpoint_series=places)
    theirs = view(changed, PeerCredentials(1, NOBODY), None)
    assert theirs.checkpoint_series == ()
    assert theirs.storage is not None
    assert {name: len(rows) for name, rows in theirs.storage.rows.items()} == {
        "writers": 1,
        "filesystems": 1,
    }
    assert [one.labels[0] for one in theirs.storage.measures] == ["n0b0", "/data"]
    assert view(changed, PeerCredentials(1, 0), None) == changed


def test_kernel_events_of_hidden_runs_are_hidden() -> None:
    burst = fold([KernelEvent(kind=KernelEventKind.XID, at=1.0, xid=79)])[0]
    events = tuple(RankEvent(burst=burst, run=run) for run in ("r00t", "n0b0", ""))
    changed = msgspec.structs.replace(SNAPSHOT, kernel_events=events)
    theirs = view(changed, PeerCredentials(1, NOBODY), None)
    assert [one.run for one in theirs.kernel_events] == ["n0b0", ""]
    assert [one.run for one in view(changed, None, None).kernel_events] == [""]
    assert view(changed, PeerCredentials(1, 0), None).kernel_events == events


def test_a_group_that_does_not_exist_is_a_sentence() -> None:
    assert group_number("") is None
    assert group_number("root") == 0
    with pytest.raises(UsageError, match="no group 'no-such-group'"):
        group_number("no-such-group")


# --- what came of asking -------------------------------------------------------------------------


def test_no_agent_is_no_trouble(tmp_path: Path) -> None:
    assert inquire(tmp_path) == AgentAnswer(outcome="none")
    assert inquire(tmp_path / "absent") == AgentAnswer(outcome="none")
    door = open_unix(tmp_path)
    door.close()
    assert inquire(tmp_path) == AgentAnswer(outcome="none")


@root_only
def test_a_closed_folder_is_told_from_no_agent(folder: Path) -> None:
    folder.chmod(0o700)
    with serving(folder):
        result = ask_as(folder, NOBODY)
    assert (result.outcome, result.snapshot) == ("denied", None)
    assert "may not ask" in result.trouble


def test_an_agent_that_has_not_looked_yet_says_so(folder: Path) -> None:
    with serving(folder) as server:
        server.snapshot = None
        assert inquire(folder).outcome == "starting"


def test_an_agent_that_does_not_answer_is_waited_for_no_longer_than_told(folder: Path) -> None:
    with open_unix(folder):
        started = time.monotonic()
        assert inquire(folder).outcome == "silent"
        assert time.monotonic() - started < 6 * PATIENCE


def test_a_hung_state_dir_does_not_hang_who_asks(tmp_path: Path) -> None:
    with hung_mount(tmp_path) as mount:
        mount.hang()
        started = time.monotonic()
        assert inquire(mount.target).outcome == "silent"
        assert time.monotonic() - started < 8 * PATIENCE


# --- addresses -------------------------------------------------------------------------------------


def test_a_port_in_use_is_one_sentence() -> None:
    with open_tcp("127.0.0.1:0") as first:
        taken = f"127.0.0.1:{first.getsockname()[1]}"
        with pytest.raises(UsageError, match=f"cannot listen on {taken}: Address already in use"):
            open_tcp(taken)


@pytest.mark.parametrize("listen", ["nonsense", "127.0.0.1:99999", "127.0.0.1:x", "256.0.0.1:80"])
def test_an_address_that_makes_no_sense_is_one_sentence(listen: str) -> None:
    with pytest.raises(UsageError, match="cannot listen on"):
        open_tcp(listen)


def test_a_socket_file_that_a_dead_agent_left_is_replaced(folder: Path) -> None:
    open_unix(folder).close()
    assert (folder / SOCKET).is_socket()
    with serving(folder):
        assert ask_agent(folder) == SNAPSHOT


def test_a_living_socket_is_not_taken_away(folder: Path) -> None:
    with serving(folder):
        with pytest.raises(UsageError, match="already serves"):
            open_unix(folder)
        assert ask_agent(folder) == SNAPSHOT


def test_a_long_path_works_like_a_short_one(folder: Path) -> None:
    deep = folder / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    assert len(str(deep / SOCKET)) > MAX_PATH
    with serving(deep):
        assert ask_agent(deep) == SNAPSHOT


def test_a_socket_that_comes_when_all_is_over_is_closed(folder: Path) -> None:
    server = AgentServer(AgentConfig(state_dir=folder, listen=""))
    server.stop()
    door = open_unix(folder)
    server.serve_socket(door)
    assert door.fileno() == -1
    assert inquire(folder).outcome == "none"


# --- behaviour under strain --------------------------------------------------------------------------


HOLD = """
import time
held = [socket.socket(socket.AF_UNIX) for _ in range(int(count))]
for one in held:
    one.connect(place + "/agent.sock")
print("held", flush=True)
time.sleep(60)
"""


@contextmanager
def held(folder: Path, count: int, uid: int = NOBODY) -> Iterator[None]:
    """A real process of that user holds idle connections."""
    code = BECOME.replace("*groups", "count").replace(
        "[int(one) for one in groups]", "[]"
    ) + HOLD  # fmt: skip
    argv = [sys.executable, "-c", code, str(folder), str(uid), str(uid), str(count)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd="/") as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            yield
        finally:
            process.kill()


def knock(folder: Path, count: int) -> list[socket.socket]:
    idle = [socket.socket(socket.AF_UNIX) for _ in range(count)]
    for one in idle:
        one.connect(str(folder / SOCKET))
        one.settimeout(10)
    return idle


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@root_only
def test_an_ordinary_user_who_holds_connections_keeps_nobody_out(folder: Path) -> None:
    before = descriptors()
    with serving(folder), held(folder, 300):
        assert inquire(folder).outcome == "answered"
        assert ask_as(folder, NOBODY).outcome == "answered"
        assert ask_as(folder, NOBODY + 1).outcome == "answered"
        wait_until(lambda: descriptors() < before + 48)


@root_only
def test_many_users_who_hold_connections_keep_nobody_out(folder: Path) -> None:
    with serving(folder), ExitStack() as users:
        for uid in range(2000, 2006):
            users.enter_context(held(folder, EACH, uid))
        assert inquire(folder).outcome == "answered"
        assert ask_as(folder, NOBODY).outcome == "answered"


def test_ones_own_connections_are_bounded_too(folder: Path) -> None:
    with serving(folder):
        before = descriptors()
        idle = knock(folder, 3 * MOST)
        assert ask_agent(folder) == SNAPSHOT
        wait_until(lambda: descriptors() - before <= len(idle) + MOST)
        for one in idle:
            one.close()


def test_whoever_finds_others_at_the_door_waits_for_his_turn(folder: Path) -> None:
    door = open_unix(folder)
    door.listen(0)
    [before] = knock(folder, 1)
    server = AgentServer(AgentConfig(state_dir=folder, listen=""))
    server.publish(SNAPSHOT)
    later = threading.Timer(0.3, server.serve_socket, (door,))
    later.start()
    assert inquire(folder).outcome == "answered"
    later.join()
    before.close()
    server.stop(5)


def test_whoever_asks_nothing_is_sent_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_protocol, "FIRST_WORDS", 0.2)
    with serving(folder):
        [idle] = knock(folder, 1)
        assert idle.recv(1) == b""
        idle.close()


def test_a_slow_first_request_is_sent_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_protocol, "FIRST_WORDS", 0.2)
    with serving(folder):
        [slow] = knock(folder, 1)
        slow.sendall(b"GET /metrics HTTP/1.1\r\nHost: ")
        assert slow.recv(1) == b""
        slow.close()


def test_a_scrape_while_the_first_snapshot_is_published_is_early_and_no_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = AgentServer(AgentConfig(state_dir=folder, listen=f"127.0.0.1:{port}"))
    server.start()
    goes_on, publish = threading.Event(), server._prometheus.publish
    monkeypatch.setattr(
        server._prometheus, "publish", lambda one: goes_on.wait(20) and publish(one)
    )
    publishing = threading.Thread(target=server.publish, args=(SNAPSHOT,))
    publishing.start()
    early = scraped(port)
    goes_on.set()
    publishing.join(20)
    assert (early, scraped(port)) == (503, 200)
    server.stop(5)


def scraped(port: int) -> int:
    """The status of the answer."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    link.request("GET", "/metrics")
    status = link.getresponse().status
    link.close()
    return status


def test_idle_connections_by_tcp_do_not_stop_a_scrape(folder: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with serving(folder, listen=f"127.0.0.1:{port}"), ExitStack() as idle:
        before = descriptors()
        for _ in range(100):
            idle.enter_context(socket.create_connection(("127.0.0.1", port), 5))
        assert descriptors() - before < 210
        for path in ("/metrics", "/healthz"):
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=5 * PATIENCE)
            link.request("GET", path)
            assert link.getresponse().status == 200
            link.close()


def test_without_descriptors_the_door_waits_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    naps: list[float] = []
    monkeypatch.setattr("mldebug_agents.web.connection_limiter.time.sleep", naps.append)
    with ConnectionLimiter(open_unix(tmp_path)) as door, full_table():
        for _ in range(5):
            with pytest.raises(BlockingIOError):
                door.accept()
    assert len(naps) == 5
    assert [one.getMessage() for one in caplog.records] == [
        "nobody more can be let in to ask: Too many open files"
    ]


@contextmanager
def full_table() -> Iterator[None]:
    """No descriptor is left in this process."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    link = os.dup(0)
    resource.setrlimit(resource.RLIMIT_NOFILE, (link, before[1]))
    os.close(link)
    taken = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for one in taken:
            os.close(one)


def test_tcp_tells_metrics_and_health_and_nothing_else(folder: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with serving(folder, listen=f"127.0.0.1:{port}"):
        codes = {}
        for path in ("/metrics", "/healthz", "/readyz", "/api/v1/status"):
            link = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            link.request("GET", path)
            answer = link.getresponse()
            codes[path] = answer.status
            assert answer.headers["Cache-Control"] == "no-cache, private"
            link.close()
    assert codes == {"/metrics": 200, "/healthz": 200, "/readyz": 200, "/api/v1/status": 404}


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    ],
)
def test_nobody_fills_our_log_with_what_is_no_request(
    folder: Path, garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(folder), socket.socket(socket.AF_UNIX) as link:
        link.settimeout(10)
        link.connect(str(folder / SOCKET))
        link.sendall(garbage)
        assert link.recv(100).startswith(b"HTTP/1.1 ")
    assert [one.getMessage() for one in caplog.records] == []


def test_a_request_that_tells_two_lengths_is_refused_and_nothing_behind_it_is_one(
    folder: Path,
) -> None:
    """A proxy that counts bytes takes what follows for the body, and sends the next user's request behind it."""
    first = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 60\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    with serving(folder), socket.socket(socket.AF_UNIX) as link:
        link.settimeout(10)
        link.connect(str(folder / SOCKET))
        link.sendall(first + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b"".join(iter(lambda: link.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


def history_as(
    state_dir: Path, uid: int, query: str = "", route: str = "history"
) -> dict[str, object]:
    code = (
        "import http.client, socket\n"
        "link = http.client.HTTPConnection('localhost')\n"
        "link.sock = socket.socket(socket.AF_UNIX)\n"
        "link.sock.connect(sys.argv[1] + '/agent.sock')\n"
        f"link.request('GET', '/api/v1/{route}{query}')\n"
        "print(link.getresponse().read().decode())\n"
    )
    found: dict[str, object] = msgspec.json.decode(run_as(code, state_dir, uid, uid))
    return found


@root_only
def test_users_see_the_history_of_their_own_runs_alone(folder: Path) -> None:
    own, other = history("mine", uid=NOBODY), history("another", uid=12345)
    with serving(folder) as server:
        server.publish(msgspec.structs.replace(SNAPSHOT, histories=(own, other)))
        listed = history_as(folder, NOBODY)
        assert [run["run"] for run in listed["runs"]] == ["mine"]  # type: ignore[index, attr-defined]
        assert "another" not in str(listed)
        assert "error" in history_as(folder, NOBODY, "?run=another")
        mine = history_as(folder, NOBODY, "?run=mine")
        assert set(mine["columns"]) >= {"loss", "learning_rate"}  # type: ignore[call-overload]
        assert len(mine["times"]) == len(own.times)  # type: ignore[arg-type]
        assert {run["run"] for run in history_as(folder, 0)["runs"]} == {"mine", "another"}  # type: ignore[index, attr-defined]


@root_only
def test_users_see_the_records_of_their_own_runs_alone(folder: Path) -> None:
    records = tuple(
        StoredRecord.of(RunRecord(run=run, uid=uid, arguments=("python", "train.py")))
        for run, uid in (("mine", NOBODY), ("another", 12345))
    )
    with serving(folder) as server:
        server.publish(msgspec.structs.replace(SNAPSHOT, run_records=records))
        listed = history_as(folder, NOBODY, route="records")
        assert [run["run"] for run in listed["runs"]] == ["mine"]  # type: ignore[index, attr-defined]
        assert "error" in history_as(folder, NOBODY, "?run=another", "records")
        assert history_as(folder, NOBODY, "?run=mine", "records")["arguments"] == [
            "python",
            "train.py",
        ]
        everybody_s = history_as(folder, 0, route="records")["runs"]
        assert {run["run"] for run in everybody_s} == {"mine", "another"}  # type: ignore[attr-defined]


# --- behind one address ------------------------------------------------------------------------------


@contextmanager
def slow_door() -> Iterator[tuple[int, threading.Semaphore, threading.Event]]:
    """A server of one route that is slow: its port, who has come (a semaphore), and what lets all go on."""
    came, goes_on = threading.Semaphore(0), threading.Event()

    async def slow(request: Request) -> Response:
        await request.body()
        came.release()
        await run_in_threadpool(goes_on.wait, 60)
        return Response("done")

    server = AgentServer(AgentConfig(listen=""))
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server.serve(Starlette(routes=[Route("/", slow, methods=["GET", "POST"])]), listener)
    try:
        yield port, came, goes_on
    finally:
        goes_on.set()
        server.stop(5)


def asking(port: int, words: bytes = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") -> socket.socket:
    link = socket.create_connection(("127.0.0.1", port), 20)
    link.sendall(words)
    return link


HALF = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.1\r\nHost: ", HALF], ids=["idle", "head", "half"])  # fmt: skip
def test_who_is_being_answered_keeps_his_place_whoever_comes_from_the_same_address(
    words: bytes,
) -> None:
    """Many users come from one address: through a proxy, a NAT, the loopback."""
    with slow_door() as (port, came, goes_on), ExitStack() as crowd:
        mine = crowd.enter_context(asking(port))
        assert came.acquire(timeout=20)
        for _ in range(3 * MOST):
            crowd.enter_context(asking(port, words))
        goes_on.set()
        assert mine.recv(100).startswith(b"HTTP/1.1 200")


def test_of_those_who_are_all_being_answered_the_first_goes() -> None:
    with slow_door() as (port, came, goes_on), ExitStack() as crowd:
        links = [crowd.enter_context(asking(port)) for _ in range(EACH)]
        for _ in links:
            assert came.acquire(timeout=20)
        links.append(crowd.enter_context(asking(port)))
        assert links[0].recv(100) == b""
        goes_on.set()
        assert links[-1].recv(100).startswith(b"HTTP/1.1 200")


def test_who_has_filled_the_door_with_his_certificate_keeps_no_newcomer_out() -> None:
    """Who came then was closed in his handshake: he alone had shown no certificate."""
    with ExitStack() as crowd:
        plain = socket.create_server(("127.0.0.1", 0), backlog=99)
        door = crowd.enter_context(ConnectionLimiter(plain, 2, 16, lambda _: True))

        def come(number: int) -> tuple[socket.socket, LimitedConnection]:
            link = crowd.enter_context(socket.socket())
            link.bind((f"127.0.1.{number}", 0))
            link.connect(door.getsockname())
            accepted, _ = door.accept()
            assert isinstance(accepted, LimitedConnection)
            crowd.enter_context(accepted)
            link.settimeout(0.2)
            return link, accepted

        stalled = [come(number) for number in range(1, 17)]
        for _, accepted in stalled:
            accepted.prove()
        honest, _ = come(100)
        others = [come(number) for number in range(101, 104)]
        with pytest.raises(TimeoutError):
            honest.recv(1)
        assert stalled[0][0].recv(1) == b""
        for number in range(104, 125):  # strangers push out each other, and none that has proved it
            others.append(come(number))
        assert others[0][0].recv(1) == b""
        with pytest.raises(TimeoutError):
            stalled[-1][0].recv(1)


@root_only
def test_users_see_their_own_found_jobs_alone(folder: Path) -> None:
    jobs = tuple(
        Job(id=name, name="t.py", launcher="torchrun", uid=uid)
        for name, uid in (("mine", NOBODY), ("another", 12345))
    )
    found = FoundJobs(at=5.0, jobs=jobs, remarks=SNAPSHOT.remarks, gaps=SNAPSHOT.gaps)
    with serving(folder) as server:
        server.publish(msgspec.structs.replace(SNAPSHOT, found=found))
        shown = history_as(folder, NOBODY, route="jobs")
        assert [job["id"] for job in shown["jobs"]] == ["mine"]  # type: ignore[index, attr-defined]
        assert [one["message"] for one in shown["remarks"]] == ["node"]  # type: ignore[index, attr-defined]
        assert [one["what"] for one in shown["gaps"]] == ["kernel log"]  # type: ignore[index, attr-defined]
        everything = history_as(folder, 0, route="jobs")
        assert [job["id"] for job in everything["jobs"]] == ["mine", "another"]  # type: ignore[index, attr-defined]
        assert found_jobs(folder) == found
        server.publish(SNAPSHOT)
        assert found_jobs(folder) is None, "it has not searched yet"


def test_an_agent_that_does_not_tell_its_jobs_is_none_to_ask(folder: Path) -> None:
    assert found_jobs(folder) is None
