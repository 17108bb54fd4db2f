"""The node's network ports as the main loop knows them: orders readings, keeps the last one, and judges it."""

import contextlib
import time
from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from mldebug.core.model import Fault, NodeCapture
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.goodput.straggler import SampledStretch
from mldebug.hardware.health.faults import faults_of_ports
from mldebug.hardware.health.port_rules import port_health, slow_link
from mldebug.hardware.health.thresholds import Thresholds
from mldebug.hardware.ports.neighbours import ports_to_compare, rdma_gigabits
from mldebug.hardware.ports.state import NodePorts
from mldebug.jobs.known_issues.match import HCA, MAX_VALUE
from mldebug.status.snapshot import Snapshot
from mldebug_agents.hardware.ports.reader import PortOrder
from mldebug_agents.jobs.ranks.libraries import Program
from mldebug_agents.state.key_value_store import KeyValueStore
from mldebug_agents.system.workers import Result, Worker

DEADLINE = 15.0
EVERY = 30.0  # seconds: each counter of InfiniBand is a question to the adapter's firmware
MEMO = "ports_once_up"  # the name under which the memory keeps them
SOON = 5.0  # while a stall is suspected: a port that went down then is its likely cause


class PortsOnceUp(msgspec.Struct, frozen=True, kw_only=True):
    """The network ports (InfiniBand, Ethernet) that were up at some time since the node was booted. `gigabits`: by name, the highest rate
    in Gbit/s; 0 where it is not known.
    """

    boot_id: str = ""
    gigabits: dict[str, float] = {}


class PortMonitor:
    """Keeps the last readings of this node's ports, and has a worker take new ones. For the main loop's thread."""

    def __init__(self, worker: Worker, node: str, memory: KeyValueStore, boot_id: str) -> None:
        """`worker`: has a `PortReader` look. `node`: this node's name. `memory`: keeps which ports were up, for the next agent;
        `boot_id`: of the running kernel, since a reboot is when cables are moved.
        """
        self.worker, self._node = worker, node
        self._memory, self._boot_id = memory, boot_id
        self._earlier: PortsOnceUp | None = None
        self._due = self._ordered_at = 0.0
        self._ports: NodePorts | None = None
        self._limits = Thresholds()

    def tick(self, programs: Mapping[int, Program], limits: Thresholds, *, soon: bool) -> None:
        """Order a new reading of the ports if one is due. `programs`: what runs here, by pid; its NCCL_IB_HCA says which
        ports matter. `soon`: a stall is suspected, so the ports are read every `SOON` seconds.
        """
        now = time.monotonic()
        self._limits = limits
        if soon:
            self._due = min(self._due, self._ordered_at + SOON)
        if now >= self._due and not self.worker.busy:
            self._due, self._ordered_at = now + EVERY, now
            order = PortOrder(
                wanted=wanted_ports(programs.values()),
                flap_window=limits.event_window,
                earlier=self._once_up().gigabits,
            )
            self.worker.order(order)

    def on_result(self, result: Result) -> None:
        """Handle the worker's result; after a failure the last reading is forgotten."""
        self._ports = result.value if isinstance(result.value, NodePorts) else None
        if self._ports is None or not self._memory.opened:
            return
        now = self._once_up().gigabits | {
            one.now.name: one.best_gigabits or 0.0 for one in self._ports.ports if one.once_up
        }
        if now != self._once_up().gigabits:
            self._earlier = PortsOnceUp(boot_id=self._boot_id, gigabits=now)
            self._memory.remember(MEMO, msgspec.json.encode(self._earlier))

    def _once_up(self) -> PortsOnceUp:
        """The ports that were up since the node was booted, as the memory has them once it is open."""
        if self._earlier is None and self._memory.opened:
            self._earlier = _ports_once_up(self._memory.memo(MEMO), self._boot_id)
        return self._earlier or PortsOnceUp()

    def capture(self, capture: NodeCapture) -> NodeCapture:
        """The capture, with the ports that its other nodes are compared by, and those that went down added to its faults."""
        ports = ports_to_compare(self._ports) if self._ports else None
        faults = (*capture.faults, *self._faults())
        return replace(capture, faults=faults, ports=ports)

    def complete_exit(self, attempt: AttemptExit) -> AttemptExit:
        """The exit, with ports that went down added to its faults."""
        return replace(attempt, faults=(*attempt.faults, *self._faults()))

    def complete_samples(self, stretch: SampledStretch) -> SampledStretch:
        """The samples of a run's ranks, with what the ports of this node carry, and one of them that is up and not well."""
        if self._ports is None:
            return stretch
        link, gigabits = slow_link(self._ports, self._limits), rdma_gigabits(self._ports)
        ranks = tuple(
            replace(one, evidence=replace(one.evidence, link=link, port_gigabits=gigabits))
            for one in stretch.ranks
        )
        return replace(stretch, ranks=ranks)

    def _faults(self) -> tuple[Fault, ...]:
        return faults_of_ports(self._ports, self._node) if self._ports else ()

    def show(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot, completed by the ports, their health, what could not be read of them, and the worker's state."""
        health = port_health(self._ports, self._limits) if self._ports else None
        return replace(
            snapshot,
            ports=self._ports,
            health=(*snapshot.health, *((health,) if health else ())),
            sources=(*snapshot.sources, self.worker.state()),
            gaps=(*snapshot.gaps, *(self._ports.gaps if self._ports else ())),
        )


def wanted_ports(programs: Iterable[Program]) -> tuple[str, ...]:
    """The values of NCCL_IB_HCA of the ranks on this node. Empty, so that any port may be in use, where a rank has none or
    a cut-off one.
    """
    values = [program.settings.get(HCA, "") for program in programs]
    return tuple(sorted(set(values))) if all(0 < len(one) < MAX_VALUE for one in values) else ()


def _ports_once_up(stored: bytes, boot_id: str) -> PortsOnceUp:
    """What an earlier agent stored; nothing where that cannot be read, or was stored before the last boot."""
    with contextlib.suppress(msgspec.DecodeError):
        found = msgspec.json.decode(stored, type=PortsOnceUp)
        if boot_id and found.boot_id == boot_id:
            return found
    return PortsOnceUp(boot_id=boot_id)
