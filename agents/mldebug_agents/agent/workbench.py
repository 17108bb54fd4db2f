"""The tools that every look at this node needs, opened together and closed together."""

import math
import os
import socket
from typing import Self

from mldebug.capture.nccl_ras.process_map import RasWorld
from mldebug.config.schema import Config
from mldebug.core.model import Job
from mldebug.core.plugins import create_all, load
from mldebug.jobs.logs.parser import LogParser
from mldebug_agents.capture.capture import Capturer, CaptureSettings
from mldebug_agents.capture.flight_recorder.collector import FlightRecorderCollector
from mldebug_agents.capture.nccl_ras import child as asking
from mldebug_agents.capture.nccl_ras.client import GLANCE, RasClient
from mldebug_agents.capture.stacks.pyspy import PySpy
from mldebug_agents.capture.trace.collector import TraceCollector
from mldebug_agents.cluster.peers.net import identity as proving
from mldebug_agents.hardware.gpu.child import messages
from mldebug_agents.hardware.gpu.child import server as serving
from mldebug_agents.hardware.gpu.node_reader import node_reader
from mldebug_agents.jobs.hook import switches
from mldebug_agents.jobs.hook.flight_recorder import HookFlightRecorder
from mldebug_agents.jobs.hook.signals import HookSignals
from mldebug_agents.jobs.hook.stacks import HookStacks
from mldebug_agents.jobs.ranks.discovery import RankFinder
from mldebug_agents.jobs.ranks.known_issues import KnownIssueFinder
from mldebug_agents.state import client as keeper
from mldebug_agents.state import server as keeping
from mldebug_agents.storage.child import client as probing
from mldebug_agents.storage.child import server as probed
from mldebug_agents.storage.dir_sizes import entry as counting
from mldebug_agents.storage.dir_sizes import messages as trees
from mldebug_agents.system.failure_counts import FailureCounts
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import WORKERS, Spawner


class Workbench:
    """Open before any thread is started: the process starter forks its helper first."""

    def __init__(self, config: Config, root: str = "/", *, probes: bool = False) -> None:
        """`probes`: see `RankFinder`."""
        self.config = config
        self.node = socket.gethostname()
        self.spawner = Spawner(
            {
                **WORKERS,
                keeper.NAME: keeping.serve,
                messages.NAME: serving.serve,
                switches.NAME: switches.serve,
                asking.NAME: asking.serve,
                probing.NAME: probed.serve,
                proving.NAME: proving.serve,
                trees.NAME: counting.serve,
            }
        )
        self.reader = Reader(self.spawner)
        self.host = Host(root)
        self.filesystems = probing.MountClient(self.spawner)
        self.gpus = node_reader(self.spawner, self.host, config.gpus)
        self.unanswered = FailureCounts()
        self.ras = RasClient(self.spawner, self.host, self.unanswered)
        hooked = HookSignals(self.host, self.reader)
        self._hook = HookStacks(hooked, self.reader)
        self._flight = HookFlightRecorder(hooked, self.reader, self.unanswered)
        self.pyspy = self._py_spy(config)
        self._log_formats = create_all("logs")
        self._own_formats = {
            name: load("logs", one.kind).create(one.options) for name, one in config.logs.items()
        }
        launchers = create_all("launchers")
        self.finder = RankFinder(
            self.host, self.reader, self.node, launchers, self._ask_world, probes
        )
        self.traps = KnownIssueFinder(self.host, self.reader)
        self.rings = TraceCollector(self.host, self.reader, config.capture.trace_folders)
        self.flights = FlightRecorderCollector(
            self.host, self.reader, self.traps.installed, self.unanswered
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def log_parser(self) -> LogParser:
        """A parser for one log: the formats of the `logs` section first, then the built-in ones."""
        return LogParser(self._log_formats, self._own_formats)

    def capturer(self, longest: float = math.inf) -> Capturer:
        """A capturer with the settings of the `capture` section, that watches for `longest` seconds at most."""
        wanted = self.config.capture
        workers = 0 if wanted.workers == "auto" else wanted.workers
        settings = CaptureSettings(
            watch=min(wanted.watch, longest),
            native=wanted.native,
            workers=workers,
            deadline=wanted.deadline,
        )
        usual = Capturer(
            *(self.host, self.reader, self.pyspy, self.node, settings), flights=self._flight.ask
        )
        if wanted.flight_recorder:
            usual.more_flights = self.flights.add
        usual.traces = self.rings.add
        if wanted.nccl_ras:
            usual.ras = lambda job, seconds: self.ras.ask(job, seconds=seconds)
        return usual

    def _ask_world(self, some: Job) -> RasWorld | None:
        """Which of these processes is which rank, as NCCL RAS says."""
        if not self.config.capture.nccl_ras:
            return None
        return self.ras.ask(some, whole=False, seconds=GLANCE).world

    def _py_spy(self, config: Config) -> PySpy:
        return PySpy(self.spawner, str(config.capture.py_spy), self._hook.dump)

    def reload(self, config: Config) -> None:
        """Go on under another `capture` section; what runs now ends under the old one."""
        changed = config.capture.py_spy != self.config.capture.py_spy
        self.config = config
        if changed:
            self.pyspy = self._py_spy(config)

    def close(self) -> None:
        """End the reader, the GPU reader and the helper."""
        self.gpus.close()
        self.filesystems.close()
        self.reader.close()
        self.spawner.close()


def is_root() -> bool:
    """True where nothing on this node is closed to us by user."""
    return os.geteuid() == 0
