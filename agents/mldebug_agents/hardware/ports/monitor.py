"""The node's network ports as the main loop knows them: orders readings, keeps the last one, and judges it."""

import time
from collections.abc import Iterable, Mapping

import msgspec

from mldebug.hardware.health.port_rules import port_health
from mldebug.hardware.health.thresholds import Thresholds
from mldebug.hardware.ports.state import NodePorts
from mldebug.jobs.known_issues.match import HCA, MAX_VALUE
from mldebug.status.snapshot import Snapshot
from mldebug_agents.hardware.ports.reader import PortOrder
from mldebug_agents.jobs.ranks.libraries import Program
from mldebug_agents.system.workers import Result, Worker

DEADLINE = 15.0
EVERY = 30.0  # seconds: each counter of InfiniBand is a question to the adapter's firmware


class PortMonitor:
    """Keeps the last readings of this node's ports, and has a worker take new ones. For the main loop's thread."""

    def __init__(self, worker: Worker) -> None:
        """`worker`: has a `PortReader` look."""
        self.worker = worker
        self._due = 0.0
        self._ports: NodePorts | None = None
        self._limits = Thresholds()

    def tick(self, programs: Mapping[int, Program], limits: Thresholds) -> None:
        """Order a new reading of the ports if one is due. `programs`: what runs here, by pid; its NCCL_IB_HCA says which
        ports matter.
        """
        now = time.monotonic()
        self._limits = limits
        if now >= self._due and not self.worker.busy:
            self._due = now + EVERY
            order = PortOrder(wanted=wanted_ports(programs.values()), flap_window=limits.event_window)  # fmt: skip
            self.worker.order(order)

    def on_result(self, result: Result) -> None:
        """Take the worker's result; after a failure the last reading is forgotten."""
        self._ports = result.value if isinstance(result.value, NodePorts) else None

    def show(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot, completed by the ports, their health, what could not be read of them, and the worker's state."""
        health = port_health(self._ports, self._limits) if self._ports else None
        return msgspec.structs.replace(
            snapshot,
            ports=self._ports,
            health=(*snapshot.health, *((health,) if health else ())),
            sources=(*snapshot.sources, self.worker.state()),
            gaps=(*snapshot.gaps, *(self._ports.gaps if self._ports else ())),
        )


def wanted_ports(programs: Iterable[Program]) -> tuple[str, ...]:
    """The values of NCCL_IB_HCA of the ranks here. Empty, so that any port may be in use, where a rank has none or a cut-off
    one.
    """
    values = [program.settings.get(HCA, "") for program in programs]
    return tuple(sorted(set(values))) if all(0 < len(one) < MAX_VALUE for one in values) else ()
