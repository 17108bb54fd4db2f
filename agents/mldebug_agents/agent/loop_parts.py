"""What the main loop works with: the parts of an agent, and the queue through which workers answer it."""

import queue
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mldebug_agents.agent.capture_queue import CaptureQueue
from mldebug_agents.agent.monitors import Monitors
from mldebug_agents.agent.recovery import Recovery
from mldebug_agents.cluster.peers.controller import PeersController
from mldebug_agents.incidents.exits.exit_tracker import ExitTracker
from mldebug_agents.incidents.exits.failed_attempts import FailedAttempts
from mldebug_agents.incidents.exits.pidfds import ExitWatch
from mldebug_agents.incidents.manager import IncidentManager
from mldebug_agents.state.store import StateStore
from mldebug_agents.system.child.leftovers import Leftover
from mldebug_agents.system.context import Context
from mldebug_agents.system.failure_counts import FailureCounts
from mldebug_agents.system.workers import Result, Worker
from mldebug_agents.watch.launcher_watch import LauncherWatch
from mldebug_agents.watch.ras_watch import RasWatch
from mldebug_agents.watch.slowness_watch import SlownessWatch

Inbox = queue.SimpleQueue[Result | None]  # of results of workers; None only wakes


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopParts:
    """The parts of an agent, as `agent.wiring` has put them together."""

    context: Context
    leftovers: Callable[[], tuple[Leftover, ...]]
    failure_counts: FailureCounts
    store: StateStore
    inbox: Inbox
    workers: Mapping[str, Worker]
    monitors: Monitors
    incidents: IncidentManager
    capture_queue: CaptureQueue
    failed_attempts: FailedAttempts
    exit_watch: ExitWatch
    exits: ExitTracker
    recovery: Recovery
    launchers: LauncherWatch
    ras: RasWatch
    slowness: SlownessWatch
    peers: PeersController | None
