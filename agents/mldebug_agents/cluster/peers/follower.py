"""Applies the coordinator's answers to the runs of this node, and holds back reports of stalls until all nodes were captured.

Belongs to the main loop's thread.
"""

import time
from collections.abc import Callable, Mapping

from mldebug.cluster.coordinator import MOVES
from mldebug.cluster.messages import RunWord
from mldebug.cluster.quiet_check import HOLD
from mldebug.cluster.roster import SLOWEST
from mldebug.core.model import Gap
from mldebug.stall.signals import Stage
from mldebug_agents.cluster.peers.coordinator_search import FoundCoordinator
from mldebug_agents.cluster.peers.groups import ALONE, CoordinatorGroups
from mldebug_agents.cluster.peers.leader import Leader
from mldebug_agents.cluster.peers.own_runs import OwnRuns
from mldebug_agents.incidents.manager import IncidentManager
from mldebug_agents.system.workers import Result
from mldebug_agents.watch.runs import Run
from mldebug_agents.watch.slowness_watch import SlownessWatch

WHAT = "the captures of other nodes"


class HeldStalls:
    """Stalls whose reports are held back until the coordinator has had all nodes captured. `capture`: has a run captured soon."""

    def __init__(
        self, groups: CoordinatorGroups, incidents: IncidentManager, capture: Callable[[Run], None]
    ) -> None:
        self._groups, self._incidents, self._capture = groups, incidents, capture
        self._until: dict[str, float] = {}  # by job

    def tick(self, runs: Mapping[str, Run], now: float) -> None:
        """Report the stalls that were held back for too long, each from this node's view alone. `now`: monotonic seconds."""
        self._until = {job_id: until for job_id, until in self._until.items() if job_id in runs}
        for job_id in [one for one, until in self._until.items() if now >= until]:
            self._alone(runs[job_id])

    def holds(self, run: Run) -> bool:
        """Whether the report of the run's stall must wait until the coordinator has captured all nodes. If so, it is held
        back from now on, for at most `ALONE` seconds. False for a run without a coordinator, without ranks on other
        nodes, or with an open incident. Has the next announcement made at once.
        """
        group = self._groups.of(run)
        if (
            group is None
            or group.found is None
            or run.last_look is None
            or not run.last_look.look.elsewhere
        ):
            return False
        group.hurry()
        if run.incident is not None:
            return False  # others have told of it already: its capture is on its way
        self._until[run.job.id] = time.monotonic() + ALONE
        return True

    def wait(self, run: Run, seconds: float, now: float) -> None:
        """Hold the run's stall back longer, for up to `seconds` and a grace period, because the coordinator knows that
        ranks on another node still move. `now`: monotonic seconds. No effect on a stall that is not held back.
        """
        if run.job.id in self._until and seconds > 0:
            until = now + min(seconds, HOLD + SLOWEST) + ALONE
            self._until[run.job.id] = max(self._until[run.job.id], until)

    def holding(self, run: Run) -> bool:
        """Whether the report of the run's stall is held back until the coordinator has captured all nodes."""
        return run.job.id in self._until

    def release(self, run: Run) -> bool:
        """Hold the run's stall back no longer. Returns whether it was held back."""
        return self._until.pop(run.job.id, None) is not None

    def _alone(self, run: Run) -> None:
        """Nobody has answered in time."""
        self.release(run)
        group = self._groups.of(run)
        why = (group.trouble if group else "") or "the coordinator has not asked for it"
        reason = f"{why}; in {ALONE:g} s nobody has: this is what one node has seen"
        self._incidents.missed(run, Gap(what=WHAT, reason=reason))
        if run.capture is not None:
            self._incidents.captured(run, run.capture)
        else:
            self._capture(run)


class Follower:
    """Applies what the coordinator answers to the runs of this node. `agent`: this agent's id, since it may coordinate itself. `interval`: seconds between two announcements."""

    def __init__(
        self,
        agent: str,
        interval: float,
        groups: CoordinatorGroups,
        ours: OwnRuns,
        leader: Leader,
        incidents: IncidentManager,
        held: HeldStalls,
        slowness: SlownessWatch | None = None,
    ) -> None:
        self._agent, self._interval = agent, interval
        self._groups, self._ours = groups, ours
        self._leader, self._incidents, self._held = leader, incidents, held
        self._slowness = slowness

    def announced(self, result: Result, now: float) -> None:
        """Handle the result of an announcement: the coordinator's answer, or the error that came instead of it. `now`:
        monotonic seconds.
        """
        group = self._groups.named(result.order.circle)
        if group is None:
            return
        group.answered()
        if result.error is not None:
            group.no_answer(result.error, now)
            if group.found is None:
                self._ours.forget_progress(lambda run: self._groups.of(run) is group)
                self._ours.present.clear()
            return
        found: FoundCoordinator = result.value
        group.welcomed(found, now, self._interval, self._agent)
        self._leader.met(found.peer, now)
        ours = self._ours.by_key()
        for word in found.welcome.runs:
            if (run := ours.get(word.key)) is not None and self._groups.of(run) is group:
                self._apply(run, word, now)

    def _apply(self, run: Run, word: RunWord, now: float) -> None:
        self._ours.progress(run.job.id).take(() if run.is_alone else word.signals, now)
        self._held.wait(run, word.hold, now)
        if run.job.waits is not None:
            self._ours.present[run.job.id] = word.present
        self._apply_slowness(run, word)
        incident = run.incident
        if run.is_alone:
            return  # nobody else knows more of it
        if incident is None or not word.incident or not (incident.kind == "stall" or word.caused):
            return
        if incident.id != word.incident:
            if not word.over and self._incidents.remote.may_be_called(run, word.incident):
                self._incidents.remote.called(run, word.incident, "", caused=word.caused)
            return
        if word.whole is not None:
            self._incidents.remote.add_whole(run, word.whole)
        blamed = run.decision is not None and run.decision.stage is Stage.BLAMED
        if (
            word.over and not blamed and incident.kind == "stall"
        ):  # our own watch goes before what others say
            self._incidents.close(run, "recovered" if word.over == MOVES else "ended", word.over)

    def _apply_slowness(self, run: Run, word: RunWord) -> None:
        if self._slowness is None or len(run.job.ranks) == run.job.world_size:
            return
        if word.sample is not None:
            self._slowness.shared.call(run, word.sample)
        if word.slowness is not None:
            self._slowness.shared.found(run, word.slowness)
