"""What one node knows beside the progress of its runs: hardware, storage, saves, memory, queues, probes; and who is told, and acts.

All of it belongs to the thread of the loop. Each board has workers of its own and puts what they found on its board.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mldebug.config.schema import Config
from mldebug.core.model import Job, NodeCapture
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.status.snapshot import Snapshot
from mldebug_agents.alerts.action_runner.runner import ActionRunner
from mldebug_agents.alerts.notifier import AlertNotifier
from mldebug_agents.hardware.host_memory.monitor import HostMemoryMonitor
from mldebug_agents.hardware.monitor import HardwareMonitor
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.jobs.scheduler_monitor import SchedulerMonitor
from mldebug_agents.probes.history.monitor import ProbeHistoryMonitor
from mldebug_agents.storage.checkpoints.monitor import CheckpointMonitor
from mldebug_agents.storage.monitor import StorageMonitor
from mldebug_agents.system.workers import Result
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.runs import Run


class LoopState(NamedTuple):
    """What the loop knows in one turn; `looked`: has this agent seen the node at all?"""

    runs: Mapping[str, Run]
    found: Discovery
    config: Config
    looked: bool

    @property
    def jobs(self) -> dict[str, Job]:
        """The jobs by the ids of their runs."""
        return {id: run.job for id, run in self.runs.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Monitors:
    """The monitors of one agent, and who is told and what is done about it; in the order in which they are asked."""

    hardware: HardwareMonitor
    notices: AlertNotifier
    acting: ActionRunner
    storage: StorageMonitor
    saves: CheckpointMonitor
    memory: HostMemoryMonitor
    queues: SchedulerMonitor
    probes: ProbeHistoryMonitor

    def reload(self, config: Config) -> None:
        """Go on under another configuration."""
        self.notices.reload(config)
        self.queues.reload(config)
        self.acting.reload(config)

    def tick(self, seen: LoopState) -> None:
        """Once for each turn of the loop."""
        self.hardware.tick(seen.runs, seen.config.stall.interval, looked=seen.looked)
        self.notices.tick()
        self.acting.captures.show(seen.jobs, seen.found)
        self.acting.tick(seen.jobs)
        if seen.looked:
            self.storage.tick(list(seen.jobs.values()), self.saves.places(seen.runs))
        self.saves.tick(seen.runs, seen.found, seen.config.checkpoints)
        self.memory.tick(seen.runs, seen.config.memory)
        self.queues.tick()
        self.probes.tick()

    def on_result(self, result: Result, seen: LoopState) -> bool:
        """Take what a worker found; false where it is nobody's here."""
        if result.worker in self.hardware.workers:
            self.hardware.on_result(
                result, list(seen.jobs.values()), seen.found.children, seen.config
            )
        elif result.worker in self.storage.workers:
            self.storage.on_result(result)
        elif result.worker == self.saves.worker.name:
            self.saves.on_result(result, seen.runs)
        elif result.worker == self.memory.worker.name:
            self.memory.on_result(result)
        else:
            tellers = (self.notices, self.acting, self.queues, self.probes)
            return any(one.on_result(result) for one in tellers)
        return True

    def complete(self, look: JobLook) -> JobLook:
        """A look at a job, with what GPUs and saves say of its progress."""
        return self.saves.complete(self.hardware.complete(look))

    def capture(self, capture: NodeCapture) -> NodeCapture:
        """A capture, with what is known of the node's parts."""
        return self.storage.capture(self.saves.capture(self.hardware.capture(capture)))

    def ending(self, ending: AttemptExit) -> AttemptExit:
        """An end of a job, with what the hardware said."""
        return self.hardware.ending(ending)

    def show(self, snapshot: Snapshot) -> Snapshot:
        """A snapshot, with all that stands on the boards."""
        for one in (
            self.saves,
            self.memory,
            self.hardware,
            self.storage,
            self.queues,
            self.probes,
            self.notices,
            self.acting,
        ):
            snapshot = one.show(snapshot)
        return snapshot
