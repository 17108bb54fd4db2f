"""What the main loop does with other nodes: announces its runs, follows the coordinating agent, and has a stall captured on all
nodes at one moment.

Belongs to the main loop's thread; a worker talks to other nodes.
"""

import logging
import queue
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

import msgspec

from mldebug.cluster.announcement_size import fitting
from mldebug.cluster.inspection import InspectOrder, NodeInspectOrder
from mldebug.cluster.known_peers import aged
from mldebug.cluster.merge import Topology
from mldebug.cluster.messages import (
    MAX_GPUS,
    Announcement,
    CaptureOrder,
    DumpOrder,
    RunNews,
    RunWord,
    Welcome,
)
from mldebug.cluster.source_shares import source_of
from mldebug.config.schema import GoodputConfig
from mldebug.core.errors import MldebugError
from mldebug.core.model import NodeCapture
from mldebug.status.gpu_view import of_agent
from mldebug.status.node_views import gpu_briefs
from mldebug.status.snapshot import Snapshot
from mldebug_agents.cluster.peers.follower import Follower, HeldStalls
from mldebug_agents.cluster.peers.groups import (
    CoordinatedRun,
    CoordinatorGroup,
    CoordinatorGroups,
    leader_words,
)
from mldebug_agents.cluster.peers.inspections import part_of
from mldebug_agents.cluster.peers.leader import Leader
from mldebug_agents.cluster.peers.net.client import Peer, PeerClient
from mldebug_agents.cluster.peers.net.refusals import Refusals
from mldebug_agents.cluster.peers.net.work_budget import WorkBudget
from mldebug_agents.cluster.peers.own_runs import OwnRuns
from mldebug_agents.cluster.peers.remote_orders import (
    INSPECTED,
    MOST,
    MOST_INSPECTED,
    MOST_PASSED_ON,
    WINDOW,
    OrderLimit,
    RemoteOrders,
    TimedCapture,
    give,
    refuse,
)
from mldebug_agents.incidents.manager import IncidentManager
from mldebug_agents.system.workers import Result, Worker
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.runs import Run
from mldebug_agents.watch.slowness_watch import SlownessWatch

log = logging.getLogger("mldebug")

MAX_SHOWN = 4  # circles in a sentence
MAX_WAITING = 1024  # messages for the main loop: whoever comes then is told so, and comes again
MAX_OF_ONE = 32  # of these from one address

Asking = Announcement | CaptureOrder | DumpOrder | InspectOrder | NodeInspectOrder | None


class PeerQuestion(NamedTuple):
    """A request of another node, or of a user on this node, to the main loop. The server's thread waits for the future
    `answer`.
    """

    what: Asking  # None: who is there
    address: str
    answer: "Future[Any]"


class PeersController:
    """The part of the agent that works with agents of other nodes. It calls `capture` where another node asks
    for a capture of a run; the main loop then calls `captured` or `failed` with what came of it.
    """

    worker_names = ("members", "other nodes", "question")  # whose results `on_result` takes

    def __init__(
        self,
        node: str,
        port: int,
        client: PeerClient,
        candidates: tuple[Peer, ...],
        interval: float,
        inbox: "queue.SimpleQueue[Result | None]",
        incidents: IncidentManager,
        capture: Callable[[Run], None],
        refusals: Refusals | None = None,
        topology: Topology | None = None,
        slowness: SlownessWatch | None = None,
        goodput: Callable[[], GoodputConfig] = GoodputConfig,
    ) -> None:
        """`slowness`: how the ranks here wait; `goodput`: the settings for it that hold now."""
        self.agent = secrets.token_hex(8)
        self.coordinators: tuple[Peer, ...] = ()  # of all circles; read by the server's threads
        self._named: tuple[CoordinatedRun, ...] = ()  # read by the server's threads, too
        self.refusals = refusals or Refusals()
        self.work = WorkBudget(
            nodes=lambda source: self.leader.nodes_at(source)
        )  # the server's threads spend it, too
        self._node, self._port, self._interval = node, port, interval
        self._inbox, self._incidents = inbox, incidents
        self._shown: Snapshot | None = None
        self._groups = CoordinatorGroups(client, candidates, port, inbox, time.monotonic())
        self._ours = OwnRuns(node, incidents.failures, slowness)
        self.leader = Leader(
            *(node, self.agent, client, interval, inbox, incidents),
            *(self._groups, self._ours.find, self.refusals, topology, goodput),
        )
        self._held = HeldStalls(self._groups, incidents, capture)
        self._follower = Follower(
            *(self.agent, interval, self._groups, self._ours, self.leader, incidents, self._held),
            slowness,
        )
        self._ordered = RemoteOrders(capture)
        self._inspected = OrderLimit(MOST_INSPECTED, INSPECTED)
        self._passed_on = OrderLimit(MOST_PASSED_ON, INSPECTED)
        self._waiting: Counter[str] = Counter()  # questions by source, changed by several threads
        self._counting = threading.Lock()

    @property
    def workers(self) -> tuple[Worker, ...]:
        """The workers that send announcements and order captures on other nodes, for the agent's status."""
        return self._groups.worker, self.leader.worker

    @property
    def sentence(self) -> str:
        """The sentence for `mldebug status` about which agents coordinate the runs of this node."""
        sentences = list(dict.fromkeys(self._who(group) for group in self._groups))
        return "; ".join(sentences[:MAX_SHOWN]) or "no run here has ranks on other nodes"

    def _who(self, group: CoordinatorGroup) -> str:
        if group.found is None:
            return f"alone: {group.trouble or 'no other agent has answered yet'}"
        if not group.led_by(self.agent):
            return leader_words(group.found.welcome)
        count = self.leader.count(time.monotonic())
        return f"this agent coordinates {count} {'node' if count == 1 else 'nodes'}"

    def coordinators_of(self, job: str) -> tuple[Peer, ...]:
        """The addresses of the agents that coordinate runs with this name, or whose id begins with it; callable from any thread."""
        return tuple(one.by for one in self._named if job == one.name or one.id.startswith(job))

    # --- the loop ----------------------------------------------------------------------------------

    def tick(self, runs: Mapping[str, Run]) -> None:
        """Announce this node's runs, order captures, and report those stalls from this node's view that were held back for
        too long.
        """
        now = time.monotonic()
        self._ours.tick(runs)
        self._ordered.keep(runs.keys())
        self._groups.sort(self._ours.all, now)
        for group in self._groups:
            if group.take_turn(now, self._interval):
                self._groups.announce(group, self._announcement(group, now))
        self.coordinators = tuple(
            dict.fromkeys(one.found.peer for one in self._groups if one.found is not None)
        )
        self._named = tuple(self._groups.coordinated_runs(runs, self._node))
        self.leader.tick(now)
        self._held.tick(runs, now)

    def present(self) -> Mapping[str, tuple[str, ...]]:
        """By job id, the nodes on which a launcher of the run waits for other nodes, as counted by the coordinator."""
        return self._ours.present

    def on_result(self, result: Result) -> None:
        """Handle the result of a worker: of an announcement, of a capture on all nodes, or a request of another node, which
        is answered here.
        """
        now = time.monotonic()
        if result.worker == "members":
            self._follower.announced(result, now)
        elif result.worker == "other nodes":
            self.leader.together(result)
        else:
            self._question(result.value, now)

    def _question(self, question: PeerQuestion, now: float) -> None:
        before = time.thread_time()
        try:
            with self._counting:
                self._waiting[source_of(question.address)] -= 1
                self._waiting += Counter()  # without those that have none
            self._answer(question, now)
        except Exception as error:
            log.exception("a question of %s could not be answered", question.address)
            refuse(question.answer, MldebugError(f"{type(error).__name__}: an error here"))
        self.work.spend(source_of(question.address), time.thread_time() - before, now)

    def ask(self, what: Asking, address: str) -> "Future[Any]":
        """Put a request to the main loop and return a future for its answer. Callable from any thread. The future has an
        MldebugError at once where too many requests wait, in all or from this address.
        """
        answer: Future[Any] = Future()
        source = source_of(address)
        with self._counting:
            if self._inbox.qsize() >= MAX_WAITING or self._waiting[source] >= MAX_OF_ONE:
                answer.set_exception(MldebugError("too many others ask"))
                return answer
            self._waiting[source] += 1
        self._inbox.put(Result("question", None, PeerQuestion(what, address, answer), None))
        return answer

    # --- our runs ----------------------------------------------------------------------------------

    def complete(self, one: JobLook) -> JobLook:
        """Return the reading of a job (`one`) with the progress added that other nodes have announced."""
        return self._ours.progress(one.job.id).complete(one)

    def holds(self, run: Run) -> bool:
        """Whether this stall must be announced to the coordinator before it is reported; if so, its report is held back
        from now on.
        """
        return self._held.holds(run)

    def holding(self, run: Run) -> bool:
        """Whether the report of the run's stall is held back until the coordinator has had the stacks of its ranks read on all nodes."""
        return self._held.holding(run)

    def release(self, run: Run) -> bool:
        """Note that the run moves again or is over: its report is held back no longer. Returns whether it was."""
        return self._held.release(run)

    def show(self, snapshot: Snapshot) -> None:
        """Announce the GPUs as this snapshot has them, from now on."""
        self._shown = snapshot

    def captured(self, run: Run, capture: NodeCapture) -> None:
        """Pass a finished capture to all orders that wait for it."""
        self._ordered.captured(run.job.id, capture, time.monotonic())

    def failed(self, job_id: str, error: Exception) -> None:
        """Pass the error of a failed capture to all orders that wait for it."""
        self._ordered.failed(job_id, error)

    def _announcement(self, group: CoordinatorGroup, now: float) -> Announcement:
        announcement = Announcement(
            node=self._node,
            agent=self.agent,
            port=self._port,
            circle=group.name,
            runs=self._ours.news(lambda run: self._groups.of(run) is group, now),
            gpus=gpu_briefs(of_agent(self._shown))[:MAX_GPUS] if self._shown else (),
            relayed=self.leader.relayed(group, now),
        )
        fits = fitting(announcement)
        group.left_out(len(announcement.runs) - len(fits.runs))
        return fits

    # --- questions of others -----------------------------------------------------------------------

    def _answer(self, question: PeerQuestion, now: float) -> None:
        what, answer = question.what, question.answer
        if answer.cancelled():
            return  # whoever asked has given up
        if isinstance(what, Announcement):
            give(answer, self._welcome(what, question.address, now))
        elif isinstance(what, CaptureOrder):
            self._capture_for(what, question.address, answer, now)
        elif isinstance(what, DumpOrder):
            self.leader.dump(what, answer, now)
        elif isinstance(what, InspectOrder | NodeInspectOrder):
            self._inspect(what, source_of(question.address), answer, now)
        else:
            give(answer, self.leader.view(now))

    def _inspect(
        self, order: InspectOrder | NodeInspectOrder, source: str, answer: "Future[Any]", now: float
    ) -> None:
        try:
            if isinstance(order, InspectOrder):
                planned = self.leader.inspection(order)
                self._spend(self._passed_on, "", source, now)
                give(answer, planned)
            else:
                run = self._ours.find(order.key, order.attempt)
                part = part_of(order, run, self._node)
                self._spend(self._inspected, part.job.id, source, now)
                give(answer, part)
        except MldebugError as error:
            refuse(answer, error)

    def _spend(self, limit: OrderLimit, what: str, source: str, now: float) -> None:
        """Count an inspection, which costs its ranks time. Raises MldebugError where its source has had too many."""
        if not limit.take(what, source, now):
            why = f"it has ordered as many profiles or looks at memory as it may in {INSPECTED:g} s"
            self.refusals.count("storm", source, why)
            raise MldebugError(why)

    def _welcome(self, announcement: Announcement, address: str, now: float) -> Welcome:
        """The answer to an announcement; where another agent coordinates, what is known of that one."""
        welcome = self.leader.welcome(announcement, address, now)
        group = self._groups.named(announcement.circle)
        if group is None or group.found is None:
            return welcome
        found = group.found.welcome
        if found.agent in (self.agent, announcement.agent):
            return welcome
        to = Peer(found.follows, found.port) if found.follows else group.found.peer
        for_them = (one.runs for one in found.relayed if one.node == announcement.node)
        age = max(0.0, now - group.heard_at)
        known = {word.key: aged(word, age) for word in next(for_them, ())}
        words = tuple(known.get(news.key) or self._word(news, now) for news in announcement.runs)
        return msgspec.structs.replace(welcome, follows=to.host, port=to.port, runs=words, relayed=())  # fmt: skip

    def _word(self, news: RunNews, now: float) -> RunWord:
        """What this node knows of a run, for a node that does not reach the coordinator and that this one relays."""
        run = self._ours.find(news.key, news.attempt)
        if run is None:
            return RunWord(key=news.key)
        signals = self._ours.progress(run.job.id).all(now)
        incident = run.incident if run.incident and run.incident.shared else None
        if incident is None:
            return RunWord(key=news.key, signals=signals)
        return RunWord(key=news.key, signals=signals, incident=incident.id, whole=incident.whole)

    def _capture_for(
        self, order: CaptureOrder, address: str, answer: "Future[TimedCapture | None]", now: float
    ) -> None:
        run = self._ours.find(order.key, order.attempt)
        if run is None:
            give(answer, None)  # no rank of it is here
            return
        source = source_of(address)
        if not self._ordered.allows(run, source, now):
            why = f"it has ordered {MOST} captures of {run.job.name} in {WINDOW:g} s"
            self.refusals.count("storm", address, why)
            refuse(answer, MldebugError(why))
            return
        if why := self._why_not_called(run, order.incident):
            self.refusals.count("incident", address, why)
            refuse(answer, MldebugError(why))
            return
        if order.incident:
            held = self._held.release(run)
            self._incidents.remote.called(run, order.incident, order.sentence, caused=order.caused)
            if held and run.capture is not None:  # it may be what the others get
                self._incidents.captured(run, run.capture)
        self._ordered.order(run, order.incident, answer, now, source)

    def _why_not_called(self, run: Run, incident: str) -> str:
        """Why another node may not give a stall of this run this id; "" where it may, or names none."""
        orders = f"it orders a capture of {run.job.name} as {incident}"
        if incident and not self._incidents.remote.may_be_called(run, incident):
            return f"{orders}, which another run has"
        known = "" if run.incident is None else run.incident.id
        if incident not in ("", known) and run.is_alone:
            return f"{orders}, and all ranks of it are here"
        return ""
