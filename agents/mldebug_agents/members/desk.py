"""What the main loop does with other nodes: announces its runs, coordinates where it is the first, and has stalls captured
everywhere at one moment. Belongs to the main loop's thread; what talks to others is a worker's.

Who notices a stall holds it back until the coordinator has answered, so that one stall has one id. Without one it reports
alone after `ALONE` seconds, and says so.
"""

import logging
import queue
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import msgspec

from mldebug.across.coordinator import MOVES, SLOWEST, Call, Coordinator
from mldebug.across.members import (
    Announcement,
    CaptureOrder,
    ClusterView,
    DumpOrder,
    RunKey,
    RunNews,
    RunWord,
    Welcome,
)
from mldebug.across.runs import job_key, run_id
from mldebug.errors import MldebugError
from mldebug.folding import fold_ranks
from mldebug.model import Asked, AskedNode, Gap, NodeCapture
from mldebug.redact import clean
from mldebug_agents.incidents import Incidents
from mldebug_agents.jobwatch import JobLook
from mldebug_agents.members.asking import Round, ToAsk, Together, ask_all
from mldebug_agents.members.progress import FarProgress
from mldebug_agents.members.seeking import Found, Seeker
from mldebug_agents.members.talk import Peer, Talk
from mldebug_agents.runner import Result, Worker
from mldebug_agents.runs import Run

log = logging.getLogger("mldebug")

ALONE = 10.0  # seconds that a stall is held back for the coordinator
MISSED = 2.5  # announcements that are due and have not come, after which a node is silent
AGAIN = 10.0  # seconds in which one capture serves all who ask for it
ANNOUNCE_DEADLINE, ASK_DEADLINE = 60.0, 60.0
MAX_TOLD = 4  # runs listed in an error
WHAT = "the captures of other nodes"


T = TypeVar("T")
Asking = Announcement | CaptureOrder | DumpOrder | None


class Question(NamedTuple):
    """What another node, or a person here, asks the main loop; `answer` is waited for in the server's thread."""

    what: Asking  # None: who is there
    address: str
    answer: "Future[Any]"


class Members:
    """`capture` has a run captured soon; its capture comes back by `captured`."""

    tells = ("members", "other nodes", "question")  # whose results are for `told`

    def __init__(
        self,
        node: str,
        port: int,
        talk: Talk,
        candidates: tuple[Peer, ...],
        interval: float,
        inbox: "queue.SimpleQueue[Result | None]",
        incidents: Incidents,
        capture: Callable[[Run], None],
    ) -> None:
        self.agent = secrets.token_hex(8)
        self.found: Found | None = None  # who coordinates; None: nobody answers
        self._node, self._port, self._interval = node, port, interval
        self._inbox, self._incidents, self._capture = inbox, incidents, capture
        self._candidates = candidates
        self._coordinator = Coordinator()
        seeker = Seeker(talk, candidates)
        self._workers = (
            Worker("members", seeker.announce, inbox, ANNOUNCE_DEADLINE),
            Worker("other nodes", lambda told: ask_all(talk, told), inbox, ASK_DEADLINE, 4),
        )
        self._runs: Mapping[str, Run] = {}
        self._far: dict[str, FarProgress] = {}
        self._held: dict[str, float] = {}  # job -> until when
        self._asked: dict[
            str, list[Future[NodeCapture | None]]
        ] = {}  # job -> who waits for its capture
        self._captured: dict[str, float] = {}
        self._due = time.monotonic()
        self._heard_at = time.monotonic()
        self._trouble = ""
        self._met: dict[Peer, float] = {}  # who has coordinated, and when he was heard last
        self._passed: tuple[str, ...] = ()

    @property
    def workers(self) -> tuple[Worker, ...]:
        """For status."""
        return self._workers

    @property
    def sentence(self) -> str:
        """Who coordinates, for status."""
        if self.found is None:
            return f"alone: {self._trouble or 'no other agent has answered yet'}"
        if not self.coordinates:
            return f"{self.found.welcome.node} coordinates"
        count = len(self._coordinator.fresh(time.monotonic()))
        return f"this agent coordinates {count} {'node' if count == 1 else 'nodes'}"

    @property
    def coordinates(self) -> bool:
        """Is it us?"""
        return self.found is not None and self.found.welcome.agent == self.agent

    # --- the loop ----------------------------------------------------------------------------------

    def turn(self, runs: Mapping[str, Run]) -> None:
        """Announce, ask, and report alone what was held back for too long."""
        now = time.monotonic()
        self._runs = runs
        for known in (self._far, self._held, self._asked, self._captured):
            for job_id in known.keys() - runs.keys():
                del known[job_id]
        seeker, asker = self._workers
        if now >= self._due and not seeker.busy:
            self._due = now + self._interval
            seeker.order(self._announcement(now))
        for call in self._coordinator.due(now) if self.coordinates else ():
            log.info("%s: asking %d nodes", call.news.name, len(call.members))
            asker.order(Round(call, self._unheard_of(call, now)))
        for incident, why in self._coordinator.ended():
            self._incidents.close_case(incident, "recovered" if why == MOVES else "ended", why)
        for job_id in [one for one, until in self._held.items() if now >= until]:
            self._alone(runs[job_id])

    def told(self, result: Result) -> None:
        """Take what one of `tells` has put into the inbox."""
        now = time.monotonic()
        if result.worker == "members":
            self._welcomed(result, now)
        elif result.worker == "other nodes":
            self._together(result)
        else:
            self._answer(result.value, now)

    def ask(self, what: Asking, address: str) -> "Future[Any]":
        """Put a question to the main loop; from any thread."""
        answer: Future[Any] = Future()
        self._inbox.put(Result("question", None, Question(what, address, answer), None))
        return answer

    # --- our runs ----------------------------------------------------------------------------------

    def complete(self, one: JobLook) -> JobLook:
        """The look with the progress that other nodes have seen."""
        return self._progress_of(one.job.id).complete(one)

    def holds(self, run: Run) -> bool:
        """Is this stall to be told to others first? Then it is held back, and everybody is told at once."""
        if self.found is None or run.seen is None or not run.seen.look.elsewhere:
            return False
        self._held[run.job.id] = time.monotonic() + ALONE
        self._due = 0.0
        return True

    def holding(self, run: Run) -> bool:
        """Does it wait for the coordinator?"""
        return run.job.id in self._held

    def captured(self, run: Run, capture: NodeCapture) -> None:
        """A capture has come back: who waits for it gets it."""
        self._captured[run.job.id] = time.monotonic()
        for waiting in self._asked.pop(run.job.id, ()):
            _give(waiting, capture)

    def _progress_of(self, job_id: str) -> FarProgress:
        return self._far.setdefault(job_id, FarProgress())

    def _alone(self, run: Run) -> None:
        """Nobody has answered in time."""
        self._held.pop(run.job.id, None)
        why = self._trouble or "the coordinator has not asked for it"
        reason = f"{why}; in {ALONE:g} s nobody has: this is what one node has seen"
        self._incidents.missed(run, Gap(what=WHAT, reason=reason))
        self._capture(run)

    def _announcement(self, now: float) -> Announcement:
        runs = tuple(self._news(run, now) for run in self._runs.values() if not run.unjudged)
        return Announcement(node=self._node, agent=self.agent, port=self._port, runs=runs)

    def _news(self, run: Run, now: float) -> RunNews:
        job, told = run.job, run.decision
        stall = run.incident if run.incident and run.incident.kind == "stall" else None
        return RunNews(
            key=job_key(job, self._node),
            name=job.name,
            attempt=job.attempt,
            world_size=job.world_size,
            ranks=fold_ranks(rank.rank for rank in job.ranks),
            step=run.seen.step if run.seen else None,
            stage=str(told.stage) if told else "watching",
            sentence=told.sentence if told else "",
            signals=self._progress_of(job.id).own(now),
            incident=stall.id if stall else "",
        )

    def _run(self, key: RunKey, attempt: int | None = None) -> Run | None:
        for run in self._runs.values():
            if job_key(run.job, self._node) == key and attempt in (None, run.job.attempt):
                return run
        return None

    # --- what the coordinator says -----------------------------------------------------------------

    def _welcomed(self, result: Result, now: float) -> None:
        if result.error is not None:
            self._unheard(result.error, now)
            return
        found: Found = result.value
        if self.found is None or self.found.welcome.agent != found.welcome.agent:
            who = "this agent" if found.welcome.agent == self.agent else found.welcome.node
            log.info("%s coordinates", who)
        self.found, self._heard_at, self._trouble = found, now, ""
        if self._due > now:  # or there is news already
            self._due = max(self._due, now + min(found.welcome.pace, SLOWEST) - self._interval)
        self._met[found.peer] = now
        for why in set(found.passed) - set(self._passed):
            log.warning("no answer of %s", why)
        self._passed = found.passed or self._passed
        for word in found.welcome.runs:
            if (run := self._run(word.key)) is not None:
                self._obey(run, word, now)

    def _unheard(self, error: Exception, now: float) -> None:
        words = (
            error.message if isinstance(error, MldebugError) else f"{type(error).__name__}: {error}"
        )
        if words != self._trouble and "given some seconds" not in words:
            log.warning("%s", words)
            self._trouble = words
        if now - self._heard_at > ALONE + (self.found.welcome.pace if self.found else 0.0):
            self.found = None
            for far in self._far.values():
                far.forget()

    def _obey(self, run: Run, word: RunWord, now: float) -> None:
        self._progress_of(run.job.id).take(word.signals, now)
        incident = run.incident
        if incident is None or incident.kind != "stall" or not word.incident:
            return
        if incident.id != word.incident:
            if not word.over:
                self._incidents.called(run, word.incident, "")
            return
        if word.whole is not None:
            self._incidents.told(run, word.whole)
        if word.over:
            self._incidents.close(run, "recovered", word.over)

    # --- questions of others -----------------------------------------------------------------------

    def _answer(self, question: Question, now: float) -> None:
        what, answer = question.what, question.answer
        if isinstance(what, Announcement):
            _give(answer, self._welcome(what, question.address, now))
        elif isinstance(what, CaptureOrder):
            self._ordered(what, answer, now)
        elif isinstance(what, DumpOrder):
            self._dump(what.job, answer, now)
        else:
            _give(answer, self.view(now))

    def _welcome(self, told: Announcement, address: str, now: float) -> Welcome:
        self._coordinator.hear(told, address, now)
        words = tuple(self._coordinator.word(news, told.node, now) for news in told.runs)
        pace = self._coordinator.pace
        return Welcome(node=self._node, agent=self.agent, pace=pace, runs=words)

    def view(self, now: float) -> ClusterView:
        """All nodes that have announced themselves here."""
        return self._coordinator.view(self._node, [one.host for one in self._candidates], now)

    def _ordered(
        self, order: CaptureOrder, answer: "Future[NodeCapture | None]", now: float
    ) -> None:
        run = self._run(order.key, order.attempt)
        if run is None:
            _give(answer, None)  # no rank of it is here
            return
        if order.incident:
            self._held.pop(run.job.id, None)
            self._incidents.called(run, order.incident, order.sentence)
        recent = now - self._captured.get(run.job.id, -AGAIN) < AGAIN
        if recent and run.capture is not None:
            _give(answer, run.capture)
            return
        waiting = self._asked.setdefault(run.job.id, [])
        waiting.append(answer)
        if len(waiting) == 1:
            self._capture(run)

    # --- as the coordinator --------------------------------------------------------------------------

    def _judged(self, asked: Asked) -> Asked:
        """Who goes on to announce himself is not silent, though he cannot be asked: an address, or a firewall."""
        nodes = tuple(self._alive(one) if one.state == "silent" else one for one in asked.nodes)
        return msgspec.structs.replace(asked, nodes=nodes, by=self._node)

    def _alive(self, node: AskedNode) -> AskedNode:
        at, now = self._coordinator.heard(node.name), time.monotonic()
        if at is None or now - at > MISSED * max(self._interval, self._coordinator.pace):
            return node
        reason = f"{node.reason}, and it has announced itself {now - at:.0f} s ago"
        return msgspec.structs.replace(node, state="unable", reason=reason)

    def _unheard_of(self, call: Call, now: float) -> tuple[ToAsk, ...]:
        """Nodes that do not announce themselves here, or not any more; one of them may have coordinated before."""
        never = {one.node for one in self.view(now).members if one.seen is None}
        lost = tuple(
            ToAsk(one.told.node, Peer(one.address, one.told.port), one.at)
            for one in self._coordinator.others(call, now)
        )
        return (
            *lost,
            *(
                ToAsk(one.host, one, self._met.get(one))
                for one in self._candidates
                if one.host in never
            ),
        )

    def _dump(self, job: str, answer: "Future[Together]", now: float) -> None:
        """A person asks; there may be a stall, or none."""
        calls = self._coordinator.named(job)
        if len(calls) != 1:
            names = sorted({f"{run_id(one.news.key)} ({one.news.name})" for one in calls})
            have = f": {', '.join(names[:MAX_TOLD])}" if calls else ""
            count = len(calls) or "no"
            _refuse(answer, MldebugError(f"{count} runs match {clean(job, 60)}{have}"))
        elif not self._workers[1].order(Round(calls[0], self._unheard_of(calls[0], now), answer)):
            _refuse(answer, MldebugError("too many captures wait"))

    def _together(self, result: Result) -> None:
        call: Call = result.order.call
        answer: Future[Together] | None = result.order.answer
        if answer is not None:
            if result.error is not None:
                _refuse(answer, MldebugError(f"the nodes could not be asked: {result.error}"))
            else:
                _give(answer, result.value)
            return
        if result.error is not None:
            log.error("%s: the nodes could not be asked: %s", call.news.name, result.error)
            return
        told: Together = result.value
        if told.run is None:
            log.error("%s: no node has sent a capture", call.news.name)
            return
        count = len(told.run.captures)
        nodes = "1 node" if count == 1 else f"{count} nodes"
        what = f"captured {nodes}, all within {told.spread:.1f} s"
        run = self._run(call.news.key, call.news.attempt)
        captures = told.run.captures
        asked = self._judged(told.run.asked)
        whole = self._incidents.together(run, call.incident, captures, asked, what)
        self._coordinator.captured(call.news, whole)


def _give(answer: "Future[T]", value: T) -> None:
    """Whoever waits may have given up: then a future cannot be set any more."""
    if answer.set_running_or_notify_cancel():
        answer.set_result(value)


def _refuse(answer: "Future[T]", error: MldebugError) -> None:
    if answer.set_running_or_notify_cancel():
        answer.set_exception(error)
