"""Containers, text and numbers out of a file that anybody may have written: JSON, or a pickle that is no program.

A pickle is a program for a small machine. Before one step of it runs, every step is looked at: only those that PyTorch and
Python write for plain values (protocol 2 to 5) are allowed, so nothing can be imported or called. The same look bounds what it
may make: steps that make objects, numbers of the memo (CPython grows it to any number that is asked for), tuples (as a key
of a dict a deep one would overflow the stack).
"""

import io
import json
import pickle
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NoReturn

MAX_OBJECTS = 4_000_000
MAX_NUMBERED = 200_000  # values in the beginning of a pickle
MAX_TUPLES = 20_000
MAX_STRINGS = 1_000_000
_MAKERS = b"]})(t\x85\x86\x87MJGX\x8c\x8ae"  # what makes an object, and what marks one
_JSON_MAKERS = b"[{,"
PUT = rb"(?:q.|r.{4}|\x94)"  # BINPUT, LONG_BINPUT, MEMOIZE: give an object a number
_STEPS = (
    rb"(?:(?:%b|K|q|\x80(?=[\x02-\x05])).[]})(eusa\x94N\x88\x89]*+"  # BINGET, BININT1, BINPUT, PROTO; steps alone
    rb"|[]})(eusa\x94N\x88\x89]++|M..|J....|%b|r..[\x00-\x1f]\x00|G.{8}"
    rb"|\x8a(?:\x08.{8}|\x00|\x01.|\x02..|\x03...|\x04.{4}|\x05.{5}|\x06.{6}|\x07.{7})|\x95.{8})*+"
)
_ALLOWED = re.compile(_STEPS % (b"h", rb"j..[\x00-\x1f]\x00"), re.DOTALL)
_TUPLES = frozenset(b"t\x85\x86\x87")
_TEXT, _SHORT_TEXT, _STOP = b"X"[0], 0x8C, b"."[0]
_CALLS = frozenset(b"cRiobPQ\x81\x82\x83\x84\x92\x93")
CUT = "it is being written, or was cut off"


class _Plain(pickle.Unpickler):
    """Makes nothing but what the language itself has."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError("it asks for a class")

    def persistent_load(self, pid: Any) -> NoReturn:
        raise pickle.UnpicklingError("it asks for something outside of it")


def load_plain(data: bytes, most: int = MAX_OBJECTS) -> object:
    """The value in a JSON or pickle file, which may hold at most `most` values. Raises ValueError with the reason."""
    if not data:
        raise ValueError("it is empty")
    if is_json(data):
        return _load_json(data, most)
    if data[:1] != b"\x80":
        raise ValueError("it is neither a pickle nor JSON")
    _bound(data, _MAKERS, most)
    check_steps(data)
    return load_checked(data, most)


def load_checked(data: bytes, most: int = MAX_OBJECTS) -> object:
    """The value in a pickle whose steps `check_steps` has allowed, of at most `most` values. Raises ValueError with the reason."""
    _bound(data, _MAKERS, most)
    return _run(_Plain(io.BufferedReader(io.BytesIO(data))))


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


def _run(reader: _Plain) -> object:
    try:
        return reader.load()
    except Exception as error:  # noqa: BLE001 - a pickle of allowed steps in a wrong order raises whatever it likes
        raise ValueError(f"it is a malformed pickle ({type(error).__name__})") from None


def memo_of(start: bytes) -> Mapping[int, object]:
    """The numbered objects (memo) that the beginning of a pickle makes; it must be cut between two steps. Raises ValueError with
    the reason.
    """
    data = start + b"."
    _bound(data, _MAKERS, MAX_NUMBERED)
    check_steps(data)
    reader = _Plain(io.BufferedReader(io.BytesIO(data)))
    _run(reader)
    return reader.memo.copy()


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


def check_steps(data: bytes, allowed: re.Pattern[bytes] = _ALLOWED) -> None:
    """Walk over a pickle without running it. Raises ValueError at a step that is not allowed, or where the end is missing."""
    at = tuples = texts = 0
    while True:
        match = allowed.match(data, at)
        at = match.end() if match else at
        if at >= len(data):
            raise ValueError(CUT)
        step = data[at]
        if step in _TUPLES:
            at, tuples = at + 1, tuples + 1
        elif step in (_TEXT, _SHORT_TEXT):
            at, texts = _after_text(data, at), texts + 1
        else:
            return _end(data, at)
        if tuples > MAX_TUPLES or texts > MAX_STRINGS:
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
    if len(data) - at <= 9 and data[at : at + 1] in b"MJjrG\x8a\x95hKq\x80":
        raise ValueError(CUT)
    raise ValueError(f"it has a step that no dump has (0x{step:02x} at byte {at})")
