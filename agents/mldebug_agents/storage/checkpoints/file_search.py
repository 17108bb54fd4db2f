"""Bytes of a file of a save, or what stands in them: a large file is searched piece by piece, so that little is held."""

import re
import time

from mldebug.storage.checkpoints.model import Wanted
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import Unreadable

PIECE = 1 << 20  # bytes
OVERLAP = 100  # bytes, the longest match
MOST_FOUND = 100_000  # different matches
LONGEST = 8.0  # seconds for one file


def read_part(reader: Reader, path: str, wanted: Wanted) -> bytes | Unreadable:
    """What is wanted of the file at that path."""
    if wanted.find:
        return _search(reader, path, wanted)
    got = reader.read_from(path, wanted.offset, max_bytes=wanted.size)
    return got if isinstance(got, Unreadable) else got.data


def _search(reader: Reader, path: str, wanted: Wanted) -> bytes | Unreadable:
    """All different matches. A match at the end of a piece may go on in the next: what is near it is searched again."""
    expression, found, until = re.compile(wanted.find), set[bytes](), time.monotonic() + LONGEST
    at, end = wanted.offset, wanted.offset + wanted.size
    while at < end:
        got = reader.read_from(path, at, max_bytes=min(PIECE, end - at))
        if isinstance(got, Unreadable):
            return got
        if not got.data:
            return Unreadable("it became shorter while it was read")
        last = at + len(got.data) >= end
        near = len(got.data) - (0 if last else OVERLAP)
        found |= {one[0] for one in expression.finditer(got.data) if last or one.start() < near}
        if len(found) > MOST_FOUND:
            return Unreadable(f"it names more than {MOST_FOUND:,}")
        if time.monotonic() > until:
            return Unreadable("there was no time for all of it")
        at += len(got.data) if last else max(1, near)
    return b"\n".join(sorted(found))
