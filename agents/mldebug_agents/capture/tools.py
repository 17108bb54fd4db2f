"""Everything that is needed to look at ranks and capture them, built once for an agent or a command."""

import math
from collections.abc import Mapping, Sequence

from mldebug.capture.nccl_ras.process_map import RasWorld
from mldebug.core.model import FlightRecord, Job, RankIdentity
from mldebug.core.plugins import create, create_all
from mldebug.jobs.logs.parser import LogParser
from mldebug_agents.capture.capture import Capturer, CaptureSettings
from mldebug_agents.capture.flight_recorder.collector import FlightRecorderCollector
from mldebug_agents.capture.nccl_ras.client import GLANCE, RasClient
from mldebug_agents.capture.stacks.pyspy import PySpy
from mldebug_agents.capture.trace.collector import TraceCollector
from mldebug_agents.jobs.hook.flight_recorder import HookFlightRecorder
from mldebug_agents.jobs.hook.requests import HookRequests
from mldebug_agents.jobs.hook.signals import HookSignals
from mldebug_agents.jobs.hook.stacks import HookStacks
from mldebug_agents.jobs.ranks.discovery import RankFinder
from mldebug_agents.jobs.ranks.known_issues import KnownIssueFinder
from mldebug_agents.system.context import Context
from mldebug_agents.system.failure_counts import FailureCounts

TIMED_CALLS = 2.0  # seconds in which ranks have to write their Flight Recorders for a comparison


class CaptureTools:
    """All finders, collectors and clients for evidence of ranks on this node, one of each.

    All may be used from any thread.
    """

    def __init__(self, context: Context, *, probes: bool = False) -> None:
        """`probes`: processes of a probe count as ranks, too (see `RankFinder`)."""
        host, reader = context.host, context.reader
        self.context = context
        self.failure_counts = FailureCounts()
        self.ras = RasClient(context.spawner, host, self.failure_counts)
        launchers = create_all("launchers")
        self.finder = RankFinder(
            *(host, reader, context.node, launchers, self._ask_world, probes),
            join_containers=context.config.agent.join_containers,
        )
        self.known_issues = KnownIssueFinder(host, reader)
        self.traces = TraceCollector(host, reader, context.config.capture.trace_folders)
        self.flight_recorders = FlightRecorderCollector(
            host, reader, self.known_issues.installed, self.failure_counts
        )
        signals = HookSignals(host, reader)
        self._hook_stacks = HookStacks(signals, reader)
        self._hook_flight = HookFlightRecorder(signals, reader, self.failure_counts)
        self.requests = HookRequests(signals, host, reader, context.spawner)
        self._pyspy: dict[str, PySpy] = {}  # by the path that the config names
        self._log_formats = create_all("logs")
        self._own_formats = {
            name: create("logs", plugin.kind, plugin.options)
            for name, plugin in context.config.logs.items()
        }

    @property
    def pyspy(self) -> PySpy:
        """py-spy as the present configuration names it.

        Where it fails, a rank that was started with `mldebug run` is asked to write its stacks itself.
        """
        path = str(self.context.config.capture.py_spy)
        if path not in self._pyspy:
            closed = self.context.host.rights.closed
            self._pyspy = {path: PySpy(self.context.spawner, path, self._hook_stacks.dump, closed)}
        return self._pyspy[path]

    def log_parser(self) -> LogParser:
        """A new parser for one log file. The formats of the `logs` section are tried first, then the built-in ones."""
        return LogParser(self._log_formats, self._own_formats)

    def capturer(self, longest: float = math.inf) -> Capturer:
        """A capturer with the present settings of the `capture` section.

        It samples stacks for at most `longest` seconds.
        """
        wanted = self.context.config.capture
        settings = CaptureSettings(
            watch=min(wanted.watch, longest),
            native=wanted.native,
            workers=0 if wanted.workers == "auto" else wanted.workers,
            deadline=wanted.deadline,
        )
        return Capturer(
            self.context.host,
            self.context.reader,
            self.pyspy,
            self.context.node,
            settings,
            flights=self._hook_flight.ask,
            more_flights=self.flight_recorders.add if wanted.flight_recorder else None,
            ras=(lambda job, seconds: self.ras.ask(job, seconds=seconds))
            if wanted.nccl_ras
            else None,
            traces=self.traces.add,
        )

    def timed_calls(self, ranks: Sequence[RankIdentity]) -> Mapping[int, FlightRecord]:
        """The Flight Recorders of those of these ranks that have the hook, by rank; asked for within `TIMED_CALLS` seconds."""
        return self._hook_flight.ask(ranks, TIMED_CALLS).flights

    def _ask_world(self, job: Job) -> RasWorld | None:
        """Which of the processes of a job is which rank, as NCCL RAS reports; None where it is not asked."""
        if not self.context.config.capture.nccl_ras:
            return None
        return self.ras.ask(job, whole=False, seconds=GLANCE).world
