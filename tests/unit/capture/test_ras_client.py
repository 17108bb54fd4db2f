"""The NCCL RAS client against real sockets: every fault is a reason in words, in time, and nobody else is believed."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mldebug.core.model import Gap, Job, RankIdentity
from mldebug_agents.capture.nccl_ras import child
from mldebug_agents.capture.nccl_ras.child import (
    RasOrder,
    RasReply,
    SocketOwner,
    carry_out,
    holds_socket,
    own_addresses,
    socket_owner,
)
from mldebug_agents.capture.nccl_ras.client import (
    ELSEWHERE,
    SLACK,
    WHAT,
    RasBackgroundQuery,
    RasClient,
    is_ours_to_ask,
    nodes_of,
)
from mldebug_agents.jobs.ranks.ras_address import OFF, RasAddress, addresses, is_own, setting
from mldebug_agents.system.host import Host
from mldebug_agents.system.spawn import WORKERS, Spawner
from shared.capture.rasserver import (
    RasServer,
    Serve,
    after_handshake,
    answer,
    floods,
    garbage,
    half,
    recorded_text,
    says,
    serving,
    silent,
    speaks,
    trickles,
)
from shared.system.hung import wait_until
from shared.system.patience import PATIENCE

NOBODY = 65534
GOOD = answer({0: {"AllReduce": 6}, 1: {"AllReduce": 5}})
ROOT = os.geteuid() == 0


@pytest.fixture(scope="module")
def client() -> Iterator[RasClient]:
    with Spawner({**WORKERS, child.NAME: child.serve}) as spawner:
        yield RasClient(spawner, Host())


def job(server: RasServer | str, *pids: int, uid: int | None = None, world: int = 2) -> Job:
    """A job whose ranks 0, 1, … have these pids; those of `answer` unless told."""
    address = server if isinstance(server, str) else server.address
    ranks = tuple(
        RankIdentity(
            rank=n,
            world_size=world,
            pid=os.getpid(),
            namespace_pid=pid,
            uid=os.geteuid() if uid is None else uid,
            nccl_ras=address,
        )
        for n, pid in enumerate(pids or (100, 101))
    )
    return Job(id="j", name="train.py", launcher="torchrun", world_size=world, ranks=ranks)


def order(server: RasServer, seconds: float = 3.0, **more: Any) -> RasOrder:
    given = {
        "address": server.address,
        "pids": (100, 101),
        "host_pids": (os.getpid(), os.getppid()),
    }
    return RasOrder(**{**given, "uid": os.geteuid(), "seconds": seconds, **more})


# --- it answers ------------------------------------------------------------------------------------


def test_the_conversation_is_the_one_that_nccl_knows(client: RasClient) -> None:
    with serving(says(GOOD)) as server:
        reply = client.ask(job(server))
        assert server.messages == ["CLIENT PROTOCOL 2", "TIMEOUT 1", "SET FORMAT json", "STATUS"]
    assert reply.error == ""
    assert reply.answer is not None
    assert [rank.counts for rank in reply.answer.communicators[0].ranks] == [
        {"AllReduce": 6},
        {"AllReduce": 5},
    ]
    assert "127.0.0.1" in reply.answer.own


def test_before_2_28_7_it_is_asked_for_text(client: RasClient) -> None:
    text = recorded_text("sleep")[0]
    with serving(speaks(None, text)) as server:
        reply = client.ask(job(server, 620, 621))
        assert server.messages[-2:] == ["SET FORMAT json", "VERBOSE STATUS"]
    assert reply.answer is not None
    assert (reply.answer.form, reply.answer.communicators[0].size) == ("text", 2)


def test_the_watch_takes_the_sums_alone(client: RasClient) -> None:
    with serving(says(GOOD)) as server:
        reply = client.ask(job(server), whole=False)
    assert reply.answer is not None
    one = reply.answer.communicators[0]
    assert (one.launched, one.ranks, reply.answer.own) == (11, (), ())


def test_ipv6(client: RasClient) -> None:
    with serving(says(GOOD), host="::1") as server:
        assert client.ask(job(server)).answer is not None
        assert client.ask(job(f"localhost:{server.port}")).answer is not None


def test_a_job_on_the_same_port_that_answers_first(client: RasClient) -> None:
    """Which of several listeners of one port is met is up to the kernel: asked again until it is ours."""
    turns: list[int] = []

    def serve(one: Any) -> None:
        turns.append(1)
        others = answer({0: {}, 1: {}}, pids={0: 500, 1: 501})
        says(others if len(turns) < 3 else GOOD)(one)

    with serving(serve) as server:
        assert client.ask(job(server)).answer is not None
    assert len(turns) == 3


def test_a_stopped_process_accepts_and_another_answers(client: RasClient) -> None:
    turns: list[int] = []

    def serve(one: Any) -> None:
        turns.append(1)
        (silent if len(turns) == 1 else says(GOOD))(one)

    with serving(serve) as server:
        assert client.ask(job(server)).answer is not None


# --- it does not -----------------------------------------------------------------------------------

FAULTS: list[tuple[str, Serve, str]] = [
    ("never answers", silent, "no answer in"),
    ("garbage", garbage, "what answers there is not NCCL RAS"),
    ("one byte now and then", trickles, "no answer in"),
    ("hangs when it is asked", after_handshake(silent), "no answer in"),
    ("hangs up at once", lambda _: None, "it hung up"),
    ("says nothing", says(""), "its answer is not believed: it is empty"),
    ("half an answer", half(json.dumps(GOOD)), "its answer is not believed: it is no answer"),
    ("half a text", speaks(None, recorded_text("sleep")[0][:600]), "its end is missing"),
    ("100 MB", floods(100 << 20), "its answer has more than 32 MiB"),
    ("protocol 1", speaks(None, protocol=1), "it speaks protocol 1, of an NCCL before 2.24"),
    ("another job", says(answer({0: {}}, pids={0: 7})), "another job answers there"),
]


@pytest.mark.parametrize(
    ("serve", "why"), [pair[1:] for pair in FAULTS], ids=[name for name, *_ in FAULTS]
)
def test_every_fault_is_a_reason_in_time(client: RasClient, serve: Serve, why: str) -> None:
    before = client.unanswered.counts
    with serving(serve) as server:
        began = time.monotonic()
        reply = client.ask(job(server), seconds=3.0)
        took = time.monotonic() - began
        assert server.connections <= child.TRIES
    assert client.unanswered.counts == before | {WHAT: before[WHAT] + 1}
    assert reply.answer is None
    assert why in reply.error
    assert took < (3.0 + SLACK + 4.0) * PATIENCE, "it waits for its child, and for nothing else"


def test_nobody_listens(client: RasClient) -> None:
    with serving(silent) as server:
        address = server.address
    before = client.unanswered.counts
    reply = client.ask(job(address))
    assert client.unanswered.counts == before  # most jobs have none
    assert reply == RasReply(
        error=f"nobody listens at 127.0.0.1 port {address.rpartition(':')[2]}", silent=True
    )


def test_switched_off(client: RasClient) -> None:
    reply = client.ask(job(OFF))
    assert reply.error == "the job has switched it off (NCCL_RAS_ENABLE=0)"


def test_a_helper_that_is_gone_is_a_reason() -> None:
    spawner = Spawner({child.NAME: child.serve})
    spawner.close()
    assert "not asked" in RasClient(spawner, Host()).ask(job("")).error


@pytest.mark.skipif(not ROOT, reason="needs a second user")
def test_a_process_of_another_user_is_not_believed(client: RasClient) -> None:
    """Whoever binds the port first could tell anything of a stranger's job."""
    with serving(says(GOOD)) as server:
        reply = client.ask(job(server, uid=NOBODY))
        assert server.messages == ["CLIENT PROTOCOL 2"]
    assert reply.error == f"a process of another user (uid {os.geteuid()}) answers there"


@pytest.mark.skipif(not ROOT, reason="needs a second user")
@pytest.mark.parametrize("text", ["127.0.0.1:{}", "[::ffff:127.0.0.1]:{}", "[::1]:{}"])
def test_a_listener_of_ipv6_is_no_way_around_that(client: RasClient, text: str) -> None:
    """It takes IPv4 connections, too, and the kernel lists those in the table of IPv6."""
    with serving(says(GOOD), host="::") as server:
        address = text.format(server.port)
        assert client.ask(job(address)).answer is not None
        reply = client.ask(job(address, uid=NOBODY))
    assert reply.error == f"a process of another user (uid {os.geteuid()}) answers there"


@pytest.mark.parametrize("host", ["127.0.0.1", "::"])
def test_a_connection_that_no_process_holds_is_nobodys_and_not_roots(host: str) -> None:
    """Before it is accepted and after it is closed the kernel tells user 0: who says all at once and closes is not believed."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family, dualstack_ipv6=":" in host) as server:
        link = socket.create_connection(("127.0.0.1", server.getsockname()[1]))
        assert socket_owner(link) is None
        accepted, _ = server.accept()
        found = socket_owner(link)
        assert found is not None
        assert (found.uid, found.inode) == (os.geteuid(), os.fstat(accepted.fileno()).st_ino)
        accepted.close()
        assert socket_owner(link) is None
        link.close()


def test_what_nobody_owns_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "socket_owner", partial(socket_owner, folder=tmp_path))
    with serving(says(GOOD)) as server:
        reply = carry_out(order(server))
    assert reply == RasReply(error="the kernel does not tell whose process answers there")


@pytest.mark.parametrize("whole", [True, False])
def test_equal_pids_in_another_container_are_not_our_job(client: RasClient, whole: bool) -> None:
    """Two containers on the host's network share the port, and their ranks may have the same user and pids."""
    with subprocess.Popen(("sleep", "600")) as rank:
        try:
            with serving(says(GOOD)) as server:
                plain = job(server)
                own = tuple(msgspec.structs.replace(one, pid=rank.pid) for one in plain.ranks)
                ours = msgspec.structs.replace(plain, ranks=own)
                reply = client.ask(ours, whole=whole, seconds=20.0)
                assert set(server.messages) == {"CLIENT PROTOCOL 2"}
        finally:
            rank.kill()
    assert reply == RasReply(error="another job answers there, and this one not")


def test_who_holds_a_socket() -> None:
    with socket.socket() as one, subprocess.Popen(("sleep", "600")) as other:
        inode = os.fstat(one.fileno()).st_ino
        assert (holds_socket(os.getpid(), inode), holds_socket(other.pid, inode)) == (True, False)
        other.kill()
        other.wait()
        assert holds_socket(other.pid, inode) is False


@pytest.mark.skipif(not ROOT, reason="needs a second user")
@pytest.mark.parametrize(
    ("pids", "believed"), [((100, 101), True), ((101, 102), False), ((102, 101), False)]
)
def test_where_nobody_may_see_who_holds_it_all_living_ranks_must_be_told(
    pids: tuple[int, int], believed: bool
) -> None:
    with serving(says(GOOD)) as server:
        carry_out(order(server))  # has Python's own files read, which nobody may not
        reply = _as_nobody(partial(carry_out, order(server, 20.0, pids=pids)))
    assert (reply.answer is not None) == believed
    assert reply.error == ("" if believed else "another job answers there, and this one not")


def test_an_excuse_is_cut_and_cleaned(client: RasClient) -> None:
    """A name of a field is the peer's own choice, and stands in the reason."""
    bad = json.dumps(GOOD).replace('"AllReduce": 6', '"\\u001b[2J' + "x" * 390 + '": "y"')
    with serving(speaks(bad)) as server:
        reply = client.ask(job(server))
    assert reply.error.startswith("its answer is not believed: it is no answer of NCCL RAS")
    assert reply.error.isprintable()
    assert len(reply.error) <= child.MAX_REASON
    error = carry_out(
        RasOrder(address="\x1b[2J" + "x" * 900, pids=(), host_pids=(), uid=0, seconds=1.0)
    ).error
    assert error.isprintable()
    assert len(error) <= child.MAX_REASON


# --- where to ask ----------------------------------------------------------------------------------


def test_what_the_environment_says() -> None:
    assert setting({}) == ""
    assert setting({"NCCL_RAS_ADDR": "localhost:4711"}) == "localhost:4711"
    assert setting({"NCCL_RAS_ENABLE": "0", "NCCL_RAS_ADDR": "localhost:4711"}) == OFF
    assert setting({"NCCL_RAS_ENABLE": "1", "NCCL_RAS_ADDR": "\x1b[2J" + "x" * 900}) != OFF
    assert len(setting({"NCCL_RAS_ADDR": "x" * 900})) == 100


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", [RasAddress("127.0.0.1", 28028), RasAddress("::1", 28028)]),
        ("localhost:4711", [RasAddress("127.0.0.1", 4711), RasAddress("::1", 4711)]),
        ("127.0.0.5:1", [RasAddress("127.0.0.5", 1)]),
        ("[::1]:28028", [RasAddress("::1", 28028)]),
        ("0.0.0.0:28028", [RasAddress("127.0.0.1", 28028)]),
        ("[::]:28028", [RasAddress("127.0.0.1", 28028), RasAddress("::1", 28028)]),
    ],
)
def test_addresses(text: str, expected: list[RasAddress]) -> None:
    assert list(addresses(text)) == expected


@pytest.mark.parametrize(
    "text", ["metadata.example:80", "off", "127.0.0.1", "127.0.0.1:0", "1.2.3.4:99999", ":28028"]
)
def test_no_name_is_looked_up(text: str) -> None:
    with pytest.raises(ValueError, match="NCCL_RAS_ADDR"):
        addresses(text)


@pytest.mark.parametrize("text", ["169.254.169.254:80", "192.0.2.7:28028", "[2001:db8::1]:28028"])
def test_an_address_elsewhere_is_never_asked(
    text: str, client: RasClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_own(addresses(text)[0].host)
    reply = client.ask(job(text))
    assert reply.error == f"NCCL_RAS_ADDR is {text}, which is no address of this node"


def test_own_addresses() -> None:
    assert is_own("127.0.0.1")
    found = own_addresses()
    assert "127.0.0.1" in found
    reachable = [one for one in found if not one.startswith("fe80:")]  # those need their interface
    assert all(map(is_own, reachable[:4]))


def test_whose_process_is_at_the_other_end() -> None:
    with serving(says(GOOD)) as server:
        talk = child.RasConnection(RasAddress("127.0.0.1", server.port), time.monotonic() + 2)
        observed: list[SocketOwner | None] = []
        talk.ask(1 << 20, lambda link: observed.append(socket_owner(link)))
    assert [one and one.uid for one in observed] == [os.geteuid()]


# --- the job's own network -------------------------------------------------------------------------

SERVER = """
import json, sys
sys.path[:0] = [{tests!r}]
from shared.capture.rasserver import RasServer, says, answer
import os, time
server = RasServer(says(answer({{0: {{"AllReduce": 3}}, 1: {{"AllReduce": 3}}}})), port=28028, alone=True)
print("ready", flush=True)
time.sleep(60)
"""


@contextmanager
def in_a_network_of_its_own() -> Iterator[int]:
    """A server at NCCL's own port on the loopback of a new network namespace; its pid."""
    script = SERVER.format(tests=str(Path(__file__).parents[2]))
    enter = ("unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh")
    process = subprocess.Popen(
        [*enter, sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
    finally:
        process.kill()
        process.communicate()


needs_unshare = pytest.mark.skipif(
    not ROOT or ("CI" not in os.environ and not (shutil.which("unshare") and shutil.which("ip"))),
    reason="needs root, unshare, ip",
)


def inside(pid: int) -> Job:
    """A job whose first rank is that process."""
    plain = job("")
    first, *others = plain.ranks
    first = msgspec.structs.replace(first, pid=pid)
    return msgspec.structs.replace(plain, ranks=(first, *others))


@needs_unshare
def test_a_job_in_a_network_of_its_own(client: RasClient) -> None:
    with in_a_network_of_its_own() as pid:
        assert client.ask(job("")).silent, "nobody may listen at NCCL's port on this machine itself"
        reply = client.ask(inside(pid))
    assert reply.error == ""
    assert reply.answer is not None
    assert reply.answer.own == ("127.0.0.1", "::1")


@needs_unshare
def test_without_the_right_to_enter_it_the_gap_names_the_right() -> None:
    with in_a_network_of_its_own() as pid:
        inode = Path(f"/proc/{pid}/ns/net").stat().st_ino
        wanted = RasOrder(
            address="", pids=(1,), host_pids=(1,), uid=0, seconds=1.0, pid=pid, network=inode
        )
        result = _as_nobody(partial(carry_out, wanted))
    assert result.error == "the job has a network of its own, which the agent may not enter"
    assert "CAP_SYS_ADMIN" in result.way_out


@needs_unshare
def test_a_pid_that_is_another_process_by_now_is_not_entered() -> None:
    with in_a_network_of_its_own() as pid:
        wanted = RasOrder(
            address="", pids=(1,), host_pids=(1,), uid=0, seconds=1.0, pid=pid, network=12345
        )
        assert carry_out(wanted).error.endswith("its process has changed")


def _as_nobody(work: Any) -> RasReply:
    """What it returns to a process without rights."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(NOBODY, NOBODY, NOBODY)
            os.write(write, msgspec.json.encode(work()))
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    return msgspec.json.decode(data, type=RasReply)


# --- beside a capture ------------------------------------------------------------------------------


def test_nobody_waits_longer_than_there_is_time() -> None:
    release = threading.Event()

    def ask(_: Job, seconds: float) -> RasReply:
        release.wait(30)
        return RasReply()

    beside = RasBackgroundQuery(ask, job(""), 20.0)
    began = time.monotonic()
    assert beside.take(0.2, uses_gpus=True) == (
        None,
        (Gap(what="NCCL RAS", reason="no answer in time"),),
    )
    assert time.monotonic() - began < 4.0 * PATIENCE
    release.set()


def test_a_job_without_gpus_owes_no_answer() -> None:
    silent_reply = RasReply(error="nobody listens", silent=True)
    taken = [
        RasBackgroundQuery(lambda *_: silent_reply, job(""), 1.0).take(1.0, uses_gpus=gpus)
        for gpus in (0, 1)
    ]
    assert taken == [(None, ()), (None, (Gap(what="NCCL RAS", reason="nobody listens"),))]


def test_of_a_large_job_the_node_of_rank_0_asks_alone() -> None:
    large = job("", world=8192)
    other = msgspec.structs.replace(
        large, ranks=tuple(msgspec.structs.replace(one, rank=one.rank + 8) for one in large.ranks)
    )
    assert nodes_of(large) == 4096
    assert (is_ours_to_ask(large), is_ours_to_ask(other)) == (True, False)
    numbers: list[int] = []

    def ask(*_: Any) -> RasReply:
        numbers.append(1)
        return RasReply(error="x")

    assert RasBackgroundQuery(ask, other, 1.0).take(1.0, uses_gpus=True) == (None, (ELSEWHERE,))
    RasBackgroundQuery(ask, large, 1.0).take(1.0, uses_gpus=True)
    assert numbers == [1]


def test_the_child_is_gone_when_the_answer_is_there(client: RasClient) -> None:
    with serving(silent) as server:
        client.ask(job(server), seconds=0.5)
    spawner = client._spawner
    children = Path(f"/proc/{spawner.helper_pid}/task/{spawner.helper_pid}/children")
    wait_until(lambda: children.read_text().strip() == "")
