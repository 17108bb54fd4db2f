"""Parses a dump quickly by leaving out its old finished calls before anything is made of them.

PyTorch keeps the newest 2,000 calls of a rank; an analysis needs only unfinished calls and the newest of each group. Picklers
write the name of a field once and then refer to it, so every later call begins with the same reference, that to its first field:
there the bytes are cut. What is cut out is not looked at; the rest is checked as any other file. If it refers to something that
was cut out, the whole file has to be read.
"""

import re
from bisect import bisect
from collections.abc import Hashable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from mldebug.capture.flight_recorder.safe_load import (
    PUT,
    bound_json,
    check_references,
    check_steps,
    is_json,
    load_pickle,
    memo_of,
)

MAX_HEAD = 4 << 20  # bytes in which the first call begins
FIRST = 32  # calls of a pickle that are kept: later ones refer to what they hold
_FIRST = re.compile(
    rb"(?:X\x07\x00\x00\x00|\x8c\x07)entries%b\]%b?\(\}(%b?)\((?:X.\x00\x00\x00|\x8c.)(\w{1,40})%b"
    % (PUT, PUT, PUT, PUT),
    re.DOTALL,
)
_FRAME = re.compile(rb"\x95.{3}\x00{5}", re.DOTALL)  # a step that tells how much follows it
_TRUE, _FALSE, _MEMOIZE = b"\x88", b"\x89", b"\x94"


def parse_without_old_calls(data: bytes, keep: int, most: int) -> object | None:
    """Parse a Flight Recorder dump (pickle or JSON) without the old finished calls: of each process group it keeps the
    unfinished calls and the newest `keep` finished ones. Returns the dump's top-level value, or None where the dump is
    not laid out as expected and must be parsed whole.

    Raises ValueError where the rest is damaged or may hold more than `most` values.
    """
    if b":coalesced" in data:  # the end of a batch tells of its members
        return None
    if is_json(data):
        return _skim_json(data, keep, most)
    part = cut_pickle(data, keep)
    return None if part is data else load_pickle(part, most)


def _gloo_alone(data: bytes) -> bool:
    """Then what is retired is done, and nothing else tells; NCCL and its kin also retire what has run into its timeout."""
    return b"ccl" not in data


def _wanted(groups: Sequence[Hashable], pending: set[int], keep: int) -> list[int]:
    """Of the calls, by their groups, those that are pending, and of each group the newest that are not; in their order."""
    wanted, room = set(pending), dict.fromkeys(groups, keep)
    for number in range(len(groups) - 1, -1, -1):
        left = room.get(groups[number], 0)
        if left and number not in pending:
            wanted.add(number)
            room[groups[number]] = left - 1
            if left == 1 and not any(room.values()):
                break
    return sorted(wanted)


# --- JSON ----------------------------------------------------------------------------------------


class _Call(msgspec.Struct, gc=False):
    pg_id: int = -1
    is_p2p: bool = False
    state: str | None = None
    retired: bool = False


class _Calls(msgspec.Struct):
    entries: list[_Call]


class _SkimmedDump(msgspec.Struct):
    entries: list[msgspec.Raw]
    version: object = ""
    pg_config: object = None
    pg_status: object = None


def _skim_json(data: bytes, keep: int, most: int) -> object | None:
    bound_json(data, most)
    retired = _gloo_alone(data)
    try:
        calls = msgspec.json.decode(data, type=_Calls).entries
        dump = msgspec.json.decode(data, type=_SkimmedDump)
    except (msgspec.MsgspecError, RecursionError):
        return None  # the slow parser says what is wrong with it
    done = [call.retired if retired else call.state == "completed" for call in calls]
    pending = {n for n, one in enumerate(calls) if one.is_p2p or not done[n]}
    numbers = _wanted([call.pg_id for call in calls], {0, *pending}, keep) if calls else ()
    few = [msgspec.json.decode(dump.entries[number]) for number in numbers]
    head = {"version": dump.version, "pg_config": dump.pg_config, "pg_status": dump.pg_status}
    return {**head, "entries": few}


# --- pickles -------------------------------------------------------------------------------------


class _Split(NamedTuple):
    """A dump call by call: the first has all before it, the last all after it. Between them stands the mark."""

    calls: list[bytes]
    mark: bytes
    body: bytes  # without the first call
    numbered: bytes  # the step that numbers a call; "" where only a text or a frame is


def cut_pickle(data: bytes, keep: int) -> bytes:
    """The bytes of a pickle without its old finished calls (the newest `keep` stay), after a check of its steps; unchanged where
    it has another layout. Raises ValueError for a damaged one.
    """
    found = _split(data)
    end = "" if _gloo_alone(data) else "completed"
    first = max(FIRST, _first_with(end, found.calls)) if found else 0
    if found is None or len(found.calls) <= first + keep:
        return data
    start = found.mark.join(found.calls[:first])
    memo = memo_of(start)
    numbers = _numbers(found, _references(memo), end, keep)
    if not numbers:
        return data
    rest = found.mark.join((b"", *(found.calls[number] for number in numbers if number >= first)))
    if found.numbered == _MEMOIZE:  # by their order alone
        check_references(rest, len(memo))
    else:
        check_steps(rest)
    return start + rest


def _numbers(found: _Split, references: Mapping[str, bytes], end: str, keep: int) -> list[int]:
    """Of the calls that are wanted, in their order; none where not each says its group."""
    if not references.keys() >= {"pg_id", "is_p2p", "state", "retired"}:
        return []
    ended = references["state"] + references[end] if end else references["retired"] + _TRUE
    pending = _lacking(found, ended) | _lacking(found, references["is_p2p"] + _FALSE) | _held(found)
    group = re.compile(re.escape(references["pg_id"]) + rb"(K.|M..|J.{4})", re.DOTALL)
    groups = group.findall(found.body)
    last = len(found.calls) - 1
    return _wanted([groups[0], *groups], pending | {last}, keep) if len(groups) == last else []


def _split(data: bytes) -> _Split | None:
    """None where it is written otherwise."""
    whole = _FRAME.sub(b"", data) if data[1:2] > b"\3" else data
    first = _FIRST.search(whole, 0, MAX_HEAD)
    if first is None or data[:1] != b"\x80":
        return None
    field = _references(memo_of(whole[: first.end()])).get(first[2].decode())
    if field is None:
        return None
    numbered = first[1][:1]
    mark = b"}%b(%b" % (_MEMOIZE if numbered == _MEMOIZE else b"", field)
    if numbered in (b"", _MEMOIZE):
        calls = whole.split(mark)
    else:
        calls = re.split(rb"\}%b\(%b" % (PUT, re.escape(field)), whole, flags=re.DOTALL)
    return _Split(calls, mark, whole[len(calls[0]) :], numbered)


def _first_with(text: str, calls: Sequence[bytes]) -> int:
    """How many calls there are up to the first in which a text is written; all where it never is."""
    if not text:
        return 0
    sign = re.compile(rb"%c(?:\0\0\0)?%b" % (len(text), text.encode()))
    return next((count for count, call in enumerate(calls, 1) if sign.search(call)), len(calls))


def _references(memo: Mapping[int, object]) -> dict[str, bytes]:
    """How each text is referred to."""
    return {
        text: b"h%c" % number if number < 256 else b"j" + number.to_bytes(4, "little")
        for number, text in memo.items()
        if isinstance(text, str)
    }


def _lacking(found: _Split, sign: bytes) -> set[int]:
    """The calls after the first that do not hold these bytes; most often few, and new."""
    left = len(found.calls) - 1 - found.body.count(sign)
    lacking: set[int] = set()
    for number in range(len(found.calls) - 1, 0, -1):
        if len(lacking) >= left:
            break
        if sign not in found.calls[number]:
            lacking.add(number)
    return lacking


def _held(found: _Split) -> set[int]:
    """The calls after the first that hold a text, or a frame, which PyTorch writes once. Python's objects cannot be told so."""
    if found.numbered:
        return set()
    ends = [*accumulate(map(len(found.mark).__add__, map(len, found.calls[1:])))]
    signs = (rb"X..\0\0", rb"\}\((?!%b)" % re.escape(found.mark[2:]))
    places = (one.start() for sign in signs for one in re.finditer(sign, found.body, re.DOTALL))
    return {1 + bisect(ends, place) for place in places}
