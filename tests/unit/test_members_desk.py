"""What the main loop does with other nodes, whoever gives up waiting and whatever fails."""

import queue
import time
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

from mldebug.across.members import (
    Announcement,
    CaptureOrder,
    DumpOrder,
    RunNews,
    RunWord,
    Signal,
    Welcome,
)
from mldebug.across.runs import job_key
from mldebug.errors import MldebugError
from mldebug.model import Asked, AskedNode, Job
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import Look, Progress, ProgressKind
from mldebug.stall.watch import StallWatch
from mldebug_agents.jobwatch import JobLook
from mldebug_agents.members.asking import Round
from mldebug_agents.members.desk import AGAIN, Members
from mldebug_agents.members.progress import FarProgress
from mldebug_agents.members.seeking import Found
from mldebug_agents.members.talk import Peer, SilentError
from mldebug_agents.runner import Result
from mldebug_agents.runs import Run
from nodes import run as captures_of

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

    def called(self, run: Run, incident: str, sentence: str) -> None:
        self.done.append(("called", incident))

    def missed(self, run: Run, gap: Any) -> None:
        self.done.append(("missed", gap.reason))

    def close_case(self, incident: str, state: str, why: str) -> None:
        self.done.append(("closed", incident, state))


class Loop:
    """A main loop without a node."""

    def __init__(self) -> None:
        self.inbox: queue.SimpleQueue[Result | None] = queue.SimpleQueue()
        self.books, self.ordered = Books(), 0
        self.run = Run(JOB, StallWatch(StallSettings()))
        look = Look(at=0.0, elsewhere=True)
        self.run.seen = JobLook(job=JOB, look=look)
        self.members = Members(
            "n1", 9754, Silence(), (Peer("n2", 1),), 1.0, self.inbox, self.books, self._capture  # type: ignore[arg-type]
        )  # fmt: skip

    def _capture(self, run: Run) -> None:
        self.ordered += 1

    def ask(self, what: Any) -> "Future[Any]":
        """A question, as the server's thread puts it, taken by the main loop."""
        answer = self.members.ask(what, "10.0.0.2")
        self.take("question")
        return answer

    def take(self, worker: str) -> None:
        while (found := self.inbox.get(timeout=10)) is not None:
            self.members.told(found)
            if found.worker == worker:
                return


@pytest.fixture
def loop() -> Loop:
    made = Loop()
    made.members.turn({JOB.id: made.run})
    made.take("members")  # nobody answers
    return made


ORDER = CaptureOrder(key=KEY, attempt=0, incident="first")


def test_one_capture_serves_all_who_ask(loop: Loop) -> None:
    first, second = loop.ask(ORDER), loop.ask(ORDER)
    assert loop.ordered == 1
    loop.members.captured(loop.run, CAPTURE)
    assert first.result(0) is second.result(0) is CAPTURE
    loop.run.capture = CAPTURE
    assert loop.ask(ORDER).result(0) is CAPTURE  # a moment later: no dump storm
    assert loop.ordered == 1
    assert loop.books.done == [("called", "first")] * 3
    assert AGAIN > 1


def test_who_has_given_up_ends_nothing(loop: Loop) -> None:
    """The server's thread has waited for long enough; the capture comes all the same."""
    gone, patient = loop.ask(ORDER), loop.ask(ORDER)
    assert gone.cancel()
    loop.members.captured(loop.run, CAPTURE)
    assert patient.result(0) is CAPTURE


def test_a_run_that_is_not_here_has_no_capture(loop: Loop) -> None:
    assert loop.ask(msgspec.structs.replace(ORDER, attempt=3)).result(0) is None
    assert loop.ordered == 0


def test_nobody_answers_and_a_stall_is_not_held_back(loop: Loop) -> None:
    assert not loop.members.holds(loop.run)
    assert loop.members.sentence == "alone: no other agent coordinates: n2: no answer in 1 s"


def welcomed(loop: Loop, *words: RunWord, agent: str = "other") -> None:
    found = Found(Peer("n2", 1), Welcome(node="n2", agent=agent, runs=words))
    loop.members.told(Result("members", None, found, None))


def test_a_stall_is_held_back_for_the_coordinator_and_not_for_ever(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    welcomed(loop)
    assert loop.members.sentence == "n2 coordinates"
    assert loop.members.holds(loop.run)
    assert loop.members.holding(loop.run)
    now = time.monotonic()
    monkeypatch.setattr("mldebug_agents.members.desk.time.monotonic", lambda: now + 60)
    loop.members.turn({JOB.id: loop.run})
    assert not loop.members.holding(loop.run)
    assert loop.ordered == 1
    assert "this is what one node has seen" in loop.books.done[0][1]


def test_a_job_of_one_node_is_nobody_elses(loop: Loop) -> None:
    welcomed(loop)
    loop.run.seen = JobLook(job=JOB, look=Look(at=0.0))
    assert not loop.members.holds(loop.run)


def test_who_announces_himself_is_told_what_others_know(loop: Loop) -> None:
    step = Signal(kind="step", value=5.0, age=1.0)
    first = RunNews(key=KEY, world_size=6, ranks="0-1", signals=(step,))
    second = RunNews(key=KEY, world_size=6, ranks="2-3")
    loop.ask(Announcement(node="n7", agent="7", port=1, runs=(first,)))
    welcome = loop.ask(Announcement(node="n8", agent="8", port=1, runs=(second,))).result(0)
    assert [one.value for one in welcome.runs[0].signals] == [5.0]
    assert [one.node for one in loop.ask(None).result(0).members] == ["n7", "n8", "n2"]


def test_a_run_that_nobody_knows_cannot_be_dumped(loop: Loop) -> None:
    with pytest.raises(MldebugError, match="no runs match nosuch"):
        loop.ask(DumpOrder(job="nosuch")).result(0)


def test_nodes_that_could_not_be_asked_at_all_are_told_of(loop: Loop) -> None:
    """The worker itself has failed."""
    answer: Future[Any] = Future()
    news = RunNews(key=KEY, world_size=6, ranks="0-1")
    loop.ask(Announcement(node="n7", agent="7", port=1, runs=(news,)))
    (call,) = loop.members._coordinator.named(JOB.name) or loop.members._coordinator.named("")
    failed = Result(
        "other nodes", Round(call, (), answer), None, RuntimeError("can't start new thread")
    )
    loop.members.told(failed)
    with pytest.raises(MldebugError, match="can't start new thread"):
        answer.result(0)
    loop.members.told(Result("other nodes", Round(call), None, RuntimeError("x")))  # of an incident


def test_who_announces_himself_is_not_silent(loop: Loop) -> None:
    loop.ask(Announcement(node="n7", agent="7", port=1))
    nodes = (
        AskedNode(name="n7", state="silent", reason="no answer"),
        AskedNode(name="n9", state="silent"),
    )
    judged = loop.members._judged(Asked(nodes=nodes))
    assert [one.state for one in judged.nodes] == ["unable", "silent"]
    assert judged.by == "n1"


def look(*progress: Progress) -> JobLook:
    return JobLook(job=Job(id="j", name="j", launcher="x"), look=Look(at=9.0, progress=progress))


def test_progress_from_afar_stands_in_for_what_is_not_seen_here() -> None:
    far = FarProgress()
    far.take(
        [Signal(kind="step", value=5.0, age=1.0), Signal(kind="mood", value=1.0, age=0.0)], 10.0
    )
    (step,) = far.complete(look()).look.progress
    assert (step.kind, step.value, step.at) == (ProgressKind.STEP, 5.0, 9.0)

    far.take([Signal(kind="step", value=5.0, age=4.0)], 12.0)  # the same: its time stands
    assert far.complete(look()).look.progress == (step,)
    far.take([Signal(kind="step", value=8.0, age=0.0)], 14.0)
    (later,) = far.complete(look()).look.progress
    assert (later.value, later.at, later.events) == (8.0, 14.0, 3)

    own = Progress(kind=ProgressKind.STEP, value=2.0, at=8.0)
    assert far.complete(look(own)).look.progress == (own,)
    assert [one.value for one in far.own(9.0)] == [2.0]
    far.take([], 15.0)
    assert far.complete(look()).look.progress == ()
