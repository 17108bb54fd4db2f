"""The coordinated capture: all nodes of a run are asked at one moment, and what comes until a deadline is put together."""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec

from mldebug.across.members import CaptureOrder
from mldebug.across.membership import Call, ranks_of
from mldebug.across.merge import Heard, Run, merge
from mldebug.across.runs import RunKey, run_key
from mldebug.across.topology import Topology, placed
from mldebug.across.wire import MAX_BYTES, NodeReply, unpack
from mldebug.errors import EvidenceError, MldebugError
from mldebug.folding import unfold
from mldebug.model import AskedNode, Gap
from mldebug_agents.members.openapi import CAPTURE
from mldebug_agents.members.talk import CutError, Peer, SilentError, Talk

DEADLINE = 20.0  # seconds for one node
AT_ONCE = 512  # connections
MAX_AGE = 3600.0  # seconds


class ToAsk(NamedTuple):
    """One node to be asked; `seen`: when it was heard of last (monotonic), None: never."""

    name: str
    to: Peer
    seen: float | None


class Round(NamedTuple):
    """A call, and the nodes that are configured, were never heard of, and may have what nobody has shown."""

    call: Call
    others: tuple[ToAsk, ...] = ()
    answer: "Future[Together] | None" = None  # of a person who waits; None: it is an incident

    def asked(self) -> tuple[ToAsk, ...]:
        """All that are to be asked."""
        known = tuple(
            ToAsk(one.told.node, Peer(one.address, one.told.port, one.told.node), one.at)
            for one in self.call.members
        )
        shown = unfold(ranks_of(self.call.members, self.call.news.key) or "0")
        return known if len(shown) >= self.call.news.world_size else (*known, *self.others)


class Together(NamedTuple):
    """What came of a call; `run`: None where nobody sent a capture that can be used."""

    call: Call
    run: Run | None
    spread: float  # seconds from the begin of the first capture to that of the last, as the clock here tells it


class _Answer(NamedTuple):
    name: str
    reply: NodeReply | None
    failed: AskedNode | None
    sent: float
    begun: float  # at the latest


def ask_all(
    talk: Talk,
    told: Round,
    clock: Callable[[], float] = time.monotonic,
    topology: Topology | None = None,
) -> Together:
    """In a worker: order all captures at once, and merge them."""
    call, nodes = told.call, told.asked()
    order = CaptureOrder(
        key=call.news.key,
        attempt=call.news.attempt,
        incident=call.incident,
        sentence=f"{call.noticed_by}: {call.news.sentence}",
        caused=call.cause is not None,
    )
    body = msgspec.json.encode(order)
    answers = _all_at_once(lambda one: _ask(talk, one, order.key, body, clock), nodes)
    answers = list(_once_each(answers))
    replies = {one.name: one.reply for one in answers if one.reply is not None}
    heard = Heard(replies, [one.failed for one in answers if one.failed is not None])
    run = next(iter(merge(heard).runs), None)
    took = [one.begun for one in answers if one.reply is not None and one.reply.captures]
    spread = max(took) - min(took) if took else 0.0
    return Together(call, run and _completed(run, call.gaps, topology), spread)


def _completed(run: Run, gaps: tuple[Gap, ...], topology: Topology | None) -> Run:
    first, *others = run.captures
    first = msgspec.structs.replace(first, gaps=(*gaps, *first.gaps))
    return Run((first, *others), placed(run.asked, topology))


def _all_at_once(ask: Callable[[ToAsk], _Answer], nodes: Sequence[ToAsk]) -> list[_Answer]:
    """In their order. Where the system has no more threads for us, those that there are ask one node after the other."""
    left: queue.SimpleQueue[tuple[int, ToAsk]] = queue.SimpleQueue()
    answers: dict[int, _Answer] = {}
    for numbered in enumerate(nodes):
        left.put(numbered)

    def work() -> None:
        with suppress(queue.Empty):
            while True:
                number, node = left.get_nowait()
                answers[number] = ask(node)

    threads = list(_started(work, min(AT_ONCE, len(nodes)) - 1))
    work()
    for one in threads:
        one.join()
    return [answers[number] for number in sorted(answers)]


def _started(work: Callable[[], None], count: int) -> Iterator[threading.Thread]:
    for _ in range(count):
        thread = threading.Thread(target=work, name="mldebug-asking", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # TasksMax of the unit, or a limit of the user
            return
        yield thread


def _once_each(answers: Iterable[_Answer]) -> Iterator[_Answer]:
    """A node that was asked under two names has answered twice: under the name that it told, which comes first."""
    known = set()
    for one in answers:
        if one.reply is not None and one.reply.machine:
            ranks = [rank for capture in one.reply.captures for rank in capture.job.ranks]
            place = (one.reply.machine, *((rank.pid, rank.start_ticks) for rank in ranks))
            if place in known:
                continue
            known.add(place)
        yield one


def _asked_twice(
    talk: Talk, to: Peer, body: bytes, until: float, clock: Callable[[], float]
) -> bytes:
    """Once more where the connection is cut, before one lost connection costs a node its evidence: one capture serves both orders."""
    with suppress(CutError):
        return talk.ask(to, CAPTURE, body, timeout=until - clock(), most=MAX_BYTES)
    return talk.ask(to, CAPTURE, body, timeout=max(1.0, until - clock()), most=MAX_BYTES)


def _ask(talk: Talk, node: ToAsk, key: RunKey, body: bytes, clock: Callable[[], float]) -> _Answer:
    sent = clock()
    seen = None if node.seen is None else time.time() - (sent - node.seen)
    failed = partial(AskedNode, name=node.name, last_seen=seen)
    try:
        reply = unpack(_asked_twice(talk, node.to, body, sent + DEADLINE, clock))
        if any(run_key(one) != key for one in reply.captures):
            raise EvidenceError("its answer is of another run")
    except SilentError as error:
        return _Answer(node.name, None, failed(state="silent", reason=error.message), sent, sent)
    except EvidenceError as error:
        return _Answer(node.name, None, failed(state="refused", reason=error.message), sent, sent)
    except MldebugError as error:
        return _Answer(node.name, None, failed(state="unable", reason=error.message), sent, sent)
    age = reply.age if 0.0 <= reply.age <= MAX_AGE else MAX_AGE
    return _Answer(node.name, reply, None, sent, clock() - age)
