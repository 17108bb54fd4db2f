"""Worker servers of PyTorch: a rank that opened one tells its Flight Recorders there without the interpreter lock.

It is asked which handlers it has, then how far it is (`pg_status`), then for all calls, as JSON, which has no frames. Where all ranks of a job are here, and are
equally far, one of them tells all its calls and the others those that pend (`onlyactive`). These alone would mislead: NCCL never marks
the members of a batch as ended, and the calls after them, which tell that they are, are left out.
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from mldebug.capture.flight_recorder.dump import MAX_DUMP, living, parse_dump
from mldebug.capture.flight_recorder.status import Status, beside, parse_status
from mldebug.core.model import FlightRecord
from mldebug_agents.capture.flight_recorder.agreement import Agreement
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


def ask_servers(
    reader: Reader, places: Mapping[int, Sequence[str]], world: int, seconds: float = SECONDS
) -> dict[int, FlightRecord | str]:
    """By rank, what the first of its servers that tells anything says, or why none does. All at once, in `seconds` at most.

    `world`: the ranks of the job.
    """
    if not places or seconds <= 0:
        return {}
    began = time.monotonic()
    agreed = Agreement(len(places), began + min(QUICK, seconds / 2), world)
    with ThreadPoolExecutor(min(AT_ONCE, len(places))) as pool:
        told = pool.map(
            lambda rank: _first(reader, places[rank], world, began + seconds, rank, agreed), places
        )
        return dict(zip(places, told, strict=True))


def _first(
    reader: Reader, places: Sequence[str], world: int, until: float, rank: int, agreed: Agreement
) -> FlightRecord | str:
    answers: list[FlightRecord | str] = []
    for place in places:
        answers.append(_from(reader, place, world, until, rank, agreed))
        if isinstance(answers[-1], FlightRecord):
            return answers[-1]
    return answers[0]


def ask_server(
    reader: Reader, place: str, world: int, seconds: float = SECONDS
) -> FlightRecord | str:
    """What the server at this place tells of all backends, or why it tells nothing."""
    return ask_servers(reader, {0: (place,)}, world, seconds)[0]


def _from(
    reader: Reader, place: str, world: int, until: float, rank: int, agreed: Agreement
) -> FlightRecord | str:
    """It is asked by a child of its own: who reads the node's files meanwhile does not wait for a job that is silent."""
    told: FlightRecord | str = "an earlier question has not come back"
    if place not in reader.stuck:
        server = Server(reader, place, world, until)
        try:
            told = server.tell(rank, agreed)
        finally:
            server.close()
    agreed.speaker(rank, None)  # nobody waits for it, whatever has failed
    agreed.put(rank, told)
    return told if isinstance(told, FlightRecord) else f"its worker server: {told}"


class Server:
    """One server while it is asked, until a moment (monotonic)."""

    def __init__(self, reader: Reader, place: str, world: int, until: float) -> None:
        self._reader, self._place, self._until = reader, place, until
        self._limits = living(world)
        self._own = reader.another()

    def close(self) -> None:
        """End the child that has asked."""
        self._reader.take_back(self._own)

    def tell(self, rank: int, agreed: Agreement) -> FlightRecord | str:
        """All its calls; of a rank that is as far as another one, which tells all, only those that pend."""
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

    def _status(self) -> Status | None:
        answer = self._ask(WorkerServerQuestion.STATUS, MAX_STATUS)
        return None if isinstance(answer, Unreadable) else parse_status(answer)

    def _all(self, questions: Sequence[WorkerServerQuestion]) -> FlightRecord | str:
        told = [self._dump(question) for question in questions]
        records = [one for one in told if isinstance(one, FlightRecord)]
        if records:
            return joined(records)
        return next((one for one in told if isinstance(one, str)), "it has no Flight Recorder")

    def _pending(
        self, questions: Sequence[WorkerServerQuestion], speaker: int, agreed: Agreement
    ) -> FlightRecord | None:
        """None where these do not fit to what the other one tells, which may be nothing."""
        asked = [
            WorkerServerQuestion.PENDING if one is WorkerServerQuestion.NCCL else one
            for one in questions
        ]
        pending, whole = self._all(asked), agreed.whole(speaker, self._until)
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
        return self._own.ask_server(self._place, question, max_bytes=most, timeout=left)


def joined(records: list[FlightRecord]) -> FlightRecord:
    """One record of all backends of a rank."""
    return FlightRecord(
        version=next((one.version for one in records if one.version), ""),
        groups=tuple(group for one in records for group in one.groups),
        sends=tuple(send for one in records for send in one.sends),
        transfers=tuple(it for one in records for it in one.transfers),
        silent=tuple(sorted({name for one in records for name in one.silent})),
    )
