"""A stall on many nodes: from the announcement of whoever noticed it to the report on the coordinator's disk.

The coordinator is a real agent; the others are simulated in PROCESSES processes: they announce themselves with the real
client and answer captures over real sockets, after the time that a capture takes. All of it shares this machine's cores.
"""

import asyncio
import json
import multiprocessing
import os
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from typing import Any

import msgspec

from bench.table import Row, show
from mldebug.cluster.messages import Announcement, RunNews
from mldebug.cluster.run_identity import run_key
from mldebug.cluster.slimming import slim
from mldebug.cluster.wire import pack
from mldebug.core.model import NodeCapture
from mldebug_agents.cluster.peers.net.client import Peer, PeerClient
from mldebug_agents.cluster.peers.net.identity import Identity, derive, identity
from mldebug_agents.cluster.peers.openapi import ANNOUNCE
from processes.harness import clean_environment, free_port, wait_for
from shared.cluster.nodes import replies, run, sleeper

EACH, PROCESSES = 8, 8
CAPTURE = 1.2  # seconds that a node takes for its own
BUDGET, MEMORY = 10.0, 500  # seconds, MiB
SPREAD = 1.0  # seconds from the first capture to the last
INCIDENT = "20300101T000000Z-00000000"


class Fleet:
    """The nodes of one process."""

    def __init__(self, proof: Identity, captures: dict[str, NodeCapture], to: Peer) -> None:
        self._proof, self._captures, self._to = proof, captures, to
        self._ports: dict[str, int] = {}
        found = replies(captures)
        self._answers = {name: pack(slim(reply)) for name, reply in found.items()}
        self.sent = self.connections = 0

    async def serve(self) -> None:
        """Listen for each node."""
        for name, answer in self._answers.items():
            server = await asyncio.start_server(
                lambda reader, writer, answer=answer: self._answer(reader, writer, answer),
                "127.0.0.1", 0, ssl=self._proof.server,
            )  # fmt: skip
            self._ports[name] = server.sockets[0].getsockname()[1]

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes
    ) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(x[15:]) for x in head.split(b"\r\n") if x.startswith(b"Content-Length")
            )
            await reader.readexactly(length)
            await asyncio.sleep(CAPTURE)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(answer) + answer)
            self.sent, self.connections = self.sent + len(answer), self.connections + 1
            await writer.drain()
            writer.close()
        except (OSError, asyncio.IncompleteReadError, ssl.SSLError):
            return

    def announce(self, name: str, stage: str = "watching", incident: str = "") -> None:
        """One node tells the coordinator."""
        capture = self._captures[name]
        ranks = [one.identity.rank for one in capture.ranks]
        news = RunNews(
            key=run_key(capture), name="train.py", world_size=capture.job.world_size,
            ranks=f"{ranks[0]}-{ranks[-1]}", stage=stage, incident=incident,
        )  # fmt: skip
        announcement = Announcement(node=name, agent=name, port=self._ports[name], runs=(news,))
        body = msgspec.json.encode(announcement)
        PeerClient(self._proof).ask(self._to, ANNOUNCE, body, timeout=30.0, most=1 << 20)

    def announce_all(self) -> None:
        """All of them, one after the other."""
        for name in self._captures:
            self.announce(name)


def simulate(
    key: Path,
    captures: dict[str, NodeCapture],
    to: Peer,
    ready: Barrier,
    go: Event,
    value: Any,
    first: bool,
) -> None:
    """One process."""

    async def live() -> None:
        fleet = Fleet(identity(key, derive), captures, to)
        await fleet.serve()
        await asyncio.to_thread(fleet.announce_all)
        before = time.process_time()
        await asyncio.to_thread(ready.wait, 300)
        if first:
            started = time.monotonic()
            await asyncio.to_thread(fleet.announce, next(iter(captures)), "blamed", INCIDENT)
            value.put(("began", started))
        await asyncio.to_thread(go.wait, 300)
        value.put(("cpu", time.process_time() - before, fleet.sent, fleet.connections))

    asyncio.run(live())


def rows(nodes: int) -> Iterator[Row]:
    """Of so many nodes."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _measured(nodes, Path(folder))


def _measured(nodes: int, folder: Path) -> Iterator[Row]:
    port, key = free_port(), folder / "key"
    key.write_text("0123456789abcdef" * 4)
    key.chmod(0o600)
    config = folder / "c.yaml"
    config.write_text(
        f"agent: {{state_dir: {folder}/state, listen: ''}}\n"
        f"cluster: {{key_file: {key}, peers: ['127.0.0.1:{port}'], listen: '127.0.0.1:{port}'}}\n"
    )
    with (folder / "log").open("wb") as log:
        agent = subprocess.Popen(
            [sys.executable, "-m", "mldebug", "agent", "--config", str(config)],
            stdout=log, stderr=log, env=clean_environment(folder),
        )  # fmt: skip
    try:
        wait_for("the coordinator", lambda: "coordinates" in (folder / "log").read_text(), 60)
        yield from _stall(nodes, folder, key, Peer("127.0.0.1", port), agent.pid)
    finally:
        agent.terminate()
        agent.wait(20)


def _stall(nodes: int, folder: Path, key: Path, to: Peer, agent: int) -> Iterator[Row]:
    odd = nodes * EACH // 2
    taken = run(nodes, EACH, {odd: sleeper()}).items()
    captures = [
        (name, msgspec.structs.replace(one, duration_seconds=CAPTURE)) for name, one in taken
    ]
    share = -(-nodes // PROCESSES)
    ready, go, results = (
        multiprocessing.Barrier(PROCESSES),
        multiprocessing.Event(),
        multiprocessing.Queue(),
    )
    processes = [
        multiprocessing.Process(
            target=simulate, args=(key, dict(captures[n * share : (n + 1) * share]), to, ready, go, results, n == 0)
        )
        for n in range(PROCESSES)
    ]  # fmt: skip
    for one in processes:
        one.start()
    before = _cpu(agent)
    _, began = results.get(timeout=300)
    before = _cpu(agent)
    file = folder / f"state/reports/{INCIDENT}/report.json"
    wait_for("the report", file.exists, 120)
    took, used = time.monotonic() - began, _cpu(agent) - before
    go.set()
    costs = [results.get(timeout=60) for _ in processes]
    for one in processes:
        one.join(30)
    report = json.loads(file.read_text())
    assert [one["rank"] for one in report["diagnosis"]["culprits"]] == [odd], report["diagnosis"]
    answered = sum(one["state"] == "answered" for one in report["nodes"])
    assert answered == nodes, f"{answered} of {nodes} answered"
    spread = next(one["what"] for one in report["timeline"] if "all within" in one["what"])
    memory = _peak(agent)
    what = f"{nodes:,} agents of {EACH} ranks"
    large = nodes == 1024
    yield Row(
        f"{what}: stall notice to report",
        f"{took:.1f} s",
        *(("≤ 10 s", took <= BUDGET) if large else ()),
    )
    yield Row(
        f"{what}: memory of the coordinator at most",
        f"{memory:.0f} MiB",
        *(("≤ 500 MiB", memory <= MEMORY) if large else ()),
    )
    yield Row(
        f"{what}: its CPU until then; of the {PROCESSES} processes that simulate",
        f"{used:.1f} s; {sum(one[1] for one in costs):.1f} s",
    )
    within = float(spread.rpartition("within ")[2].split()[0])
    yield Row(
        f"{what}: from the first capture to the last",
        f"{within:.1f} s",
        *(("< 1 s", within < SPREAD) if large else ()),
    )
    yield Row(
        f"{what}: {spread}",
        f"{sum(one[2] for one in costs) / 1e6:.1f} MB, {sum(one[3] for one in costs):,} connections",
    )


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def main() -> None:
    """Print the table."""
    counts = [int(one) for one in sys.argv[1:]] or [64, 1024]
    show("agents among themselves", [row for count in counts for row in rows(count)])


if __name__ == "__main__":
    main()
