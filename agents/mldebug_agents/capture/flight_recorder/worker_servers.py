"""PyTorch's worker servers: a rank that opened one serves its Flight Recorder over HTTP without the interpreter lock.

A server is asked which handlers it has, then how far the rank is (`pg_status`), then for all calls as JSON, which has no frames.
Where all ranks of a job are on this node and equally far, one of them is asked for all its calls and the others for pending calls only
(`onlyactive`). Pending calls alone would mislead: NCCL never marks the members of a batch as ended, and the later calls that prove it
are left out.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from mldebug.capture.flight_recorder.dump import MAX_DUMP, limits_of_living_job, parse_dump
from mldebug.capture.flight_recorder.status import RankStatus, beside, parse_status, spoken_for
from mldebug.core.model import FlightRecord
from mldebug_agents.system.child.job_paths import Rights
from mldebug_agents.system.child.reader_writes import ASKED_FOR, WorkerServerQuestion
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import Unreadable

HANDLERS = {
    "dump_nccl_trace_json": WorkerServerQuestion.NCCL,
    "fr_trace_json": WorkerServerQuestion.OTHERS,
}
MAX_LIST, MAX_STATUS = 64 << 10, 1 << 20
SECONDS = 2.0  # for all questions to all servers of a job: a report waits for them
QUICK = 0.5  # of these, until all have told how far they are
AT_ONCE = 16


class StatusComparison:
    """Compares how far ranks are, so that not all need to be asked for everything.

    `count` ranks are asked, of a job of `world` ranks. All must report by `until` (monotonic
    seconds), else each is asked for everything.
    """

    def __init__(self, count: int, until: float, world: int = 0) -> None:
        self._count, self._until, self._world = count, until, world
        self._changed = threading.Condition()
        self._statuses: dict[int, RankStatus | None] = {}
        self._speakers: dict[int, int] | None = None
        self._whole: dict[int, FlightRecord | None] = {}

    @property
    def several(self) -> bool:
        """Whether statuses can be compared: there are several ranks, and all ranks of the job are
        among them (others might wait in a call that is done here).
        """
        return 1 < self._count >= self._world

    def speaker(self, rank: int, status: RankStatus | None) -> int | None:
        """Hand in this rank's status, and wait until all have done so or time is over.

        Returns the rank whose full record also holds for this one; None: this one has to be asked
        itself.
        """
        with self._changed:
            self._statuses[rank] = status
            self._changed.notify_all()
            left = max(0.0, self._until - time.monotonic())
            self._changed.wait_for(self._is_settled, left)
            if self._speakers is None:
                statuses = {
                    number: found for number, found in self._statuses.items() if found is not None
                }
                self._speakers = spoken_for(statuses) if len(statuses) >= self._count else {}
                self._changed.notify_all()
            return self._speakers.get(rank)

    def _is_settled(self) -> bool:
        return self._speakers is not None or len(self._statuses) >= self._count

    def put(self, rank: int, answer: FlightRecord | str) -> None:
        """Hand in this rank's full record (or the error), for the threads that wait for it in `whole`."""
        with self._changed:
            self._whole[rank] = answer if isinstance(answer, FlightRecord) else None
            self._changed.notify_all()

    def whole(self, rank: int, until: float) -> FlightRecord | None:
        """Wait for that rank's full record.

        None where it failed, or has not come in half of the time until `until`: the other half is
        needed to ask without it.
        """
        with self._changed:
            left = max(0.0, until - time.monotonic())
            self._changed.wait_for(lambda: rank in self._whole, left / 2)
            return self._whole.get(rank)


def ask_servers(
    reader: Reader,
    places: Mapping[int, Sequence[str]],
    rights: Mapping[int, Rights],
    world: int,
    seconds: float = SECONDS,
) -> dict[int, FlightRecord | str]:
    """Ask the worker servers of all ranks in parallel, in `seconds` at most. Returns by rank the
    first usable record or the reason why there is none; {} without places or time.

    `places`, `rights`: of each rank. `world`: the number of ranks of the job.
    """
    if not places or seconds <= 0:
        return {}
    began = time.monotonic()
    agreed = StatusComparison(len(places), began + min(QUICK, seconds / 2), world)
    with ThreadPoolExecutor(min(AT_ONCE, len(places))) as pool:
        answers = pool.map(
            lambda rank: _first(
                reader, places[rank], rights[rank], world, began + seconds, rank, agreed
            ),
            places,
        )
        return dict(zip(places, answers, strict=True))


def _first(
    reader: Reader,
    places: Sequence[str],
    rights: Rights,
    world: int,
    until: float,
    rank: int,
    agreed: StatusComparison,
) -> FlightRecord | str:
    answers: list[FlightRecord | str] = []
    for place in places:
        answers.append(_from(reader, place, rights, world, until, rank, agreed))
        if isinstance(answers[-1], FlightRecord):
            return answers[-1]
    return answers[0]


def _from(
    reader: Reader,
    place: str,
    rights: Rights,
    world: int,
    until: float,
    rank: int,
    agreed: StatusComparison,
) -> FlightRecord | str:
    """It is asked by a child of its own: who reads the node's files meanwhile does not wait for a job that is silent."""
    answer: FlightRecord | str = "an earlier question has not come back"
    if place not in reader.stuck:
        server = WorkerServer(reader, place, rights, world, until)
        try:
            answer = server.read(rank, agreed)
        finally:
            server.close()
    agreed.speaker(rank, None)  # nobody waits for it, whatever has failed
    agreed.put(rank, answer)
    return answer if isinstance(answer, FlightRecord) else f"its worker server: {answer}"


class WorkerServer:
    """A conversation with one worker server in a child process of its own, until `until` (monotonic seconds)."""

    def __init__(
        self, reader: Reader, place: str, rights: Rights, world: int, until: float
    ) -> None:
        self._reader, self._place, self._rights, self._until = reader, place, rights, until
        self._limits = limits_of_living_job(world)
        self._own = reader.another()

    def close(self) -> None:
        """End the child process that asks the server."""
        self._reader.take_back(self._own)

    def read(self, rank: int, agreed: StatusComparison) -> FlightRecord | str:
        """The rank's record, or the reason why there is none.

        Where another rank's record holds for all calls that are done, only the pending calls are
        asked for and put beside it.
        """
        listed = self._ask(WorkerServerQuestion.HANDLERS, MAX_LIST)
        if isinstance(listed, Unreadable):
            return listed.reason
        try:
            handlers = set(msgspec.json.decode(listed, type=list[str]))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return "no list of handlers"
        questions = [question for name, question in HANDLERS.items() if name in handlers]
        status = (
            self._status() if WorkerServerQuestion.NCCL in questions and agreed.several else None
        )
        speaker = agreed.speaker(rank, status)
        if speaker is not None and (found := self._pending(questions, speaker, agreed)):
            return found
        return self._all(questions)

    def _status(self) -> RankStatus | None:
        answer = self._ask(WorkerServerQuestion.STATUS, MAX_STATUS)
        return None if isinstance(answer, Unreadable) else parse_status(answer)

    def _all(self, questions: Sequence[WorkerServerQuestion]) -> FlightRecord | str:
        answers = [self._dump(question) for question in questions]
        records = [answer for answer in answers if isinstance(answer, FlightRecord)]
        if records:
            return joined(records)
        return next(
            (answer for answer in answers if isinstance(answer, str)), "it has no Flight Recorder"
        )

    def _pending(
        self, questions: Sequence[WorkerServerQuestion], speaker: int, agreed: StatusComparison
    ) -> FlightRecord | None:
        """None where these do not fit to what the other one tells, which may be nothing."""
        needed = [
            WorkerServerQuestion.PENDING if question is WorkerServerQuestion.NCCL else question
            for question in questions
        ]
        pending, whole = self._all(needed), agreed.whole(speaker, self._until)
        if whole is None or isinstance(pending, str):
            return None
        return beside(whole, pending)

    def _dump(self, question: WorkerServerQuestion) -> FlightRecord | str:
        answer = self._ask(question, MAX_DUMP)
        if isinstance(answer, Unreadable):
            return answer.reason
        try:
            return parse_dump(answer, self._limits)
        except ValueError as error:
            return f"its answer is not believed: {error}"

    def _ask(self, question: WorkerServerQuestion, most: int) -> bytes | Unreadable:
        left = min(ASKED_FOR, self._until - time.monotonic())
        if left <= 0:
            return Unreadable("no time was left to ask it")
        ask = self._own.ask_server
        return ask(self._place, question, rights=self._rights, max_bytes=most, timeout=left)


def joined(records: list[FlightRecord]) -> FlightRecord:
    """The records of a rank's backends, joined into one."""
    return FlightRecord(
        version=next((record.version for record in records if record.version), ""),
        groups=tuple(group for record in records for group in record.groups),
        sends=tuple(send for record in records for send in record.sends),
        transfers=tuple(it for record in records for it in record.transfers),
        silent=tuple(sorted({name for record in records for name in record.silent})),
    )
