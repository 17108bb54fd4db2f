"""Has ranks that were started with `mldebug run` do something at their next steps: a profile, or tell who holds their CUDA memory.

A request lies beside the rank's record, written with the rights of its user, and the signal for stacks has the hook look for it (see
`mldebug_training.hook.on_request.requests`). Who may be signalled, and how: `mldebug_agents.jobs.hook.signals`. The result is read from
a file that the rank holds open without a name, with the rights of its user.
"""

import json
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TypeVar

import msgspec

from mldebug.capture.profile.hook_answer import (
    ANSWER,
    MAX_ANSWER,
    REQUEST,
    HookAnswer,
    parse_answer,
)
from mldebug.core.errors import AccessError, MldebugError
from mldebug.core.model import RankIdentity
from mldebug_agents.jobs.hook import request_child
from mldebug_agents.jobs.hook.records import check_owner
from mldebug_agents.jobs.hook.request_child import HookRequestFile
from mldebug_agents.jobs.hook.signals import HookSignals, SignalTarget
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import FilePiece
from mldebug_agents.system.spawn import Spawner

PAUSE = 0.1  # seconds between two looks whether they have answered
ACCEPTED = 10.0  # seconds in which the hook has to take the request
WORK = 180.0  # seconds after the first step for the rest
PIECE = 8 << 20  # bytes that are read at once
MAX_RESULT = 96 << 20  # bytes
NO_HOOK = "it cannot be asked: it was not started with `mldebug run`, or its hook has no signal"
DEAF = "its hook did not take the request: it is an older one, or C code holds the interpreter lock"
CANCEL = "cancel"  # what is asked when nobody waits for an earlier request any more
NO_STEP = "no step has ended in {:g} s"
T = TypeVar("T")


class StepOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What ranks are to do at their next steps. `seconds`: how long the first step may take to end."""

    what: str
    steps: int = 1
    seconds: float = 60.0


class HookResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank has answered: `data`, or in `failure` the reason why there is none."""

    answer: HookAnswer | None = None
    data: bytes = b""
    failure: str = ""


class HookRequests:
    """Asks ranks to do something at their next steps. A rank that does not, or writes nonsense, raises nothing."""

    def __init__(
        self,
        signals: HookSignals,
        host: Host,
        reader: Reader,
        spawner: Spawner,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._signals, self._host, self._reader = signals, host, reader
        self._spawner, self._clock = spawner, clock

    def working(self, ranks: Sequence[RankIdentity]) -> tuple[int, ...]:
        """The ranks that work on a request now."""
        found = []
        for rank in ranks:
            with self._signals.hold(rank.pid) as one:
                answer = self._answer(one) if one is not None else None
            if answer is not None and answer.state == "accepted":
                found.append(rank.rank)
        return tuple(found)

    def ask(
        self,
        ranks: Sequence[RankIdentity],
        order: StepOrder,
        digest: Callable[[RankIdentity, HookResult], T],
    ) -> dict[int, T]:
        """Have these ranks carry out the order, all at once, and return what `digest` makes of each one's result, by rank. Results
        are read one after the other, so that only one is held whole.

        Raises AccessError where this user may not ask them. Whatever ends it early, Ctrl-C, too: all ranks that were asked are told that
        nobody waits any more.
        """
        number = secrets.randbelow(2**31 - 1) + 1
        with ExitStack() as stack:
            held = {rank.rank: stack.enter_context(self._signals.hold(rank.pid)) for rank in ranks}
            found = {rank: HookResult(failure=NO_HOOK) for rank, one in held.items() if one is None}
            targets = {rank: one for rank, one in held.items() if one is not None}
            waiting: dict[int, SignalTarget] = {}
            data = _request(number, order)
            with self._recalled(waiting, number, data):
                for rank, target in targets.items():
                    waiting[rank] = target  # now: an interrupt may come once it lies there
                    if why := self._send(target, data):
                        found[rank] = HookResult(failure=why)
                        del waiting[rank]
                answers = self._answers(waiting, order, number)
            return {
                one.rank: digest(
                    one, found.get(one.rank) or self._result(waiting[one.rank], answers[one.rank])
                )
                for one in ranks
            }

    @contextmanager
    def _recalled(
        self, targets: Mapping[int, SignalTarget], number: int, data: bytes
    ) -> Iterator[None]:
        """Take the request `data` back from those who may have it (`targets`) where the block does not come to its end: a rank that has not
        taken it finds none, one that works on it stops.
        """
        try:
            yield
        except BaseException:
            cancel = json.dumps({"layout": 1, "number": number, "what": CANCEL}).encode()
            for target in targets.values():
                self._withdraw(target, data)
                with suppress(MldebugError, OSError):
                    if self._place("write", target, cancel):
                        self._signals.ask(target, target.beat.signal or 0)
            raise

    def _send(self, target: SignalTarget, data: bytes) -> str:
        """Lay the request down and signal the rank; returns why that failed, "" where it did not."""
        try:
            if not self._place("write", target, data):
                return "somebody else asks it at this moment"
            if self._signals.ask(target, target.beat.signal or 0):
                return ""
            why = NO_HOOK
        except AccessError:
            raise
        except MldebugError as error:  # a full /dev/shm: the other ranks are asked all the same
            return error.message
        except OSError as error:
            why = f"it cannot be signalled: {error.strerror or error}"
        self._withdraw(target, data)
        return why

    def _place(self, verb: str, target: SignalTarget, data: bytes) -> bool:
        order = HookRequestFile(
            verb="write" if verb == "write" else "remove",
            root=self._host.root_of(target.pid),
            name=target.name + REQUEST,
            owner=self._signals.rights(target),
            data=data,
        )
        return request_child.place(self._spawner, order)

    def _answers(
        self, waiting: Mapping[int, SignalTarget], order: StepOrder, number: int
    ) -> dict[int, HookAnswer | str]:
        """The last answer of each rank, or why there is none."""
        began = self._clock()
        found: dict[int, HookAnswer | str] = {}
        taken: dict[int, HookAnswer] = {}  # what others are told afterwards has the same name
        while len(found) < len(waiting):
            for rank, target in waiting.items():
                if rank not in found:
                    answer = self._answer(target)
                    if answer is not None and answer.number == number:
                        taken[rank] = answer
                    mine = taken.get(rank)
                    state = self._state(target, mine, self._clock() - began, order)
                    if state == DEAF:
                        self._withdraw(target, _request(number, order))
                    if state is not None:
                        found[rank] = state
            time.sleep(PAUSE)
        return found

    def _state(
        self, target: SignalTarget, answer: HookAnswer | None, waited: float, order: StepOrder
    ) -> HookAnswer | str | None:
        """None while it is waited for."""
        if answer is not None and answer.state != "accepted":
            return answer if answer.state == "done" else answer.why or "it declined"
        if self._gone(target):
            return "it ended meanwhile"
        if answer is None and waited > ACCEPTED:
            return DEAF
        if waited > order.seconds + ACCEPTED and self._is_still(target):
            return NO_STEP.format(order.seconds)
        return "its steps take too long" if waited > order.seconds + WORK else None

    def _gone(self, target: SignalTarget) -> bool:
        now = self._host.brief(target.pid)
        return now is None or now.state in "ZX" or now.start_ticks != target.identity.start_ticks

    def _withdraw(self, target: SignalTarget, data: bytes) -> None:
        """Remove the request, where it is this one that lies there."""
        try:
            self._place("remove", target, data)
        except MldebugError:
            return  # the hook does not believe it a minute later

    def _is_still(self, target: SignalTarget) -> bool:
        beat = self._signals.beat(target)
        return beat is None or beat.step == target.beat.step

    def _answer(self, target: SignalTarget) -> HookAnswer | None:
        path, rights = self._signals.path(target, ANSWER), self._signals.rights(target)
        piece = self._reader.read_from(path, 0, rights=rights, max_bytes=MAX_ANSWER + 1)
        if not isinstance(piece, FilePiece):
            return None
        try:
            check_owner(piece, target.identity.uid)
            return parse_answer(piece.data)
        except ValueError:
            return None

    def _result(self, target: SignalTarget, answer: HookAnswer | str) -> HookResult:
        if isinstance(answer, str):
            return HookResult(failure=answer)
        if not 0 < answer.bytes <= MAX_RESULT:
            return HookResult(failure=f"its result has {answer.bytes} bytes: ask for fewer steps")
        path = f"{self._host.proc}/{target.pid}/fd/{answer.fd}"
        data = bytearray()
        while len(data) < answer.bytes:
            most = min(PIECE, answer.bytes - len(data))
            rights = self._signals.rights(target)
            piece = self._reader.read_from(path, len(data), rights=rights, max_bytes=most)
            if not isinstance(piece, FilePiece):
                return HookResult(failure=f"its result cannot be read: {piece.reason}")
            if not piece.data:
                return HookResult(failure="its result ends too early")
            try:
                check_owner(piece, target.identity.uid)
            except ValueError as error:
                return HookResult(failure=f"its result is not believed: {error}")
            data += piece.data
        return HookResult(answer=answer, data=bytes(data))


def _request(number: int, order: StepOrder) -> bytes:
    """The content of a request file."""
    return json.dumps({"layout": 1, "number": number, **msgspec.structs.asdict(order)}).encode()
