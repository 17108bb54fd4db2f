"""What the main loop does with other nodes, whoever gives up waiting and whatever fails."""

import math
import queue
import socket
import threading
import time
from collections import Counter
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

from mldebug.cluster.coordinator import MOVES, Coordinator
from mldebug.cluster.known_peers import CaptureCall, KnownPeer, of_user
from mldebug.cluster.merge import NodeReplies, merge
from mldebug.cluster.messages import (
    AnnouncedExit,
    Announcement,
    CaptureOrder,
    DumpOrder,
    Relayed,
    RunNews,
    RunWord,
    Signal,
    Welcome,
    Whole,
    believed,
    believed_welcome,
    read,
)
from mldebug.cluster.run_identity import job_key, run_key
from mldebug.cluster.wire import NodeReply, pack, unpack
from mldebug.core.errors import MldebugError
from mldebug.core.model import (
    Confidence,
    Diagnosis,
    Gap,
    Job,
    NodeCapture,
    QueriedNode,
    QueriedNodes,
    RankIdentity,
    Verdict,
)
from mldebug.diagnosis.diagnose import diagnose
from mldebug.incidents.incident import Incident
from mldebug.stall.decision import StallWatch
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import Progress, ProgressKind, RunLook, Stage, StallDecision
from mldebug_agents.cluster.peers.controller import PeersController
from mldebug_agents.cluster.peers.coordinated_capture import (
    CaptureRound,
    ClusterCapture,
    NodeToAsk,
    _begun,
    ask_all,
)
from mldebug_agents.cluster.peers.coordinator_search import FoundCoordinator, candidates
from mldebug_agents.cluster.peers.leader import Leader
from mldebug_agents.cluster.peers.net.broadcast import NodeAnswer
from mldebug_agents.cluster.peers.net.client import Peer, PeerConnection
from mldebug_agents.cluster.peers.net.errors import SilentError
from mldebug_agents.cluster.peers.net.http_answer import HttpAnswer
from mldebug_agents.cluster.peers.own_runs import RemoteProgress
from mldebug_agents.cluster.peers.remote_orders import RemoteOrders
from mldebug_agents.cluster.peers.routes import _packed
from mldebug_agents.incidents.recent_failures import RecentFailures
from mldebug_agents.incidents.report_writer import owner_of
from mldebug_agents.system.child.structs import learn_structs
from mldebug_agents.system.service.clock import Clock
from mldebug_agents.system.workers import Result
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.runs import Run
from shared.cluster.nodes import run as captures_of

learn_structs()  # as an agent does before it has threads
CAPTURE = captures_of(3, 2)["a1"]
JOB = CAPTURE.job
KEY = job_key(JOB, "n1")


class Silence:
    """A network in which nobody answers."""

    def ask(self, *_: object, **__: object) -> bytes:
        raise SilentError("no answer in 1 s")


class Books:
    """What became of the incidents."""

    def __init__(self) -> None:
        self.done: list[tuple[str, ...]] = []
        self.failures = RecentFailures(Clock(), wanted=True)
        self.remote = self
        self.cases: list[str] = []

    def called(self, run: Run, incident: str, sentence: str, *, caused: bool = False) -> None:
        self.done.append(("called", incident))

    def may_be_called(self, run: Run, incident: str) -> bool:
        return True

    def is_free(self, incident: str, key: object) -> bool:
        return True

    def missed(self, run: Run, gap: Any) -> None:
        self.done.append(("missed", gap.reason))

    def captured(self, run: Run, capture: NodeCapture) -> None:
        self.done.append(("captured",))

    def close(self, run: Run, state: str, why: str) -> None:
        self.done.append(("close", state))

    def add_whole(self, run: Run, whole: object) -> None:
        self.done.append(("told",))

    def close_case(self, incident: str, state: str, why: str) -> None:
        self.done.append(("closed", incident, state))


class Loop:
    """A main loop without a node."""

    def __init__(
        self, peers: tuple[Peer, ...] = (Peer("n2", 1),), jobs: tuple[Job, ...] = ()
    ) -> None:
        self.inbox: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
        self.books, self.ordered = Books(), 0
        self.run = Run(JOB, StallWatch(StallSettings()))
        look = RunLook(at=0.0, elsewhere=True)
        self.run.last_look = JobLook(job=JOB, look=look)
        self.members = PeersController(
            "n1", 9754, Silence(), peers, 1.0, self.inbox, self.books, self._capture  # type: ignore[arg-type]
        )  # fmt: skip

        self.runs = {job.id: self._met(job) for job in jobs}

    def _met(self, job: Job) -> Run:
        run = Run(job, StallWatch(StallSettings()))
        run.last_look = JobLook(job=job, look=RunLook(at=0.0, elsewhere=True))
        return run

    def _capture(self, run: Run) -> None:
        self.ordered += 1

    def ask(self, what: Any) -> "Future[Any]":
        """A question, as the server's thread puts it, taken by the main loop."""
        answer = self.members.ask(what, "10.0.0.2")
        self.take("question")
        return answer

    def take(self, worker: str) -> None:
        while (found := self.inbox.get(timeout=60)) is not None:
            self.members.on_result(found)
            if found.worker == worker:
                return


@pytest.fixture
def loop() -> Loop:
    made = Loop()
    made.members.tick({JOB.id: made.run})
    made.take("members")  # nobody answers
    return made


ORDER = CaptureOrder(key=KEY, attempt=0, incident="first")


def test_one_capture_serves_all_who_ask(loop: Loop) -> None:
    first, second = loop.ask(ORDER), loop.ask(ORDER)
    assert loop.ordered == 1
    loop.members.captured(loop.run, CAPTURE)
    assert first.result(0).capture is second.result(0).capture is CAPTURE
    loop.run.capture = CAPTURE
    assert loop.ask(ORDER).result(0).capture is CAPTURE  # a moment later: no dump storm
    assert loop.ordered == 1
    assert loop.books.done == [("called", "first")] * 3


def test_a_dump_in_between_costs_no_second_capture() -> None:
    """A person's order joins that of an incident; the connection of that one is cut, and it comes once more."""
    took = list[Run]()
    one, run = RemoteOrders(took.append), Run(JOB, StallWatch(StallSettings()))
    one.order(run, "X", Future(), 0.0)
    one.order(run, "", Future(), 0.1)
    run.capture = CAPTURE
    one.captured(JOB.id, CAPTURE, 1.0)
    again: Future[Any] = Future()
    one.order(run, "X", again, 2.5)
    assert len(took) == 1
    assert again.result(0).capture is CAPTURE
    one.order(run, "Y", Future(), 2.6)  # another stall: it shows another moment
    assert len(took) == 2


def test_a_capture_of_before_is_none_of_now(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was taken for another reason seconds ago shows another moment than those of the other nodes."""
    loop.members.captured(loop.run, CAPTURE)
    loop.run.capture = CAPTURE
    assert loop.ask(ORDER).result(0).capture is CAPTURE  # of this moment
    now = time.monotonic()
    monkeypatch.setattr("mldebug_agents.cluster.peers.controller.time.monotonic", lambda: now + 5.0)
    assert loop.ask(ORDER).result(0).capture is CAPTURE  # of this incident
    assert not loop.ask(msgspec.structs.replace(ORDER, incident="next")).done()
    assert loop.ordered == 1


def test_what_was_taken_while_it_was_held_back_is_not_lost(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    welcomed(loop)
    assert loop.members.holds(loop.run)
    loop.run.capture = CAPTURE
    now = time.monotonic()
    monkeypatch.setattr("mldebug_agents.cluster.peers.controller.time.monotonic", lambda: now + 60)
    loop.members.tick({JOB.id: loop.run})
    assert [one[0] for one in loop.books.done] == ["missed", "captured"]
    assert loop.ordered == 0


def test_the_age_of_a_capture_is_told_and_counts() -> None:
    """All moments by the clock of whoever asks."""
    replies = {
        name: NodeReply(node=name, age=age, captures=(one,))
        for (name, one), age in zip(captures_of(3, 2).items(), (0.5, 9.0, 0.0), strict=True)
    }
    assert 8.9 < captured_by_all(Nodes(replies)).spread < 20


def test_who_has_given_up_ends_nothing(loop: Loop) -> None:
    """The server's thread has waited for long enough; the capture comes all the same."""
    gone, patient = loop.ask(ORDER), loop.ask(ORDER)
    assert gone.cancel()
    loop.members.captured(loop.run, CAPTURE)
    assert patient.result(0).capture is CAPTURE


def test_a_run_that_is_not_here_has_no_capture(loop: Loop) -> None:
    assert loop.ask(msgspec.structs.replace(ORDER, attempt=3)).result(0) is None
    assert loop.ordered == 0


def test_nobody_answers_and_a_stall_is_not_held_back(loop: Loop) -> None:
    assert not loop.members.holds(loop.run)
    assert loop.members.sentence == "alone: no other agent coordinates: n2: no answer in 1 s"


def welcomed(loop: Loop, *words: RunWord, agent: str = "other") -> None:
    found = FoundCoordinator(Peer("n2", 1), Welcome(node="n2", agent=agent, runs=words))
    loop.members.on_result(
        Result("members", Announcement(node="n1", agent="", port=1), found, None)
    )


def test_a_stall_is_held_back_for_the_coordinator_and_not_for_ever(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    welcomed(loop)
    assert loop.members.sentence == "n2 coordinates"
    assert loop.members.holds(loop.run)
    assert loop.members.holding(loop.run)
    now = time.monotonic()
    monkeypatch.setattr("mldebug_agents.cluster.peers.controller.time.monotonic", lambda: now + 60)
    loop.members.tick({JOB.id: loop.run})
    assert not loop.members.holding(loop.run)
    assert loop.ordered == 1
    assert "this is what one node has seen" in loop.books.done[0][1]


def test_who_is_held_back_by_the_coordinator_waits_as_long_as_he_does(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    welcomed(loop)
    assert loop.members.holds(loop.run)
    welcomed(loop, RunWord(key=KEY, hold=26.0))
    now = time.monotonic()
    monkeypatch.setattr("mldebug_agents.cluster.peers.controller.time.monotonic", lambda: now + 35)
    loop.members.tick({JOB.id: loop.run})
    assert loop.members.holding(loop.run)
    monkeypatch.setattr("mldebug_agents.cluster.peers.controller.time.monotonic", lambda: now + 37)
    loop.members.tick({JOB.id: loop.run})
    assert not loop.members.holding(loop.run)
    assert loop.ordered == 1


def test_a_stall_that_recovers_while_it_is_held_back_waits_for_nothing(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    welcomed(loop)
    assert loop.members.holds(loop.run)
    assert loop.members.release(loop.run)
    now = time.monotonic()
    monkeypatch.setattr("mldebug_agents.cluster.peers.controller.time.monotonic", lambda: now + 60)
    loop.members.tick({JOB.id: loop.run})
    assert (loop.ordered, loop.books.done) == (0, [])
    assert not loop.members.release(loop.run)


def test_who_was_told_of_a_stall_before_it_notices_it_keeps_its_capture(loop: Loop) -> None:
    """The order came first: what it has captured is part of the incident, and nothing waits for an order any more."""
    welcomed(loop)
    loop.run.incident = Incident(id="first", key="k", job_id=JOB.id, detected_at=0.0, shared=True)
    assert not loop.members.holds(loop.run)
    assert not loop.members.holding(loop.run)


def test_who_follows_speaks_for_those_who_do_not_reach_the_coordinator(loop: Loop) -> None:
    welcomed(loop)  # n2 coordinates, and this one is n1
    loop.run.incident = Incident(id="first", key="k", job_id=JOB.id, detected_at=0.0, shared=True)
    theirs = RunNews(key=KEY, world_size=6, ranks="4-5", stage="blamed", incident="x")
    announcement = Announcement(node="n3", agent="c", port=7, runs=(theirs,))
    answer = loop.ask(announcement).result(0)
    assert (answer.follows, answer.port) == ("n2", 1)
    assert [(one.key, one.incident) for one in answer.runs] == [(KEY, "first")]

    (circle,) = loop.members._groups
    ours = loop.members._announcement(circle, time.monotonic())
    (relayed,) = believed(ours).relayed
    assert (relayed.node, relayed.port, relayed.address) == ("n3", 7, "10.0.0.2")
    assert relayed.runs == (theirs,)
    n2 = Coordinator()
    n2.update_relayed(ours, 100.0)
    (call,) = n2.due(100.5)
    assert (call.incident, call.noticed_by) == ("x", "n3")
    n2.update(
        announcement, "10.0.0.3", 101.0
    )  # it comes itself: what others say of it counts no more
    n2.update_relayed(msgspec.structs.replace(ours, relayed=()), 102.0)
    n2.update_relayed(ours, 102.0)
    assert [one.address for one in n2.view("n2", (), 102.0).peers] == ["10.0.0.3"]
    n2.update_relayed(ours, 108.0)  # it comes no more, and still speaks by way of the other
    assert n2.is_relayed("n3")


def test_who_does_not_reach_the_coordinator_is_told_all_that_he_would_tell_it(loop: Loop) -> None:
    """What came first, what all have come to, and why it is over: its copy of the report is to say the same."""
    leader = Loop(()).members.leader
    step = Signal(kind="step", value=5.0, age=60.0)
    other = RunNews(key=KEY, world_size=6, ranks="0-1", signals=(step,))
    leader.welcome(Announcement(node="n7", agent="7", port=1, runs=(other,)), "a", time.monotonic())
    found = spoken_for(loop, leader, "blamed", "x")
    (call,) = leader._coordinator.due(time.monotonic())
    assert (call.incident, call.noticed_by) == ("x", "n3")
    summary = "Rank 1 was killed"
    verdict, confidence = Verdict.RANK_EXITED, Confidence.HIGH
    killed = Diagnosis(verdict=verdict, culprits=(), confidence=confidence, summary=summary, evidence=(), next_steps=())  # fmt: skip
    cause = AnnouncedExit(incident="x", diagnosis=killed)
    (stall,) = leader._coordinator._stalls.values()
    stall.cause = cause
    leader._coordinator.captured(
        call.news, Whole(report="x", node="n2", nodes=2, diagnosis=cause.diagnosis)
    )
    found = spoken_for(loop, leader, "blamed", "x")
    assert (found.incident, found.caused, found.over) == ("x", True, "")
    assert found.whole is not None
    assert found.whole.diagnosis == cause.diagnosis

    (signal,) = spoken_for(loop, leader, "blamed", "x", later=7.0).signals
    assert (signal.value, round(signal.age)) == (5.0, 67)

    spoken_for(loop, leader, "watching", "x")
    assert not tuple(leader._coordinator.due(time.monotonic()))
    for incident in ("x", ""):
        found = spoken_for(loop, leader, "watching", incident)
        assert (found.incident, found.over) == ("x", MOVES)


def spoken_for(
    loop: Loop, leader: Leader, stage: str, incident: str, later: float = 0.0
) -> RunWord:
    """What n3 is told by n1 of its run, after n1 has passed on what it says, and heard the answer."""
    news = RunNews(key=KEY, world_size=6, ranks="4-5", stage=stage, incident=incident)
    (circle,) = loop.members._groups
    announcement = Announcement(node="n3", agent="c", port=7, circle=circle.name, runs=(news,))
    welcomed(loop)
    loop.ask(announcement)
    ours = believed(loop.members._announcement(circle, time.monotonic()))
    answer = leader.welcome(ours, "10.0.0.1", time.monotonic())
    believed_answer = believed_welcome(read(msgspec.json.encode(answer), Welcome))
    loop.members.on_result(
        Result("members", ours, FoundCoordinator(Peer("n2", 1), believed_answer), None)
    )
    circle.heard_at -= later
    (word,) = loop.ask(announcement).result(0).runs
    return word


def test_a_job_of_one_node_is_nobody_elses(loop: Loop) -> None:
    welcomed(loop)
    loop.run.last_look = JobLook(job=JOB, look=RunLook(at=0.0))
    assert not loop.members.holds(loop.run)


def test_runs_that_are_not_announced_are_told_of_once(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    (circle,) = loop.members._groups
    runs = {str(one): loop._met(of_nodes(str(one), "n[1-2]")) for one in range(260)}
    loop.members.tick(runs)
    for _ in range(2):
        assert len(loop.members._announcement(circle, time.monotonic()).runs) == 256
    results = [one.getMessage() for one in caplog.records if "not announced" in one.getMessage()]
    assert results == ["4 runs of this node are not announced: there are too many"]


def test_who_announces_himself_is_told_what_others_know(loop: Loop) -> None:
    step = Signal(kind="step", value=5.0, age=1.0)
    first = RunNews(key=KEY, world_size=6, ranks="0-1", signals=(step,))
    second = RunNews(key=KEY, world_size=6, ranks="2-3")
    loop.ask(Announcement(node="n7", agent="7", port=1, runs=(first,)))
    welcome = loop.ask(Announcement(node="n8", agent="8", port=1, runs=(second,))).result(0)
    assert [one.value for one in welcome.runs[0].signals] == [5.0]
    assert [one.node for one in loop.ask(None).result(0).peers] == ["n7", "n8", "n2"]


def test_a_run_that_nobody_knows_cannot_be_dumped(loop: Loop) -> None:
    with pytest.raises(MldebugError, match="no runs match nosuch"):
        loop.ask(DumpOrder(job="nosuch")).result(0)


def test_whoever_is_not_root_has_his_own_runs_captured_and_no_others(loop: Loop) -> None:
    """DESIGN: on the socket everything, of one's own jobs."""
    mine, theirs = (
        RunNews(key=("torchrun", "100", f"uid {uid}"), name="train.py", world_size=2, ranks="0")
        for uid in (1000, 1001)
    )
    root = RunNews(key=("torchrun", "uid 1000", "port 7"), name="root.py", world_size=2, ranks="0")
    loop.ask(Announcement(node="n7", agent="7", port=1, runs=(mine, theirs, root)))
    named = loop.members.leader._coordinator.named
    assert [one.news for one in named("train.py", 1000)] == [mine]
    assert [one.news for one in named("train.py")] == [mine, theirs]
    assert named("root.py", 1000) == named("root.py", 0) == ()
    with pytest.raises(MldebugError, match=r"none of your runs match root\.py"):
        loop.ask(DumpOrder(job="root.py", uid=1000)).result(0)
    result = loop.ask(None).result(0)
    assert of_user(result, None) is result
    assert [(one.node, one.runs) for one in of_user(result, 1001).peers] == [("n7", (theirs,))]
    assert of_user(result, 1002).peers == ()


def test_nodes_that_could_not_be_asked_at_all_are_told_of(loop: Loop) -> None:
    """The worker itself has failed."""
    answer: Future[Any] = Future()
    news = RunNews(key=KEY, world_size=6, ranks="0-1")
    loop.ask(Announcement(node="n7", agent="7", port=1, runs=(news,)))
    (call,) = loop.members.leader._coordinator.named(
        JOB.name
    ) or loop.members.leader._coordinator.named("")
    failed = Result(
        "other nodes", CaptureRound(call, (), answer), None, RuntimeError("can't start new thread")
    )
    loop.members.on_result(failed)
    with pytest.raises(MldebugError, match="can't start new thread"):
        answer.result(0)
    loop.members.on_result(
        Result("other nodes", CaptureRound(call), None, RuntimeError("x"))
    )  # of an incident


def test_who_announces_himself_is_not_silent(loop: Loop) -> None:
    loop.ask(Announcement(node="n7", agent="7", port=1))
    nodes = (
        QueriedNode(name="n7", state="silent", reason="no answer"),
        QueriedNode(name="n9", state="silent"),
    )
    judged = loop.members.leader.judged(QueriedNodes(nodes=nodes))
    assert [one.state for one in judged.nodes] == ["unable", "silent"]
    assert judged.by == "n1"


def test_the_list_of_the_scheduler_tells_which_nodes_have_no_rank(loop: Loop) -> None:
    """World of six, four ranks came, and the list has three nodes of which one shows none: it is asked, too."""
    news = RunNews(key=KEY, world_size=6, ranks="0-1", node_list="a[1-3]")
    second = msgspec.structs.replace(news, ranks="2-3")
    for number, runs in enumerate(((news,), (second,), ()), 1):
        loop.ask(Announcement(node=f"a{number}", agent=str(number), port=1, runs=runs))
    leader = loop.members.leader
    (call,) = leader._coordinator.named("")
    assert [one.name for one in leader._not_announced(call, time.monotonic())] == ["a3", "n2"]

    found = captures_of(2, 2)
    jobs = {
        name: msgspec.structs.replace(one.job, node_list="a[1-3]", world_size=6)
        for name, one in found.items()
    }
    replies = {
        name: NodeReply(node=name, captures=(msgspec.structs.replace(one, job=jobs[name]),))
        for name, one in found.items()
    }
    replies["a3"] = NodeReply(node="a3")
    entry = merge(NodeReplies(replies)).runs[0]
    assert leader._listed(entry).listed_by == "the scheduler"
    missing = diagnose(entry.captures, leader._listed(entry)).ranks[-2:]
    assert [(one.rank, one.node, one.is_.name) for one in missing] == [
        (4, "a3", "missing"),
        (5, "a3", "missing"),
    ]
    del replies["a3"]
    assert leader._listed(merge(NodeReplies(replies)).runs[0]).listed_by == ""


def test_a_node_that_may_not_see_the_ranks_does_not_say_that_none_are_there(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its agent is another user's, or in a container: whose processes they are it cannot read."""
    monkeypatch.setattr("mldebug_agents.cluster.peers.routes.os.geteuid", lambda: 4711)
    gap = Gap(what="processes of other users", reason="permission denied", way_out="run it as root")
    found = captures_of(2, 2)
    jobs = {
        name: msgspec.structs.replace(one.job, node_list="a[1-3]", world_size=6)
        for name, one in found.items()
    }
    replies = {
        name: NodeReply(node=name, captures=(msgspec.structs.replace(one, job=jobs[name]),))
        for name, one in found.items()
    }
    for gaps, confidence in (((), "high"), ((gap,), "low")):
        answer = unpack(_packed(None, "a3", "boot", gaps))
        entry = merge(NodeReplies(replies | {"a3": answer})).runs[0]
        judged = diagnose(entry.captures, loop.members.leader._listed(entry)).diagnosis
        assert str(judged.confidence) == confidence
        assert bool(judged.culprits) is not bool(gaps)


def test_what_was_taken_while_it_was_held_back_is_kept_before_others_get_it(loop: Loop) -> None:
    welcomed(loop)
    assert loop.members.holds(loop.run)
    loop.run.capture = CAPTURE
    loop.members.captured(loop.run, CAPTURE)
    assert loop.ask(ORDER).result(0).capture is CAPTURE
    assert [one[0] for one in loop.books.done] == ["called", "captured"]


def test_a_list_that_cannot_hold_the_run_is_not_all_it_has(loop: Loop) -> None:
    """One step of the scheduler on each node: the list of each is that node alone."""
    found = captures_of(1, 2)
    jobs = {
        name: msgspec.structs.replace(one.job, node_list="a1", world_size=6)
        for name, one in found.items()
    }
    replies = {
        name: NodeReply(node=name, captures=(msgspec.structs.replace(one, job=jobs[name]),))
        for name, one in found.items()
    }
    entry = merge(NodeReplies(replies)).runs[0]
    result = loop.members.leader._listed(entry)
    assert result.listed_by == ""
    assert [one.rank for one in diagnose(entry.captures, result).diagnosis.culprits] == []


def test_where_no_more_threads_can_be_had_all_are_asked_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, started = threading.Thread.start, list[threading.Thread]()

    def few(thread: threading.Thread) -> None:
        if len(started) > 1:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr("mldebug_agents.cluster.peers.net.connect_pool.threading.Thread.start", few)
    replies = {
        name: NodeReply(node=name, captures=(one,)) for name, one in captures_of(3, 2).items()
    }
    run = captured_by_all(Nodes(replies)).run
    assert run is not None
    assert [one.node for one in run.captures] == ["a1", "a2", "a3"]


def test_who_is_spoken_for_is_not_silent(loop: Loop) -> None:
    other = Relayed(node="n8", agent="c", port=7, address="10.0.0.8", age=6.0)
    loop.ask(Announcement(node="n7", agent="7", port=1, relayed=(other,)))
    nodes = (QueriedNode(name="n8", state="silent", reason="no answer"),)
    (judged,) = loop.members.leader.judged(QueriedNodes(nodes=nodes)).nodes
    assert (judged.state, judged.reason) == (
        "unable",
        "no answer, and it has announced itself 6 s ago",
    )


def look(*progress: Progress) -> JobLook:
    return JobLook(job=Job(id="j", name="j", launcher="x"), look=RunLook(at=9.0, progress=progress))


def test_progress_from_afar_stands_in_for_what_is_not_seen_here() -> None:
    far = RemoteProgress()
    far.take(
        [Signal(kind="step", value=5.0, age=1.0), Signal(kind="css_class", value=1.0, age=0.0)],
        10.0,
    )
    (step,) = far.complete(look()).look.progress
    assert (step.kind, step.value, step.at) == (ProgressKind.STEP, 5.0, 9.0)

    far.take([Signal(kind="step", value=5.0, age=4.0)], 12.0)  # the same: its time stands
    (same,) = far.complete(look()).look.progress
    assert (same.value, same.at, same.until) == (5.0, 9.0, 12.0)
    far.take([Signal(kind="step", value=8.0, age=0.0)], 14.0)
    (later,) = far.complete(look()).look.progress
    assert (later.value, later.at, later.events) == (8.0, 14.0, 3)

    own = Progress(kind=ProgressKind.STEP, value=2.0, at=8.0)
    assert far.complete(look(own)).look.progress == (own,)
    assert [one.value for one in far.own(9.0)] == [2.0]
    far.take([], 15.0)
    assert far.complete(look()).look.progress == ()


# --- circles -----------------------------------------------------------------------------------------


def of_nodes(job_id: str, nodes: str, master: str = "", world: int = 8) -> Job:
    identity = RankIdentity(rank=0, world_size=world, pid=7, master=master, run_id=job_id)
    return Job(
        id=job_id, name=f"{job_id}.py", launcher="slurm", world_size=world, node_list=nodes, ranks=(identity,)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("job", "hosts"),
    [
        (of_nodes("a", "n[1-2]"), ["n1", "n2"]),
        (of_nodes("a", "n[08-10,12],login"), ["login", "n08", "n09", "n10", "n12"]),
        (of_nodes("a", "r[1-2]n[1-2]"), ["r1n1", "r1n2", "r2n1", "r2n2"]),
        (of_nodes("a", "n[1-2]", "n1:29500"), ["n1", "n2"]),
        (of_nodes("a", "n[1-2]", "10.0.0.7:29500"), ["n1", "n2", "10.0.0.7"]),
        (of_nodes("a", "", "n7.cluster.org:29500"), ["n7.cluster.org"]),
        (of_nodes("a", "", "fd00::7:29500"), ["fd00::7"]),
        (of_nodes("a", "", "[fd00::7]:29500"), ["fd00::7"]),
        (of_nodes("a", "", "localhost:29500"), []),
        (of_nodes("a", "", "127.0.0.1:29500"), []),
        (of_nodes("a", "n[1-2]", world=1), []),  # all of it is here
        (of_nodes("a", "@all"), []),
        (of_nodes("a", "n[1-99999999]"), []),
        (of_nodes("a", "n[1-2"), []),
        (of_nodes("a", "", "x" * 300 + ":1"), []),
    ],
)
def test_who_may_coordinate_a_run(job: Job, hosts: list[str]) -> None:
    assert candidates(job, 9754) == tuple(Peer(host, 9754) for host in hosts)


def test_a_list_of_a_job_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of names take a hundred milliseconds, and the main loop comes by each second."""
    results: list[Job] = []
    read = lambda job, port: results.append(job) or candidates(job, port)
    monkeypatch.setattr("mldebug_agents.cluster.peers.groups.candidates", read)
    jobs = (of_nodes("a", "n[1-2000]"), of_nodes("b", "m[1-2049]", "n7:29500"))
    loop = Loop((), jobs)
    for _ in range(5):
        loop.members.tick(loop.runs)
    assert [one.id for one in results] == ["a", "b"]
    assert [len(one.candidates) for one in loop.members._groups] == [2000, 1]  # too many are none
    loop.runs["a"].job = of_nodes("a", "n[1-3]")
    loop.members.tick(loop.runs)
    assert sorted(len(one.candidates) for one in loop.members._groups) == [1, 3]


def jobs_of(uid: int, count: int) -> tuple[Job, ...]:
    """Jobs of one user, each on other nodes."""
    jobs = (of_nodes(f"{uid}-{one}", f"u{uid}x{one}n[1-2]") for one in range(count))
    return tuple(msgspec.structs.replace(job, uid=uid) for job in jobs)


def circles_of(loop: Loop) -> dict[int, int]:
    """How many circles each user has."""
    loop.members.tick(loop.runs)
    found = loop.members._groups
    assert {one.owner[0] for one in found} <= {run.job.uid for run in loop.runs.values()}
    return dict(Counter(one.owner[0] for one in found))


def test_one_user_s_many_jobs_keep_nobody_else_s_out(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop((), jobs_of(1000, 80))
    assert circles_of(loop) == circles_of(loop) == {1000: 64}
    results = [
        one.getMessage() for one in caplog.records if "without their other" in one.getMessage()
    ]
    assert results == ["16 runs are watched without their other nodes: there are too many"]
    before = set(loop.members._groups)
    for run in map(loop._met, (*jobs_of(1001, 3), *jobs_of(1002, 40))):
        loop.runs[run.job.id] = run
    assert circles_of(loop) == {1000: 30, 1001: 3, 1002: 31}
    kept = set(loop.members._groups)
    assert len(kept & before) == 30
    circles_of(loop)
    assert set(loop.members._groups) == kept  # nothing moves by itself
    loop.runs = {job_id: run for job_id, run in loop.runs.items() if run.job.uid == 1000}
    assert circles_of(loop) == {1000: 64}


def contained(job: Job, container: str) -> Job:
    ranks = (msgspec.structs.replace(rank, container=container) for rank in job.ranks)
    return msgspec.structs.replace(job, ranks=tuple(ranks))


def test_one_container_s_many_jobs_keep_nobody_else_s_out() -> None:
    """Both are root's: by user alone the younger had no coordinator, and its stall was judged without its other nodes."""
    many = [contained(job, "evil") for job in jobs_of(0, 80)]
    loop = Loop((), (*many, contained(of_nodes("j", "m[1-2]"), "mine")))
    loop.members.tick(loop.runs)
    assert len(list(loop.members._groups)) == 64
    assert loop.members._groups.of(loop.runs["j"]) is not None


def test_a_container_that_claims_another_s_nodes_does_not_use_up_its_circle() -> None:
    """Root's of all containers on the same nodes share one: it counted as theirs whose run came last."""
    many = [contained(job, "evil") for job in jobs_of(0, 80)]
    mine = contained(of_nodes("j", "m[1-2]"), "mine")
    claims = contained(of_nodes("k", "m[1-2]"), "evil")
    for order in ((*many, mine, claims), (*many, claims, mine)):
        loop = Loop((), order)
        loop.members.tick(loop.runs)
        assert len(list(loop.members._groups)) == 64
        group = loop.members._groups.of(loop.runs["j"])
        assert group is not None
        assert group.owner == (0, "mine")


def test_two_users_on_the_same_nodes_have_a_circle_each() -> None:
    mine, theirs = (
        msgspec.structs.replace(of_nodes(f"j{uid}", "n[1-2]"), uid=uid) for uid in (1000, 1001)
    )
    loop = Loop((), (mine, theirs))
    assert circles_of(loop) == {1000: 1, 1001: 1}
    one, other = loop.members._groups
    assert [run.name for run in loop.members._announcement(one, 0.0).runs] == ["j1000.py"]
    assert [run.name for run in loop.members._announcement(other, 0.0).runs] == ["j1001.py"]


def test_a_group_in_a_job_s_node_list_runs_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """A site's groups may come from a shell command; a job names none."""
    lines: list[str] = []
    monkeypatch.setattr(
        "ClusterShell.NodeUtils.GroupResolver.group_nodes",
        lambda self, *who: lines.append(who) or [],
    )
    assert candidates(of_nodes("a", "@all,n1"), 1) in ((), (Peer("n1", 1),))
    assert lines == []


def test_two_jobs_of_a_node_have_a_coordinator_each() -> None:
    loop = Loop((), (of_nodes("a", "n[1-2]"), of_nodes("b", "n[2-3]"), of_nodes("c", "n[1-2]")))
    loop.members.tick(loop.runs)
    one, two = loop.members._groups
    assert [peer.host for peer in (*one.candidates, *two.candidates)] == ["n1", "n2", "n2", "n3"]
    assert [loop.members._groups.of(run) for run in loop.runs.values()] == [one, two, one]
    result = loop.members._announcement(one, 0.0)
    assert ([run.name for run in result.runs], result.circle) == (["a.py", "c.py"], one.name)

    found = FoundCoordinator(Peer("n1", 9754), Welcome(node="n1", agent="other"))
    loop.members.on_result(Result("members", result, found, None))
    assert "n1 coordinates" in loop.members.sentence
    assert loop.members._groups.of(loop.runs["b"]) is two
    assert not loop.members.holds(loop.runs["b"])
    assert loop.members.holds(loop.runs["a"])
    del loop.runs["a"], loop.runs["c"]
    loop.members.tick(loop.runs)
    assert list(loop.members._groups) == [two]


def test_a_capture_that_fails_is_told_to_all_who_wait(loop: Loop) -> None:
    gone, patient = loop.ask(ORDER), loop.ask(ORDER)
    assert gone.cancel()
    loop.members.failed(JOB.id, OSError("py-spy is gone"))
    with pytest.raises(MldebugError, match="its capture failed: OSError: py-spy is gone"):
        patient.result(0)
    again = loop.ask(ORDER)
    assert loop.ordered == 2
    assert again.cancel()
    loop.ask(ORDER)
    assert loop.ordered == 3  # nobody waits for the one before


def test_what_another_node_says_does_not_end_what_is_seen_here(loop: Loop) -> None:
    loop.run.incident = Incident(id="x", key="k", job_id=JOB.id, detected_at=0.0)
    loop.run.decision = StallDecision(
        stage=Stage.BLAMED, sentence="", timeout=1.0, why_timeout="", usual_gap=1.0, next_look=1.0, key="k"
    )  # fmt: skip
    over = RunWord(key=KEY, incident="x", over="the job moves again")
    welcomed(loop, over)
    assert loop.books.done == []
    loop.run.decision = msgspec.structs.replace(loop.run.decision, stage=Stage.WATCHING)
    welcomed(loop, over)
    welcomed(loop, msgspec.structs.replace(over, over="no node shows the job any more"))
    assert loop.books.done == [("close", "recovered"), ("close", "ended")]


# --- who is asked ------------------------------------------------------------------------------------


class InstantReply(PeerConnection):
    """A connection by which this answer comes as soon as anything was asked."""

    def __init__(self, body: bytes) -> None:
        self._here, self._there = socket.socketpair()
        self._told = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)

    def fileno(self) -> int:
        return self._here.fileno()

    def send(self, path: str, body: bytes) -> None:
        self._there.send(b"!")

    def take(self, answer: HttpAnswer) -> bool:
        return answer.feed(self._told)

    def close(self) -> None:
        self._here.close()
        self._there.close()


class Nodes:
    """Answers of nodes, by host."""

    def __init__(self, replies: dict[str, NodeReply]) -> None:
        self.replies = replies

    def connect(self, to: Peer, until: float) -> PeerConnection:
        if to.host not in self.replies:
            raise SilentError("no answer in 20 s")
        return InstantReply(pack(self.replies[to.host]))


def captured_by_all(nodes: Nodes, *more: str) -> ClusterCapture:
    found = captures_of(3, 2)
    key = run_key(found["a1"])
    members = tuple(
        KnownPeer(Announcement(node=name, agent=name, port=1, runs=(RunNews(key=key, ranks="0", world_size=6),)), name, 0.0)
        for name in found
    )  # fmt: skip
    call = CaptureCall("i", members[0].announcement.runs[0], "a1", members)
    others = tuple(NodeToAsk(name, Peer(name, 1), None) for name in more)
    return ask_all(nodes, CaptureRound(call, others))  # type: ignore[arg-type]


def test_a_node_that_is_asked_under_two_names_answers_once() -> None:
    replies = {
        name: NodeReply(node=name, machine=f"boot of {name}", captures=(one,))
        for name, one in captures_of(3, 2).items()
    }
    doubled = replies | {f"{name}.cluster": one for name, one in replies.items()}
    run = captured_by_all(Nodes(doubled), *(f"{name}.cluster" for name in replies)).run
    assert run is not None
    assert [one.node for one in run.captures] == list(replies)
    assert [one.name for one in run.queried.nodes] == list(replies)


def test_who_was_heard_of_last_is_asked_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of dead nodes occupy the hands for seconds each."""
    replies = {
        name: NodeReply(node=name, captures=(one,)) for name, one in captures_of(3, 2).items()
    }
    went = list[str]()

    class Noting(Nodes):
        def connect(self, to: Peer, until: float) -> PeerConnection:
            went.append(to.host)
            return super().connect(to, until)

    monkeypatch.setattr("mldebug_agents.cluster.peers.net.connect_pool.MOST", 1)
    key = run_key(captures_of(3, 2)["a1"])
    news = RunNews(key=key, ranks="0", world_size=600)
    facts = {"dead1": 10.0, "a1": 99.0, "dead2": 20.0, "a2": 98.0, "a3": 97.0}
    members = tuple(
        KnownPeer(Announcement(node=name, agent=name, port=1, runs=(news,)), name, at)
        for name, at in facts.items()
    )
    never = (NodeToAsk("never", Peer("never", 1), None),)
    result = ask_all(Noting(replies), CaptureRound(CaptureCall("i", news, "a1", members), never))  # type: ignore[arg-type]
    assert went == ["a1", "a2", "a3", "dead2", "dead1", "never"]
    assert result.run is not None
    assert [one.node for one in result.run.captures] == ["a1", "a2", "a3"]
    assert 0.0 <= result.sent < 30.0


@pytest.mark.parametrize(
    ("age", "begun"),
    [(0.5, 102.5), (0.0, 103.0), (-7.0, 103.0), (3600.0, 70.0), (math.nan, 70.0), (math.inf, 70.0)],
)
def test_a_node_cannot_say_that_it_was_captured_when_it_was_not(age: float, begun: float) -> None:
    """Asked at 100, answered at 103; a capture may be older than the order, by what serves several orders."""
    assert _begun(NodeAnswer(b"", 100.0, 103.0), age, 200.0) == begun


def test_a_capture_of_another_run_is_refused() -> None:
    """However many ranks it shows."""
    replies = {
        name: NodeReply(node=name, captures=(one,)) for name, one in captures_of(3, 2).items()
    }
    liar = captures_of(1, 64)["a1"]
    job = msgspec.structs.replace(
        liar.job, ranks=tuple(msgspec.structs.replace(one, run_id="evil") for one in liar.job.ranks)
    )
    replies["a3"] = NodeReply(node="a3", captures=(msgspec.structs.replace(liar, job=job),))
    run = captured_by_all(Nodes(replies)).run
    assert run is not None
    assert [one.node for one in run.captures] == ["a1", "a2"]
    states = {one.name: (one.state, one.reason) for one in run.queried.nodes}
    assert states["a3"] == ("refused", "its answer is of another run")


def key_of(master: str, launcher: str = "torchrun", run_id: str = "100") -> tuple[str, ...]:
    rank = RankIdentity(rank=0, world_size=8, pid=7, launcher=launcher, run_id=run_id, master=master)  # fmt: skip
    return job_key(Job(id="j", name="t", launcher=launcher, world_size=8, ranks=(rank,)), "n1")


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_two_jobs_of_one_run_id_are_told_apart_by_the_port_of_their_masters(launcher: str) -> None:
    """And no job is parted, however each of its nodes writes the address."""
    assert key_of("n1:29400", launcher) != key_of("n1:41003", launcher)
    alike = (
        "n1:29400",
        "n1.cluster.org:29400",
        "10.0.0.7:29400",
        "[fd00::7]:29400",
        "localhost:29400",
    )
    assert len({key_of(one, launcher) for one in alike}) == 1
    assert key_of("") == key_of("n1:") == key_of("n1")


def test_a_run_id_that_no_other_run_has_needs_no_port() -> None:
    """mpirun gives MASTER_PORT to the ranks of its own node, and to others only where it is told to."""
    assert key_of("n1:29400", "openmpi", "3141") == key_of("", "openmpi", "3141")
    assert key_of("n1:29400", "slurm", "7.0") == key_of("", "slurm", "7.0")


def test_a_run_is_of_one_user() -> None:
    """Whoever starts a process with another's run id joins nothing, and gets no report of it."""
    mine = captures_of(3, 2)["a1"]
    theirs = msgspec.structs.replace(mine, job=msgspec.structs.replace(mine.job, uid=6666))
    assert run_key(mine) != run_key(theirs)
    assert owner_of((mine, theirs)) == 0
    assert owner_of((theirs, theirs)) == 6666
