"""What this agent does while it coordinates: has all nodes of a run captured, and answers announcements with the result.

Belongs to the main loop's thread; a worker talks to other nodes.
"""

import logging
import queue
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import msgspec

from mldebug.cluster.coordinator import DOUBT, MOVES, Coordinator
from mldebug.cluster.inspection import InspectOrder
from mldebug.cluster.known_peers import CaptureCall, KnownPeer
from mldebug.cluster.merge import MergedRun, Topology
from mldebug.cluster.messages import (
    Announcement,
    ClusterView,
    DumpOrder,
    Relayed,
    RunWord,
    Welcome,
    WordsFor,
)
from mldebug.cluster.run_identity import RunKey, run_id, user_of
from mldebug.config.schema import GoodputConfig
from mldebug.core.errors import MldebugError
from mldebug.core.model import QueriedNode, QueriedNodes
from mldebug.core.redact import clean
from mldebug_agents.cluster.peers.coordinated_capture import (
    CaptureRound,
    ClusterCapture,
    NodeToAsk,
    ask_all,
)
from mldebug_agents.cluster.peers.coordinator_search import listed
from mldebug_agents.cluster.peers.groups import CoordinatorGroup, CoordinatorGroups
from mldebug_agents.cluster.peers.inspections import InspectionPlan, plan
from mldebug_agents.cluster.peers.net.client import Peer, PeerClient
from mldebug_agents.cluster.peers.net.refusals import Refusals
from mldebug_agents.cluster.peers.remote_orders import give, refuse
from mldebug_agents.incidents.manager import IncidentManager
from mldebug_agents.system.workers import Result, Worker
from mldebug_agents.watch.runs import Run

log = logging.getLogger("mldebug")

BEAT = 0.5  # seconds between two looks at all nodes at least
LOOKED = 0.1  # of the main loop's time goes to these looks at most: each costs the more, the more nodes there are
WORDS = 0.1  # seconds of processor time for the words on the runs of one announcement
LEAD = 1.5  # seconds more than two announcements lie apart, until samples begin that are called for
MISSED = 2.5  # announcements that are due and have not come, after which a node is silent
ASK_DEADLINE = 60.0
AT_ONCE = 4  # runs captured at the same time
SCHEDULER = "the scheduler"
MAX_LISTED = 4  # runs listed in an error
NOT_HERE = "no node shows it here any more: the job is over, or another agent coordinates"

Find = Callable[[RunKey, int | None], Run | None]


class Leader:
    """The coordinator's part of this agent. `find`: returns the run with a key and an attempt, where it has ranks on this node."""

    def __init__(
        self,
        node: str,
        agent: str,
        client: PeerClient,
        interval: float,
        inbox: "queue.SimpleQueue[Result | None]",
        incidents: IncidentManager,
        groups: CoordinatorGroups,
        find: Find,
        refusals: Refusals,
        topology: Topology | None = None,
        goodput: Callable[[], GoodputConfig] = GoodputConfig,
    ) -> None:
        self._node, self._agent, self._interval = node, agent, interval
        self._incidents, self._groups, self._find = incidents, groups, find
        self._refusals, self._goodput = refusals, goodput
        self._coordinator = Coordinator(self._may_have)
        self._due = 0.0
        self._unknown: dict[
            str, float
        ] = {}  # incident of a case that nobody shows here -> since when
        self._met: dict[Peer, float] = {}  # who has coordinated, and when he was heard last
        self.worker = Worker(
            *("other nodes", partial(ask_all, client, topology=topology), inbox),
            *(ASK_DEADLINE, AT_ONCE),
            owner_key=lambda capture_round: user_of(capture_round.call.news.key),
        )

    def tick(self, now: float) -> None:
        """Order the captures that are due, give incidents of other nodes their new ids, and close those that are over.
        `now`: monotonic seconds.
        """
        if now < self._due:
            return
        before = time.thread_time()
        self._look(now)
        self._due = now + max(BEAT, (time.thread_time() - before) / LOOKED)

    def _look(self, now: float) -> None:
        for call in self._coordinator.due(now, self._leads):
            log.info("%s: asking %d nodes", call.news.name, len(call.peers))
            if not self.worker.order(CaptureRound(call, self._not_announced(call, now))):
                self._failed(call, "too many captures wait")
        for known, incident in self._coordinator.renamed():
            self._incidents.remote.rename_case(known, incident)
        for incident, why in self._coordinator.ended():
            self._incidents.remote.close_case(
                incident, "recovered" if why == MOVES else "ended", why
            )
        self._close_others(now)
        goodput = self._goodput()
        if goodput.stragglers:
            lead = max(self._interval, self._coordinator.pace) + LEAD
            self._coordinator.compare_ranks(now, self._leads, goodput.interval, lead)

    def _may_have(self, peer: KnownPeer, incident: str, key: RunKey) -> bool:
        """Whether a stall of this run may have the id that a node names; one that another run has here is refused."""
        if self._incidents.remote.is_free(incident, key):
            return True
        why = f"{peer.announcement.node} names {incident}, which another run has"
        self._refusals.count("incident", peer.address, why)
        return False

    def _close_others(self, now: float) -> None:
        """What an agent before us had open and nobody shows any more, and what somebody else coordinates by now."""
        mine = self._coordinator.open() if self._leads(()) else frozenset()
        for incident in self._incidents.remote.cases:
            if incident in mine:
                self._unknown.pop(incident, None)
            elif now - self._unknown.setdefault(incident, now) > DOUBT:
                self._unknown.pop(incident)
                self._incidents.remote.close_case(incident, "ended", NOT_HERE)

    def met(self, peer: Peer, now: float) -> None:
        """Note that this other agent coordinates and answered just now. `now`: monotonic seconds."""
        self._met[peer] = now

    def welcome(self, announcement: Announcement, address: str, now: float) -> Welcome:
        """The answer to another agent's announcement: the notes for each of its runs, and the seconds until its next announcement
        (`pace`). `now`: monotonic seconds.
        """
        self._coordinator.update(announcement, address, now)
        if why := self._coordinator.refused.get(address):
            self._refusals.count("name", address, why)
        self._coordinator.update_relayed(announcement, now, address)
        until = time.thread_time() + WORDS
        runs = self._words(announcement, now, until)
        relayed = (
            WordsFor(node=one.node, runs=self._words(one, now, until))
            for one in announcement.relayed
        )
        return Welcome(
            node=self._node,
            agent=self._agent,
            pace=self._coordinator.pace_of(address),
            runs=runs,
            relayed=tuple(relayed),
        )

    def _words(
        self, announcement: Announcement | Relayed, now: float, until: float
    ) -> tuple[RunWord, ...]:
        """A word on each run. From `until` on (processor time of this thread) the words are empty."""
        return tuple(
            self._coordinator.word(news, announcement.node, now)
            if time.thread_time() < until
            else RunWord(key=news.key)
            for news in announcement.runs
        )

    def relayed(self, group: CoordinatorGroup, now: float) -> tuple[Relayed, ...]:
        """Announcements that this agent received although another one coordinates, so that they are passed on to that one.
        `now`: monotonic seconds.
        """
        if group.found is None or group.led_by(self._agent):
            return ()
        return self._coordinator.relayed(group.name, self._node, now)

    def nodes_at(self, source: str) -> int:
        """How many nodes announce themselves from a source (see `source_of`). From any thread."""
        return self._coordinator.nodes_at(source)

    def view(self, now: float) -> ClusterView:
        """All nodes that announce themselves to this agent, with their runs. `now`: monotonic seconds."""
        return self._coordinator.view(self._node, _hosts(*self._groups), now)

    def count(self, now: float) -> int:
        """How many nodes announce themselves to this agent. `now`: monotonic seconds."""
        return len(self._coordinator.fresh(now))

    def dump(self, order: DumpOrder, answer: "Future[ClusterCapture]", now: float) -> None:
        """Capture a run on all its nodes because a user asks for it, whether it stalls or not. `answer` gets the captures,
        or an MldebugError where not exactly one run matches or too many captures wait. `now`: monotonic seconds.
        """
        try:
            call = self._one_call(order.job, order.uid)
        except MldebugError as error:
            refuse(answer, error)
            return
        if not self.worker.order(CaptureRound(call, self._not_announced(call, now), answer)):
            refuse(answer, MldebugError("too many captures wait"))

    def inspection(self, order: InspectOrder) -> InspectionPlan:
        """Which nodes are to inspect which ranks because a user asks for it. Raises MldebugError where not exactly one run matches,
        while it stalls, and where its ranks are not known.
        """
        call = self._one_call(order.job, order.uid)
        return plan(order, call, self._coordinator.stall_of(call.news))

    def _one_call(self, job: str, uid: int | None) -> CaptureCall:
        calls = self._coordinator.named(job, uid)
        if len(calls) == 1:
            return calls[0]
        names = sorted({f"{run_id(call.news.key)} ({call.news.name})" for call in calls})
        have = f": {', '.join(names[:MAX_LISTED])}" if calls else ""
        count = (
            f"{len(calls) or 'no'} runs" if uid is None else f"{len(calls) or 'none'} of your runs"
        )
        raise MldebugError(f"{count} match {clean(job, 60)}{have}")

    def together(self, result: Result) -> None:
        """Handle the result of a capture on all nodes: write it to the incident's report, or give it to the user who asked."""
        call: CaptureCall = result.order.call
        answer: Future[Any] | None = result.order.answer
        why = f"the nodes could not be asked: {result.error}" if result.error else ""
        if answer is not None and why:
            refuse(answer, MldebugError(why))
        elif answer is not None:
            give(answer, result.value)
        elif why or result.value.run is None:
            self._failed(call, why or "no node has sent a capture")
        else:
            self._report(call, result.value)

    def _failed(self, call: CaptureCall, why: str) -> None:
        again = "asking again" if self._coordinator.failed(call.news) else "given up"
        log.error("%s: %s; %s", call.news.name, why, again)

    def _report(self, call: CaptureCall, capture: ClusterCapture) -> None:
        if capture.run is None:
            return
        captures = capture.run.captures
        nodes = "1 node" if len(captures) == 1 else f"{len(captures)} nodes"
        what = f"captured {nodes}, asked at most {capture.sent:.1f} s apart, all within {capture.spread:.1f} s"
        run = self._find(call.news.key, call.news.attempt)
        queried = self._listed(capture.run)
        whole = self._incidents.remote.together(
            run, call.incident, captures, queried, what, call.cause
        )
        self._coordinator.captured(call.news, whole)

    def _leads(self, key: RunKey) -> bool:
        """Of a run without ranks here: where others say so, or have found us by its nodes."""
        group = self._groups.of(self._find(key, None))
        return group is None or group.led_by(self._agent)

    def judged(self, queried: QueriedNodes) -> QueriedNodes:
        """The queried nodes. A silent node that still announces itself is marked as unreachable: its address or a firewall
        is wrong.
        """
        nodes = tuple(self._alive(one) if one.state == "silent" else one for one in queried.nodes)
        return msgspec.structs.replace(queried, nodes=nodes, by=self._node)

    def _listed(self, run: MergedRun) -> QueriedNodes:
        """Where every node that the scheduler has given the run was asked, these are all that it has."""
        queried = self.judged(run.queried)
        lists = {capture.job.node_list for capture in run.captures}
        hosts = listed(lists.pop()) if len(lists) == 1 else ()
        short = {node.name.partition(".")[0] for node in queried.nodes}
        most = max((len(one.job.ranks) for one in run.captures), default=0)
        holds = len(hosts) * most >= max((one.job.world_size for one in run.captures), default=0)
        whole = bool(hosts) and holds and all(host.partition(".")[0] in short for host in hosts)
        return msgspec.structs.replace(queried, listed_by=SCHEDULER if whole else "")

    def _alive(self, node: QueriedNode) -> QueriedNode:
        at, now = self._coordinator.last_heard(node.name), time.monotonic()
        patience = MISSED * max(self._interval, self._coordinator.pace)
        if self._coordinator.is_relayed(node.name):
            patience = self._coordinator.patience  # it tries to reach us itself each time
        if at is None or now - at > patience:
            return node
        reason = f"{node.reason}, and it has announced itself {now - at:.0f} s ago"
        return msgspec.structs.replace(node, state="unable", reason=reason)

    def _not_announced(self, call: CaptureCall, now: float) -> tuple[NodeToAsk, ...]:
        """Nodes that do not announce themselves here, or not any more; one of them may have coordinated before."""
        group = self._groups.of(self._find(call.news.key, None))
        peers = group.candidates if group is not None else ()
        view = self._coordinator.view(self._node, (peer.host for peer in peers), now)
        never = {one.node for one in view.peers if one.seconds_ago is None}
        idle = self._coordinator.idle(call, listed(call.node_list), now)
        lost = (
            NodeToAsk(
                one.announcement.node,
                Peer(one.address, one.announcement.port, one.announcement.node),
                one.at,
            )
            for one in (*idle, *self._coordinator.others(call, now))
        )
        met = (NodeToAsk(one.host, one, self._met.get(one)) for one in peers if one.host in never)
        return (*lost, *met)


def _hosts(*groups: CoordinatorGroup) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.host for group in groups for one in group.candidates))
