"""The monitors of one node: what an agent watches besides the progress of runs (GPUs, filesystems,
ports and so on), and the notifications and actions for alerts.

Used by the main loop's thread only. Each monitor has worker threads of its own, whose results it
keeps.
"""

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

from mldebug.config.schema import Config
from mldebug.core.model import Job, NodeCapture
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.goodput.straggler import SampledStretch
from mldebug.stall.signals import Stage
from mldebug.status.snapshot import Snapshot
from mldebug_agents.alerts.action_runner.runner import ActionRunner
from mldebug_agents.alerts.notifier import AlertNotifier
from mldebug_agents.fleet.monitor import FleetMonitor
from mldebug_agents.hardware.host_memory.monitor import HostMemoryMonitor
from mldebug_agents.hardware.monitor import HardwareMonitor
from mldebug_agents.hardware.ports.monitor import PortMonitor
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.jobs.run_records.monitor import RunRecordMonitor
from mldebug_agents.jobs.scheduler_monitor import SchedulerMonitor
from mldebug_agents.probes.history.monitor import ProbeHistoryMonitor
from mldebug_agents.probes.history.scheduled import ScheduledProbes
from mldebug_agents.storage.checkpoints.monitor import CheckpointMonitor
from mldebug_agents.storage.monitor import StorageMonitor
from mldebug_agents.system.workers import Result
from mldebug_agents.watch.goodput_monitor import Catching, GoodputMonitor
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.runs import Run
from mldebug_agents.watch.scalar_monitor import ScalarMonitor

STANDS = (Stage.SUSPECT, Stage.CONFIRMED, Stage.BLAMED)


class LoopState(NamedTuple):
    """The runs and jobs of this node as one turn of the agent's main loop sees them.

    `looked`: this agent has searched the node for jobs at least once. `exits`: how the ranks of a run have exited so far, in words.
    `is_comparing`: ranks are sampled now because a run has become slower. `catching`: a context for work on one job: an error of the agent in it is logged, and the work on other jobs goes on.
    """

    runs: Mapping[str, Run]
    found: Discovery
    config: Config
    looked: bool
    exits: Callable[[str], Mapping[int, str]] = lambda _: {}
    catching: Catching = nullcontext
    is_comparing: bool = False

    @property
    def jobs(self) -> dict[str, Job]:
        """The jobs that run on this node, by their ids."""
        return {id: run.job for id, run in self.runs.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitors:
    """The monitors of one agent, with its notifier and its action runner."""

    hardware: HardwareMonitor
    notifier: AlertNotifier
    actions: ActionRunner
    storage: StorageMonitor
    checkpoints: CheckpointMonitor
    memory: HostMemoryMonitor
    ports: PortMonitor
    schedulers: SchedulerMonitor
    probes: ProbeHistoryMonitor
    scheduled_probes: ScheduledProbes
    goodput: GoodputMonitor
    scalars: ScalarMonitor
    records: RunRecordMonitor
    fleet: FleetMonitor

    def reload(self, config: Config) -> None:
        """Hand a new configuration to the notifier, the schedulers and the action runner; the
        others get theirs at each `tick`.
        """
        self.notifier.reload(config)
        self.schedulers.reload(config)
        self.actions.reload(config)

    def tick(self, state: LoopState) -> None:
        """Have each monitor start what is due; called once in each turn of the main loop.

        Storage waits until the node was searched for jobs.
        """
        suspected = any(
            run.decision is not None and run.decision.stage in STANDS for run in state.runs.values()
        )
        soon = suspected or state.is_comparing
        self.hardware.tick(state.runs, state.config.stall.interval, looked=state.looked, soon=soon)
        self.notifier.tick()
        self.fleet.tick()
        self.actions.captures.show(state.jobs, state.found)
        self.actions.tick(state.jobs)
        if state.looked:
            self.storage.tick(list(state.jobs.values()), self.checkpoints.places(state.runs))
        self.checkpoints.tick(state.runs, state.found, state.config.checkpoints)
        self.memory.tick(state.runs, state.config.memory)
        self.ports.tick(state.found.programs, state.config.health.thresholds, soon=suspected)
        self.schedulers.tick()
        self.probes.tick()
        if state.looked:
            is_idle = not (state.runs or state.found.all)
            self.scheduled_probes.tick(state.config.probes, is_idle=is_idle)
            self.goodput.tick(state.runs, state.exits, state.catching)
            losses = state.config.goodput
            self.scalars.tick(
                *(state.runs, state.catching), enabled=losses.history, age=losses.history_age
            )
            self.records.tick(state.jobs, state.found.programs, state.exits)

    def end(self) -> None:
        """Have stored what else is stored only now and then: the agent ends by itself."""
        self.scalars.end()

    def on_result(self, result: Result, state: LoopState) -> bool:
        """Pass the result of a worker to the monitor that owns the worker; False where no monitor does."""
        if result.worker in self.hardware.workers:
            self.hardware.on_result(
                result, list(state.jobs.values()), state.found.children, state.config
            )
        elif result.worker in self.storage.workers:
            self.storage.on_result(result)
        elif result.worker == self.checkpoints.worker.name:
            self.checkpoints.on_result(result, state.runs)
        elif result.worker == self.memory.worker.name:
            self.memory.on_result(result)
        elif result.worker == self.ports.worker.name:
            self.ports.on_result(result)
        else:
            others = (self.notifier, self.actions, self.schedulers, self.probes, self.records)
            more = (*others, self.scheduled_probes, self.fleet)
            return any(other.on_result(result) for other in more)
        return True

    def complete(self, look: JobLook) -> JobLook:
        """Return the reading of a job (`look`) with signs of progress from its GPUs and checkpoints added."""
        return self.checkpoints.complete(self.hardware.complete(look))

    def capture(self, capture: NodeCapture) -> NodeCapture:
        """The capture, with what the monitors know added: GPUs and kernel log, network ports, checkpoints, filesystems."""
        capture = self.ports.capture(self.hardware.capture(capture))
        return self.storage.capture(self.checkpoints.capture(capture))

    def complete_samples(self, result: Result) -> Result:
        """The stack samples of a job's ranks, with what is known of their GPUs, of the node's network ports and of slow mounts added."""
        if not isinstance(result.value, SampledStretch):
            return result
        stretch = self.hardware.complete_samples(result.order.job, result.value)
        stretch = self.storage.complete_samples(stretch)
        return result._replace(value=self.ports.complete_samples(stretch))

    def complete_exit(self, attempt: AttemptExit) -> AttemptExit:
        """The exit of an attempt (one start of a job), with GPU faults, kernel log lines, network ports that are down and full
        filesystems of that time added.
        """
        attempt = self.ports.complete_exit(self.hardware.complete_exit(attempt))
        return self.storage.complete_exit(attempt)

    def show(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the readings of all monitors added."""
        for monitor in (
            self.checkpoints,
            self.memory,
            self.hardware,
            self.ports,
            self.storage,
            self.schedulers,
            self.probes,
            self.scheduled_probes,
            self.goodput,
            self.scalars,
            self.records,
            self.notifier,
            self.actions,
            self.fleet,
        ):
            snapshot = monitor.show(snapshot)
        return snapshot
