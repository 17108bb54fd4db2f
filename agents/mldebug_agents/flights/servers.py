"""Worker servers of PyTorch: a rank that opened one tells its Flight Recorders there without the interpreter lock.

It is asked which handlers it has, then for the calls that are not finished; all calls of a rank only where it has none of these.
"""

import msgspec

from mldebug.flight.dump import MAX_DUMP, parse_dump
from mldebug.model import FlightRecord
from mldebug_agents.answers import Unreadable
from mldebug_agents.reader import Reader
from mldebug_agents.starting.touching import Question

NCCL, OTHERS = "dump_nccl_trace_json", "fr_trace_json"
MAX_LIST = 64 << 10


def ask_server(reader: Reader, place: str) -> FlightRecord | str:
    """What the server at this place tells of all backends, or why it tells nothing."""
    listed = reader.ask_server(place, Question.HANDLERS, max_bytes=MAX_LIST)
    if isinstance(listed, Unreadable):
        return f"its worker server: {listed.reason}"
    try:
        handlers = set(msgspec.json.decode(listed, type=list[str]))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return "its worker server: no list of handlers"
    told = [_nccl(reader, place)] if NCCL in handlers else []
    told += [_dump(reader, place, Question.OTHERS)] if OTHERS in handlers else []
    records = [one for one in told if isinstance(one, FlightRecord)]
    if records:
        return joined(records)
    why = next((one for one in told if isinstance(one, str)), "it has no Flight Recorder")
    return f"its worker server: {why}"


def _nccl(reader: Reader, place: str) -> FlightRecord | str:
    """Who has nothing unfinished is the one that lags, or the group is done: then its last calls tell."""
    active = _dump(reader, place, Question.NCCL_ACTIVE)
    if isinstance(active, FlightRecord) and any(group.calls for group in active.groups):
        return active
    return _dump(reader, place, Question.NCCL_FULL)


def _dump(reader: Reader, place: str, question: Question) -> FlightRecord | str:
    answer = reader.ask_server(place, question, max_bytes=MAX_DUMP)
    if isinstance(answer, Unreadable):
        return answer.reason
    try:
        return parse_dump(answer)
    except ValueError as error:
        return f"its answer is not believed: {error}"


def joined(records: list[FlightRecord]) -> FlightRecord:
    """One record of all backends of a rank."""
    return FlightRecord(
        version=next((one.version for one in records if one.version), ""),
        groups=tuple(group for one in records for group in one.groups),
        sends=tuple(send for one in records for send in one.sends),
        silent=tuple(sorted({name for one in records for name in one.silent})),
    )
