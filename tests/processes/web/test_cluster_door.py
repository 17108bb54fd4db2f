"""A node that has the key attacks a running agent; a stall on that agent's node is named on time all the same."""

import os
import secrets
import signal
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import msgspec
import pytest

from mldebug.cluster.messages import (
    SCHEMA,
    Announcement,
    CaptureOrder,
    ClusterView,
    Relayed,
    RunNews,
    Signal,
)
from mldebug.core.errors import MldebugError
from mldebug_agents.cluster.peers.net.client import Peer, PeerClient
from mldebug_agents.cluster.peers.net.identity import Identity, derive, identity
from mldebug_agents.cluster.peers.openapi import ANNOUNCE, CAPTURE, VIEW
from processes.agent.light import LightJob, light_job
from processes.harness import User, folder_for, free_port, wait_for
from processes.incidents.watching import Report, RunningAgent, settings, watching
from shared.cluster.hostile import worst_of
from shared.system.patience import PATIENCE

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(240)]

MOST = 8 << 20
LATE = 10.0  # seconds that a report may come later than without the attack, which uses the same two cores
SOON = 45.0  # seconds from the stall to the report, on a machine that is busy with other things
RUN = {"TORCHELASTIC_RUN_ID": "abc123", "TORCHELASTIC_RESTART_COUNT": "0", "MASTER_ADDR": "10.77.0.1"}  # fmt: skip
HEAD = b"POST /peer/v1/announce HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"


class Field:
    """An agent with a key, a job that it watches, and somebody who has the key."""

    def __init__(self, agent: RunningAgent, victim: LightJob, proof: Identity, port: int) -> None:
        self.agent, self.victim, self.proof = agent, victim, proof
        self._client, self._to = PeerClient(proof), Peer("127.0.0.1", port)

    def ask(self, what: object, path: str) -> bytes:
        body = b"" if what is None else what if isinstance(what, bytes) else msgspec.json.encode(what)  # fmt: skip
        return self._client.ask(self._to, path, body, timeout=30.0, most=MOST)

    def run(self) -> RunNews | None:
        """As the agent announces it to others."""
        view = msgspec.json.decode(self.ask(None, VIEW), type=ClusterView)
        return next((run for one in view.peers for run in one.runs if run.ranks == "0-1"), None)

    def tell(self, body: bytes) -> bytes:
        """Announce from one address that is not the agent's own; the begin of its answer."""
        head = f"POST {ANNOUNCE} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        with self.connect("127.6.6.6") as link:
            link.sendall(head.encode() + body)
            return link.recv(1000)

    def connect(self, address: str = "") -> ssl.SSLSocket:
        """From another address of the loopback each time, unless it is named."""
        link = socket.socket()
        try:
            link.settimeout(30)
            link.bind((address or f"127.{secrets.randbelow(250)}.{secrets.randbelow(250)}.9", 0))
            link.connect(self._to[:2])
            return self.proof.client.wrap_socket(link)
        except OSError:
            link.close()
            raise

    def report(self, job: LightJob | None = None) -> Report | None:
        pids = set((job or self.victim).ranks.values())
        stopped = (one for one in self.agent.reports() if one["diagnosis"]["culprits"])
        return next((one for one in stopped if pids & {r["pid"] for r in one["ranks"]}), None)

    def named(self, job: LightJob | None = None) -> list[int]:
        """Stop a rank, and wait until it is named."""
        os.kill((job or self.victim).ranks[1], signal.SIGSTOP)
        (job or self.victim).hang()
        found = wait_for("the report", lambda: self.report(job), SOON)
        return [one["rank"] for one in found["diagnosis"]["culprits"]]


@pytest.fixture
def field() -> Iterator[Field]:
    with folder_for(User()) as folder:
        key, port = folder / "key", free_port()
        key.write_text(secrets.token_hex(32))
        key.chmod(0o600)
        cluster = f"cluster: {{key_file: {key}, listen: '127.0.0.1:{port}', peers: ['127.0.0.1:{port}'], networks: [127.0.0.0/8]}}\n"  # fmt: skip
        config = settings(folder, stall="{timeout: 6s, interval: 1s}") + cluster
        with watching(folder, config) as agent, _job(folder) as victim:
            found = Field(agent, victim, identity(key, derive), port)
            wait_for("the run is announced", found.run, 60)
            yield found
            assert "Traceback" not in agent.log
            assert "internal error" not in agent.log


@contextmanager
def _job(folder: Path) -> Iterator[LightJob]:
    with light_job(folder / "victim", more=RUN) as job:
        yield job


@contextmanager
def meanwhile(*deeds: Callable[[], object]) -> Iterator[None]:
    """Each again and again in a thread of its own."""
    done = threading.Event()

    def repeat(deed: Callable[[], object]) -> None:
        while not done.is_set():
            with suppress(OSError, MldebugError):
                deed()
            done.wait(0.05)

    threads = [threading.Thread(target=repeat, args=(one,), daemon=True) for one in deeds]
    for one in threads:
        one.start()
    try:
        yield
    finally:
        done.set()
        for one in threads:
            one.join(60)


def test_steps_of_who_does_not_have_the_ranks_hide_no_stall(field: Field) -> None:
    """For ever: the liar's log records and heartbeats counted, of which the node itself saw none."""
    run = field.run()
    assert run is not None

    def lie() -> None:
        now = time.monotonic()
        signals = tuple(Signal(kind=one, value=now, age=0.0) for one in ("step", "log", "heartbeat"))  # fmt: skip
        news = msgspec.structs.replace(run, step=int(now), signals=signals)
        field.ask(Announcement(node="liar", agent="liar", port=9, runs=(news,)), ANNOUNCE)

    with meanwhile(lie):
        lie()
        assert field.named() == [1]


def test_the_worst_of_every_field_ends_nothing_and_hides_no_stall(field: Field) -> None:
    run = field.run()
    assert run is not None
    right = {"schema": SCHEMA, "port": 9, "node": "liar", "runs.0.key": list(run.key), "runs.0.ranks": "2", "runs.0.world_size": 4, "runs.0.attempt": 0, "relayed.0.node": "other", "relayed.0.port": 9}  # fmt: skip
    announced = worst_of(Announcement, {**right, "relayed.0.runs": []})
    ordered = worst_of(CaptureOrder, {"schema": SCHEMA, "key": list(run.key), "attempt": 0})
    places: set[str] = set()

    def send() -> None:
        for path, messages in ((CAPTURE, ordered), (ANNOUNCE, announced)):
            for place, body in islice(messages, 0, None, 4):  # some of each place: all are tried
                places.add(place)  # in tests/unit/cluster/test_hostile_fields.py
                with suppress(OSError, MldebugError):
                    field.ask(body, path)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    assert field.named() == [1]
    sender.join(150)
    assert not sender.is_alive()
    assert {"runs.0.ranks", "runs.0.node_list", "runs.0.signals.0.value", "incident"} <= places
    assert field.run() is not None


def test_a_storm_of_orders_leaves_the_stall_its_verdict(field: Field) -> None:
    run, number = field.run(), iter(range(1_000_000))
    assert run is not None

    def order(incident: str = "") -> None:
        field.ask(CaptureOrder(key=run.key, attempt=0, incident=incident), CAPTURE)

    with meanwhile(order, order, lambda: order(f"storm-{next(number)}")):
        wait_for("orders are refused", lambda: "has ordered 12 captures" in field.agent.log, 120)
        assert "all ranks of it are here" in field.agent.log, "nobody else names its incident"
        assert field.named() == [1]


def test_half_questions_and_thousands_of_names_leave_the_door_open(field: Field) -> None:
    held: deque[ssl.SSLSocket] = deque()
    number = iter(range(1_000_000))

    def half() -> None:
        held.append(link := field.connect())
        link.sendall(HEAD)
        if len(held) > 200:
            held.popleft().close()  # two threads: only the one that takes it out closes it

    def announce_many() -> None:
        runs = tuple(
            RunNews(
                key=("env", secrets.token_hex(4)), ranks="0-999999", world_size=1_000_000,
                node_list="x" * 8000, stage="blamed", incident="x",
            )
            for _ in range(60)
        )  # fmt: skip
        name = f"evil{next(number)}"
        field.ask(Announcement(node=name, agent=name, port=9, runs=runs), ANNOUNCE)

    with meanwhile(half, half, announce_many):
        wait_for("a crowd is there", lambda: len(held) > 150, 60)
        assert field.ask(Announcement(node="honest", agent="h", port=9), ANNOUNCE)
        assert field.named() == [1]
    for link in held:
        link.close()


@pytest.mark.long  # of the limits: tests/unit/web/test_server.py
def test_four_thousand_stalled_nodes_leave_the_door_open(field: Field) -> None:
    """Each from an address of its own, with the key, in the middle of a question."""
    held: deque[ssl.SSLSocket] = deque()
    numbers = iter(range(256, 1_000_000))
    late: list[float] = []

    def stalled() -> None:
        number = next(numbers)
        held.append(link := field.connect(f"127.9.{number // 250 % 250}.{number % 250 + 1}"))
        link.sendall(HEAD)
        if len(held) > 4096:
            held.popleft().close()

    def many() -> None:
        for _ in range(100):
            with suppress(OSError):
                stalled()

    with meanwhile(many, many, many):
        wait_for("a crowd is there", lambda: len(held) > 1200, 120)
        for _ in range(5):
            began = time.monotonic()
            assert field.ask(Announcement(node="honest", agent="h", port=9), ANNOUNCE)
            late.append(time.monotonic() - began)
        assert field.named() == [1]
        wait_for("all have been there", lambda: len(held) > 4000, 120)
        assert field.ask(Announcement(node="honest", agent="h", port=9), ANNOUNCE)
    print(f"answers after {late} s")
    for link in held:
        link.close()


def heavy_messages() -> list[bytes]:
    """Messages that may be sent, and cost as much as a message can: one run hundreds of times, scattered ranks, 4,352 runs."""

    def announced(name: str, *runs: RunNews, relayed: tuple[Relayed, ...] = ()) -> bytes:
        return msgspec.json.encode(
            Announcement(node=name, agent=name, port=9, runs=runs, relayed=relayed)
        )

    def runs(name: str) -> tuple[RunNews, ...]:
        return tuple(
            RunNews(key=("env", f"{name}-{one}"), ranks="0", stage="blamed", incident="x", launchers=64)
            for one in range(256)
        )  # fmt: skip

    def scattered(first: int) -> bytes:
        ranks = ",".join(str(rank) for rank in range(first, 9000, 2))
        some = (RunNews(key=("env", f"s{one}"), ranks=ranks, world_size=9000) for one in range(40))
        return announced("scattered", *some)

    same = RunNews(key=("env", "same"), launchers=64, stage="blamed")
    relayed = tuple(
        Relayed(node=f"far{one}", agent="x", port=9, address="127.6.6.6", runs=runs(f"far{one}"))
        for one in range(16)
    )
    names = [announced(f"e{one}", same) for one in range(300)]
    many = [announced("e0", *[same] * 256), announced("many", *runs("near"), relayed=relayed)]
    return [*names, *many, scattered(0), scattered(1)]


def test_messages_that_cost_all_they_may_delay_no_verdict(field: Field, tmp_path: Path) -> None:
    """With a megabyte of scattered ranks again and again the report came after 34 s in place of 8, with one run 256 times not at all."""
    light = {"TORCHELASTIC_RUN_ID": "first", "TORCHELASTIC_RESTART_COUNT": "0"}
    with light_job(tmp_path / "first", more=light) as first:
        wait_for("two runs are found", lambda: field.agent.log.count("ranks found") > 1, 60)
        began = time.monotonic()
        assert field.named(first) == [1]
        usual = time.monotonic() - began
    names_first = heavy_messages()
    for body in names_first:
        field.tell(body)
    heavy, lock = iter(names_first[-4:] * 100_000), threading.Lock()
    answers: list[object] = []

    def send() -> None:
        with lock:
            body = next(heavy)
        answers.append(field.tell(body))

    def enough() -> bool:
        """It has cost too much; on a busy machine an agent gets too little of the CPU for that."""
        return "more time than one node has" in field.agent.log or len(answers) >= 400

    with meanwhile(*[send] * 6):
        wait_for("many are answered or refused", enough, 60)
        began = time.monotonic()
        assert field.named() == [1]
        assert time.monotonic() - began < usual + LATE * PATIENCE
