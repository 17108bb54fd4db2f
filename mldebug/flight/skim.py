"""A dump without its old calls that are done, cut out of the pickle before anything of it is made.

PyTorch keeps the newest 2,000 calls of a rank; an analysis looks at those that are not done and at the newest of each group.
PyTorch writes a text or a frame once and refers to it from then on, so every later call begins with one reference, that to the name of its
first field. What is not written so is left as it is, and what comes out is checked as any other file.
"""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

MAX_HEAD = 4 << 20  # bytes in which the first call begins
_FIRST = re.compile(
    rb"X\x07\x00\x00\x00entries(?:q.|r.{4})\]\(\}\(X.\x00\x00\x00[a-z_]{1,40}(q.|r.{4})", re.DOTALL
)
_NUMBER = 5  # bytes of one at most; what follows a shorter one is the same in all calls of a group
_TRUE, _FALSE = b"\x88", b"\x89"


class _Signs(NamedTuple):
    """How the calls of this file say whose they are, and that they are collectives and done."""

    group: bytes
    done: tuple[bytes, bytes, bytes]  # no send or receive, completed, retired


def skim(data: bytes, keep: int) -> bytes:
    """The pickle without collectives that are done and older than the newest `keep` of their group, and than its newest done one."""
    first = _FIRST.search(data, 0, MAX_HEAD)
    if first is None or b":coalesced" in data:  # the end of a batch tells of its members
        return data
    mark = b"u}(" + _reference(first[1])
    head, *calls = data.split(mark)
    signs = _signs(data)
    if signs is None or len(calls) <= keep:
        return data
    kept = [*_kept(calls[-2::-1], signs, keep)]
    return mark.join((head, *reversed(kept), calls[-1]))


def _signs(data: bytes) -> _Signs | None:
    """None where a field is not there, or nothing is done."""
    names = (b"pg_id", b"is_p2p", b"state", b"completed", b"retired")
    found = [_named(name, data) for name in names]
    if not all(found):
        return None
    group, p2p, state, completed, retired = found
    done = (p2p + _FALSE, state + completed, retired + _TRUE)
    return _Signs(group, done)


def _named(name: bytes, data: bytes) -> bytes:
    """The reference to a text, "" where it is written nowhere."""
    text = re.escape(b"X" + len(name).to_bytes(4, "little") + name)
    found = re.search(text + rb"(q.|r.{4})", data, re.DOTALL)
    return _reference(found[1]) if found else b""


def _reference(memo: bytes) -> bytes:
    """BINGET for BINPUT, LONG_BINGET for LONG_BINPUT."""
    return (b"h" if memo[:1] == b"q" else b"j") + memo[1:]


def _kept(calls: Sequence[bytes], signs: _Signs, keep: int) -> Iterator[bytes]:
    """Of these calls, the newest first, those that are wanted. What cannot be told is."""
    p2p, completed, retired = signs.done
    seen: dict[bytes, int] = {}
    known: set[bytes] = set()  # groups of which one that is done is kept
    for call in calls:
        if p2p not in call:
            yield call
            continue
        at = call.find(signs.group)
        group = call[at : at + len(signs.group) + _NUMBER] if at >= 0 else b""
        seen[group] = count = seen.get(group, 0) + 1
        done = completed in call and retired in call
        if done and count > keep and group in known and not (b"q" in call or b"r" in call):
            continue  # BINPUT, LONG_BINPUT: a text or a frame is written here, which later calls may refer to
        if done:
            known.add(group)
        yield call
