"""One run of the collectives probe: makes the orders for its ranks, and results from the events that they print."""

import os
import shlex
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from mldebug.core.errors import FailedCheckError, MldebugError
from mldebug.core.progress import progress_line
from mldebug.core.redact import clean
from mldebug.probes.collectives import CollectiveResult, collective_result
from mldebug_agents.probes.child import ChildExit, Event, ProbeChild
from mldebug_agents.probes.environment import INSIDE
from mldebug_agents.probes.guard import BusyError
from mldebug_agents.probes.multi_node import (
    Nodes,
    ProbeNodeFacts,
    agreed_device,
    check_idle,
    first_cause,
)
from mldebug_agents.probes.rank_events import CollectiveTimes, MeasuredRanks, Skipped, checked_event
from mldebug_agents.probes.session import SPARE, ProbeSettings, Session, check_ranks
from mldebug_agents.system.spawn import Spawner

TYPED = (
    "device",
    "ops",
    "sizes",
    "dtype",
    "warmup",
    "repeats",
    "timeout",
    "cell_seconds",
    "memory",
    "alone",
    "seconds",
)
SIZES = {
    "cuda": (1 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30),
    "cpu": (1 << 10, 1 << 20, 16 << 20),
}
CPU_RANKS = 2
CELL_SECONDS = 5.0  # about, for all repetitions of one op with one payload


class CollectivesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be measured. `nproc` 0: one rank for each GPU, 2 on CPUs; no `sizes`: a default list.

    `memory`: bytes that each rank may take; None: a share of what is free.
    """

    nproc: int
    ops: tuple[str, ...]
    sizes: tuple[int, ...] = ()
    dtype: str = "float32"
    warmup: int = 5
    repeats: int = 20
    timeout: float = 60.0
    memory: int | None = None
    interface: str = ""


class Callbacks(msgspec.Struct, frozen=True, kw_only=True):
    """Functions that are called with results, skipped measurements and the description of the ranks, as they come."""

    result: Callable[[CollectiveResult], object] = id
    skipped: Callable[[str], object] = id
    joined: Callable[[MeasuredRanks], object] = id


class Measurement:
    """The measurement of collectives: its options and, while it runs, its growing `results`. `gigabits`: of each RDMA port of the node that
    has least, where it is over several; None on one.
    """

    def __init__(self, request: CollectivesRequest, telling: Callbacks | None = None) -> None:
        self.request, self._telling = request, telling or Callbacks()
        self.results: list[CollectiveResult] = []
        self.skipped: list[str] = []
        self.about = MeasuredRanks()
        self.gigabits: tuple[float, ...] | None = None

    def run(self, session: Session) -> ChildExit:
        """Measure on this node alone. Returns how the child ended; what it measured is added to `results` as it comes."""
        usual = session.facts.gpus if session.device == "cuda" else CPU_RANKS
        ranks = list(range(self.request.nproc or usual))
        check_ranks(session, len(ranks))
        order = self.order(session.device, ranks, len(ranks), "127.0.0.1", free_port())
        return session.run("collectives", order, self.on_event, env=self.variables())

    def run_on(self, nodes: Nodes, wanted: ProbeSettings, spawner: Spawner) -> ChildExit:
        """Measure over these nodes. Raises MldebugError for a node that cannot take part, or is busy."""
        until = time.monotonic() + wanted.duration

        def run(argv: list[str], on_event: Callable[[Event], None]) -> ChildExit:
            seconds = max(1.0, until - time.monotonic()) + SPARE
            return ProbeChild(spawner).run(argv, os.environ, seconds, on_event)

        facts = nodes.ask(run, self.request.interface)
        self.gigabits = min((one.gigabits for one in facts.values()), key=sum)
        device = agreed_device(facts, wanted.device)
        if not wanted.beside_jobs:
            check_idle(facts, device == "cuda")
        orders = self._orders(nodes.hosts, facts, device, until - time.monotonic())
        for _, order in orders.values():
            order["alone"] = not wanted.beside_jobs
        with progress_line("measuring") as line:
            listener = line.before(self.on_event)
            return first_cause(nodes.run(run, orders, dict.fromkeys(nodes.hosts, listener)))

    def _orders(
        self, hosts: tuple[str, ...], facts: dict[str, ProbeNodeFacts], device: str, seconds: float
    ) -> dict[str, tuple[str, dict[str, Any]]]:
        first = facts[hosts[0]]
        fewest = min(one.gpus for one in facts.values()) if device == "cuda" else CPU_RANKS
        each = self.request.nproc or fewest
        if device == "cuda" and each > fewest:
            raise MldebugError(
                f"{each} ranks were wanted, and a node has {fewest} GPUs", "fewer --nproc"
            )
        world = each * len(hosts)
        address = first.address or hosts[0]
        made = {}
        for number, host in enumerate(hosts):
            ranks = list(range(number * each, (number + 1) * each))
            order = self.order(device, ranks, world, address, first.port)
            made[host] = ("collectives", {**order, "seconds": max(1.0, seconds)})
        return made

    def torchrun(
        self, hosts: tuple[str, ...], wanted: ProbeSettings, port: int, kept: Mapping[str, str]
    ) -> Iterator[str]:
        """For each host, the command line by which a user starts the measurement there. `kept`: variables that change the
        results.
        """
        order = self.order(wanted.device, [], 0, "", 0)
        order |= {"alone": not wanted.beside_jobs, "seconds": wanted.duration}
        typed = {name: value for name, value in order.items() if name in TYPED}
        words = shlex.join([str(INSIDE), "collectives", msgspec.json.encode(typed).decode()])
        given = {**kept, **self.variables()}
        settings = "".join(f"{name}={shlex.quote(value)} " for name, value in given.items())
        python = wanted.python and shlex.quote(wanted.python)
        launcher = f"{python} -m torch.distributed.run" if python else "torchrun"
        for number, host in enumerate(hosts):
            place = f"--master-addr {hosts[0]} --master-port {port}"
            many = (
                f"--nnodes {len(hosts)} --node-rank {number} --nproc-per-node {self.request.nproc}"
            )
            yield f"{settings}{launcher} {many} {place} {words}  # on {host}"

    def order(
        self, device: str, ranks: list[int], world: int, address: str, port: int
    ) -> dict[str, Any]:
        """The order for the ranks of one node, as `inside/collectives.py` takes it: `ranks` of this node out of `world`,
        which meet at `address` and `port`.
        """
        request = self.request
        return {
            "ranks": ranks,
            "world": world,
            "address": address,
            "port": port,
            "device": device,
            "ops": request.ops,
            "sizes": request.sizes or SIZES[device],
            "dtype": request.dtype,
            "warmup": request.warmup,
            "repeats": request.repeats,
            "timeout": request.timeout,
            "cell_seconds": CELL_SECONDS,
            "memory": request.memory,
        }

    def variables(self) -> dict[str, str]:
        """The environment variables that select the chosen network interface; empty where none was chosen."""
        chosen = self.request.interface
        return {"GLOO_SOCKET_IFNAME": chosen, "NCCL_SOCKET_IFNAME": chosen} if chosen else {}

    def on_event(self, event: Event) -> None:
        """Handle one event of a rank; raises EvidenceError for one that is not valid."""
        if event["event"] == "joined":
            self.about = checked_event(event, MeasuredRanks)
            self._telling.joined(self.about)
        elif event["event"] == "skipped":
            one = checked_event(event, Skipped)
            what = f"{one.op} of {one.bytes} bytes is skipped: {one.reason}"
            self.skipped.append(clean(what, 400))
            self._telling.skipped(self.skipped[-1])
        elif event["event"] == "cell":
            cell = checked_event(event, CollectiveTimes)
            found = collective_result(cell.op, cell.bytes, cell.times, cell.wrong)
            self.results.append(found)
            self._telling.result(found)


def check_ended(ended: ChildExit, measurement: Measurement, kept: Mapping[str, str]) -> None:
    """Raise MldebugError where a measurement did not run to its end, or has measured nothing. `kept`: variables that change results."""
    if ended.outcome == "cancelled":
        raise BusyError(f"the probe was ended: {ended.reason}", "measure when the node is idle")
    if ended.outcome != "done":
        raise FailedCheckError(_sentence(ended), _way_out(ended, kept))
    if not measurement.results:
        why = measurement.skipped[0] if measurement.skipped else "no rank reported anything"
        raise MldebugError(f"nothing was measured: {why}", "smaller --sizes, or other --ops")


def _sentence(ended: ChildExit) -> str:
    if ended.outcome == "late":
        return f"the probe took too long: {ended.reason}"
    return f"the probe failed: {ended.reason}"


def _way_out(ended: ChildExit, kept: Mapping[str, str]) -> str:
    if ended.outcome == "late":
        return "fewer --ops, smaller --sizes, or a longer --duration"
    variables = ", ".join(f"{name}={value}" for name, value in kept.items())
    return f"is it one of these variables? {variables}" if variables else ""


def free_port() -> int:
    """A TCP port of this host that is free now."""
    with socket.socket() as one:
        one.bind(("", 0))
        port: int = one.getsockname()[1]
    return port
