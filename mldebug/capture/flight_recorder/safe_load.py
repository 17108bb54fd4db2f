"""Containers, text and numbers out of a file that anybody may have written: JSON, or a pickle that is no program.

A pickle is a program for a small machine. Before one step of it runs, every step is looked at: only those that PyTorch and
Python write for plain values (protocol 2 to 5) are allowed, so nothing can be imported or called. The same look bounds what it
may make: steps that make objects, numbers of the memo (CPython grows it to any number that is asked for), tuples.

A pickle may also name one value twice in another, and that one twice in a third: forty levels are 2^40 values, and a file of 200 bytes. So no
tuple stays one: as a key of a dict it would be hashed before anything could count, with the interpreter held all the time. Each tuple becomes
a list, which is no key; and all that is loaded is counted, each value as often as it is named.
"""

import io
import json
import pickle
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NoReturn

MAX_OBJECTS = 4_000_000
MAX_NUMBERED = 200_000  # values in the beginning of a pickle
MAX_TUPLES = 20_000
MAX_STRINGS = 1_000_000
NAMED_AGAIN = 8  # times the values that a file may hold are so many as its values may be, each counted as often as it is named
_TO_LIST = b"Q"  # the step that has `persistent_load` replace the value on top
_MAKERS = b"]})(t\x85\x86\x87MJGX\x8c\x8ae"  # what makes an object, and what marks one
_JSON_MAKERS = b"[{,"
_NUMBERS = (
    b"\x94"  # the step that gives a value its place in the memo: one byte, and a hundred there
)
_LONG_NUMBERS = re.compile(rb"r..[\x00-\x1f]\x00", re.DOTALL)  # the same with the place
PUT = rb"(?:q.|r.{4}|\x94)"  # BINPUT, LONG_BINPUT, MEMOIZE: give an object a number
_STEPS = (
    rb"(?:(?:%b|K|q|\x80(?=[\x02-\x05])).[]})(eusa\x94N\x88\x89]*+"  # BINGET, BININT1, BINPUT, PROTO; steps alone
    rb"|[]})(eusa\x94N\x88\x89]++|M..|J....|%b|r..[\x00-\x1f]\x00|G.{8}"
    rb"|\x8a(?:\x08.{8}|\x00|\x01.|\x02..|\x03...|\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7}))*+"
)
_ALLOWED = re.compile(_STEPS % (b"h", rb"j..[\x00-\x1f]\x00"), re.DOTALL)
_TUPLES = frozenset(b"t\x85\x86\x87")
_TEXT, _SHORT_TEXT, _STOP = b"X"[0], 0x8C, b"."[0]
_FRAME, _FRAME_SIZE = 0x95, 9  # the step that tells how much follows it, and its bytes
_CALLS = frozenset(b"cRiobPQ\x81\x82\x83\x84\x92\x93")
CUT = "it is being written, or was cut off"


class _Plain(pickle.Unpickler):
    """Makes nothing but what the language itself has, and lists in place of tuples."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError("it asks for a class")

    def persistent_load(self, pid: Any) -> list[Any]:
        """Called after each step that made a tuple: no other file than one of `_without_tuples` gets here."""
        return list(pid)


def load_plain(data: bytes, most: int = MAX_OBJECTS) -> object:
    """The value in a JSON or pickle file, which may hold at most `most` values. Raises ValueError with the reason."""
    if not data:
        raise ValueError("it is empty")
    if is_json(data):
        return _load_json(data, most)
    if data[:1] != b"\x80":
        raise ValueError("it is neither a pickle nor JSON")
    return load_pickle(data, most)


def load_pickle(data: bytes, most: int = MAX_OBJECTS) -> object:
    """The value in a pickle, which may hold at most `most` values; a list in place of each tuple. Raises ValueError with the reason."""
    _bound(data, _MAKERS, most)
    _bound(data, _NUMBERS, most)
    value = _run(data)[0]
    if _grown(value, NAMED_AGAIN * most):
        raise ValueError("it names the same values again and again")
    return value


def is_json(data: bytes) -> bool:
    """Whether the data begins as a JSON object or array does; else it is taken for a pickle."""
    return data[:256].lstrip()[:1] in (b"{", b"[")


def bound_json(data: bytes, most: int) -> None:
    """Raise ValueError where a JSON text may hold more than `most` values."""
    _bound(data, _JSON_MAKERS, most)


def _bound(data: bytes, makers: bytes, most: int) -> None:
    """Count what could make an object, a little too many."""
    if len(data) > most < len(data) - len(data.translate(None, makers)):
        raise ValueError(f"it holds more than {most:,} values")


def _load_json(data: bytes, most: int) -> object:
    bound_json(data, most)
    try:
        return json.loads(data)
    except json.JSONDecodeError as error:
        whole = error.pos < len(error.doc.rstrip()) and not error.msg.startswith("Unterminated")
        raise ValueError(f"it is malformed JSON ({error})" if whole else CUT) from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is malformed JSON ({str(error)[:100]})") from None


def _run(data: bytes) -> tuple[object, _Plain]:
    """The value that a pickle makes, and who has its memo, of which a copy may be large. Raises ValueError with the reason, before anything runs where a step is not allowed."""
    reader = _Plain(io.BufferedReader(io.BytesIO(_without_tuples(data, check_steps(data)))))
    try:
        return reader.load(), reader
    except Exception as error:  # noqa: BLE001 - a pickle of allowed steps in a wrong order raises whatever it likes
        raise ValueError(f"it is a malformed pickle ({type(error).__name__})") from None


def _without_tuples(data: bytes, places: Sequence[int]) -> bytes:
    """The pickle with a step after each that makes a tuple, which makes it a list, and without the steps that tell how much follows;
    `places`: where either stands.
    """
    parts, begin = [], 0
    for place in places:
        framed = data[place] == _FRAME
        parts += [data[begin:place]] if framed else [data[begin : place + 1], _TO_LIST]
        begin = place + (_FRAME_SIZE if framed else 1)
    return b"".join((*parts, data[begin:]))


def _grown(value: object, most: int) -> bool:
    """Whether it holds more than `most` values, each counted as often as it is named; also where a value holds itself."""
    sizes: dict[
        int, int
    ] = {}  # of each list and dict with all that is in it; while that is counted: more than may be
    counted: set[int] = set()
    waiting = [value]
    while waiting:
        one = waiting[-1]
        if id(one) not in sizes:
            sizes[id(one)] = most + 1
            waiting += {
                id(each): each for each in _containers(one) if id(each) not in sizes
            }.values()
            continue
        waiting.pop()
        if id(one) in counted:
            continue
        inner = _containers(one)
        size = len(one) if isinstance(one, list | dict) else 0
        sizes[id(one)] = 1 + size + sum(sizes[id(each)] for each in inner)
        counted.add(id(one))
        if sizes[id(one)] > most:
            return True
    return False


def _containers(one: object) -> list[object]:
    """The lists and dicts that stand in a list or a dict."""
    values = one if isinstance(one, list) else one.values() if isinstance(one, dict) else ()
    return [each for each in values if type(each) in (list, dict)]


def memo_of(start: bytes) -> Mapping[int, object]:
    """The numbered objects (memo) that the beginning of a pickle makes; it must be cut between two steps. Raises ValueError with
    the reason.
    """
    data = start + b"."
    _bound(data, _MAKERS, MAX_NUMBERED)
    _bound(data, _NUMBERS, MAX_NUMBERED)
    if len(_LONG_NUMBERS.findall(data)) > MAX_NUMBERED:
        raise ValueError(f"it numbers more than {MAX_NUMBERED:,} values")
    memo: Mapping[int, object] = _run(data)[1].memo.copy()
    return memo


def check_references(rest: bytes, count: int) -> None:
    """Raise ValueError where the rest of a pickle refers to another numbered object than one of the first `count`."""
    check_steps(rest, _referring(count))


@lru_cache(maxsize=64)
def _referring(count: int) -> re.Pattern[bytes]:
    high, low = divmod(min(count, 1 << 16), 256)
    below = [rb".[\x00-\x%02x]" % (high - 1)] if high else []
    below += [rb"[\x00-\x%02x]\x%02x" % (low - 1, high)] if low else []
    short = b"h" if high else rb"h(?=[\x00-\x%02x])" % max(0, low - 1)
    return re.compile(_STEPS % (short, rb"j(?:%b)\x00\x00" % b"|".join(below)), re.DOTALL)


def check_steps(data: bytes, allowed: re.Pattern[bytes] = _ALLOWED) -> list[int]:
    """Walk over a pickle without running it. Returns the places of the steps that make tuples, or tell how much follows. Raises ValueError
    at a step that is not allowed, or where the end is missing.
    """
    at = texts = 0
    places: list[int] = []
    while True:
        match = allowed.match(data, at)
        at = match.end() if match else at
        if at >= len(data):
            raise ValueError(CUT)
        step = data[at]
        if step in _TUPLES or step == _FRAME:
            places.append(at)
            at += _FRAME_SIZE if step == _FRAME else 1
        elif step in (_TEXT, _SHORT_TEXT):
            at, texts = _after_text(data, at), texts + 1
        else:
            _end(data, at)
            return places
        if len(places) > MAX_TUPLES or texts > MAX_STRINGS:
            raise ValueError(f"it holds more than {MAX_TUPLES:,} tuples or {MAX_STRINGS:,} texts")


def _after_text(data: bytes, at: int) -> int:
    width = 4 if data[at] == _TEXT else 1
    size = int.from_bytes(data[at + 1 : at + 1 + width], "little")
    return at + 1 + width + size


def _end(data: bytes, at: int) -> None:
    step = data[at]
    if step == _STOP:
        if at + 1 < len(data):
            raise ValueError("more follows after its end")
        return
    if step in _CALLS:
        raise ValueError("it asks for a class or a function, which a dump never does")
    if len(data) - at <= 9 and data[at : at + 1] in b"MJjrG\x8ahKq\x80":
        raise ValueError(CUT)
    raise ValueError(f"it has a step that no dump has (0x{step:02x} at byte {at})")
