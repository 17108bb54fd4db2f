"""What the coordinator says, and what becomes of it here. Belongs to the main loop's thread."""

from mldebug.cluster.coordinator import MOVES
from mldebug.cluster.messages import RunWord
from mldebug.stall.signals import Stage
from mldebug_agents.cluster.peers.coordinator_search import Found
from mldebug_agents.cluster.peers.groups import Circles
from mldebug_agents.cluster.peers.held_stalls import Held
from mldebug_agents.cluster.peers.leader import Leader
from mldebug_agents.cluster.peers.own_runs import Ours
from mldebug_agents.incidents.manager import IncidentManager
from mldebug_agents.system.workers import Result
from mldebug_agents.watch.runs import Run


class Follower:
    """`agent`: this one, which may coordinate itself."""

    def __init__(
        self,
        agent: str,
        interval: float,
        circles: Circles,
        ours: Ours,
        leader: Leader,
        incidents: IncidentManager,
        held: Held,
    ) -> None:
        self._agent, self._interval = agent, interval
        self._circles, self._ours = circles, ours
        self._leader, self._incidents, self._held = leader, incidents, held

    def announced(self, result: Result, now: float) -> None:
        """An announcement was answered, or nobody has."""
        circle = self._circles.named(result.order.circle)
        if circle is None:
            return
        circle.busy = False
        if result.error is not None:
            circle.unheard(result.error, now)
            if circle.found is None:
                self._ours.forget_progress(lambda run: self._circles.of(run) is circle)
            return
        found: Found = result.value
        circle.welcomed(found, now, self._interval, self._agent)
        self._leader.met(found.peer, now)
        for word in found.welcome.runs:
            if (run := self._ours.find(word.key)) is not None and self._circles.of(run) is circle:
                self._obey(run, word, now)

    def _obey(self, run: Run, word: RunWord, now: float) -> None:
        self._ours.progress(run.job.id).take(word.signals, now)
        self._held.wait(run, word.hold, now)
        incident = run.incident
        if incident is None or not word.incident or not (incident.kind == "stall" or word.caused):
            return
        if incident.id != word.incident:
            if not word.over:
                self._incidents.remote.called(run, word.incident, "", caused=word.caused)
            return
        if word.whole is not None:
            self._incidents.remote.told(run, word.whole)
        blamed = run.decision is not None and run.decision.stage is Stage.BLAMED
        if (
            word.over and not blamed and incident.kind == "stall"
        ):  # our own watch goes before what others say
            self._incidents.close(run, "recovered" if word.over == MOVES else "ended", word.over)
