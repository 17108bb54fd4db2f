"""Worker servers of PyTorch: a rank that opened one tells its Flight Recorders there without the interpreter lock.

It is asked which handlers it has, then for all calls, as JSON, which has no frames. Not for the active ones alone
(`onlyactive`): NCCL never marks the members of a batch as ended, and the calls after them, which tell that they are, would be left out.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from mldebug.flight.dump import MAX_DUMP, living, parse_dump
from mldebug.model import FlightRecord
from mldebug_agents.answers import Unreadable
from mldebug_agents.reader import Reader
from mldebug_agents.starting.touching import ASKED_FOR, Question

HANDLERS = {"dump_nccl_trace_json": Question.NCCL, "fr_trace_json": Question.OTHERS}
MAX_LIST = 64 << 10
SECONDS = 2.0  # for all questions to all servers of a job: a report waits for them
AT_ONCE = 16

Ask = Callable[[Question, int], bytes | Unreadable]  # a question, and the most bytes of its answer


def ask_servers(
    reader: Reader, places: Mapping[int, Sequence[str]], world: int, seconds: float = SECONDS
) -> dict[int, FlightRecord | str]:
    """By rank, what the first of its servers that tells anything says, or why none does. All at once, in `seconds` at most.

    `world`: the ranks of the job.
    """
    if not places or seconds <= 0:
        return {}
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(min(AT_ONCE, len(places))) as pool:
        told = pool.map(lambda its: _first(reader, its, world, until), places.values())
        return dict(zip(places, told, strict=True))


def _first(reader: Reader, places: Sequence[str], world: int, until: float) -> FlightRecord | str:
    answers: list[FlightRecord | str] = []
    for place in places:
        answers.append(ask_server(reader, place, world, until - time.monotonic()))
        if isinstance(answers[-1], FlightRecord):
            return answers[-1]
    return answers[0]


def ask_server(
    reader: Reader, place: str, world: int, seconds: float = SECONDS
) -> FlightRecord | str:
    """What the server at this place tells of all backends, or why it tells nothing.

    It is asked by a child of its own: who reads the node's files meanwhile does not wait for a job that is silent.
    """
    if place in reader.stuck:
        return "its worker server: an earlier question has not come back"
    own, until = reader.another(), time.monotonic() + seconds

    def ask(question: Question, most: int) -> bytes | Unreadable:
        left = min(ASKED_FOR, until - time.monotonic())
        if left <= 0:
            return Unreadable("no time was left to ask it")
        return own.ask_server(place, question, max_bytes=most, timeout=left)

    try:
        return _told(ask, world)
    finally:
        reader.take_back(own)


def _told(ask: Ask, world: int) -> FlightRecord | str:
    listed = ask(Question.HANDLERS, MAX_LIST)
    if isinstance(listed, Unreadable):
        return f"its worker server: {listed.reason}"
    try:
        handlers = set(msgspec.json.decode(listed, type=list[str]))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "its worker server: no list of handlers"
    asked = [question for name, question in HANDLERS.items() if name in handlers]
    told = [_dump(ask, question, world) for question in asked]
    records = [one for one in told if isinstance(one, FlightRecord)]
    if records:
        return joined(records)
    why = next((one for one in told if isinstance(one, str)), "it has no Flight Recorder")
    return f"its worker server: {why}"


def _dump(ask: Ask, question: Question, world: int) -> FlightRecord | str:
    answer = ask(question, MAX_DUMP)
    if isinstance(answer, Unreadable):
        return answer.reason
    try:
        return parse_dump(answer, living(world))
    except ValueError as error:
        return f"its answer is not believed: {error}"


def joined(records: list[FlightRecord]) -> FlightRecord:
    """One record of all backends of a rank."""
    return FlightRecord(
        version=next((one.version for one in records if one.version), ""),
        groups=tuple(group for one in records for group in one.groups),
        sends=tuple(send for one in records for send in one.sends),
        transfers=tuple(it for one in records for it in one.transfers),
        silent=tuple(sorted({name for one in records for name in one.silent})),
    )
