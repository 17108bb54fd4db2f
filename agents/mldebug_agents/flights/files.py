"""Files into which PyTorch dumps a Flight Recorder: whose they are, how old, and whether they are complete.

A dump is written in place, over the one before. It is complete when its last byte is the STOP of a pickle and all of it parses.
"""

import stat
from collections.abc import Sequence
from typing import NamedTuple

from mldebug.flight.dump import MAX_DUMP, parse_dump
from mldebug.folding import unfold
from mldebug.model import FlightRecord, RankIdentity
from mldebug_agents.answers import Piece, Unreadable
from mldebug_agents.reader import Reader

STOP = b"."
RECENT = 120.0  # seconds; a living rank has gone on since an older one


class Mark(NamedTuple):
    """What a file was at one moment: it is another one, or written anew, where these differ."""

    inode: int
    size: int
    mtime: float


class Found(NamedTuple):
    """A dump, and when it was written (unix)."""

    record: FlightRecord
    at: float


def mark(reader: Reader, path: str) -> Mark | None:
    """None where there is no such file, or none that may be read."""
    piece = reader.read_from(path, 0, max_bytes=0)
    return Mark(piece.inode, piece.size, piece.mtime) if isinstance(piece, Piece) else None


def read_dump(reader: Reader, path: str, one: RankIdentity) -> Found | str:
    """The dump of this rank, or why what lies there is none; "" where nothing does."""
    piece = reader.read_from(path, 1 << 62, max_bytes=0)
    if isinstance(piece, Unreadable):
        return "" if piece.errno in (2, 3, 20) else piece.reason
    why = not_theirs(piece, one)
    if why:
        return why
    if piece.size > MAX_DUMP:
        return f"it has {piece.size} bytes, more than {MAX_DUMP}"
    tail = reader.read_tail(path, max_bytes=1)
    if isinstance(tail, Unreadable) or tail.data != STOP:
        return "it is not complete"
    whole = reader.read_from(path, 0, max_bytes=MAX_DUMP + 1)
    if isinstance(whole, Unreadable):
        return whole.reason
    return not_theirs(whole, one) or parsed(whole.data, one, whole.mtime)


def not_theirs(piece: Piece, one: RankIdentity) -> str:
    """Why this file cannot be of this rank, "" where it can."""
    if piece.uid != one.uid:
        return f"it belongs to user {piece.uid} and not to user {one.uid} of the rank"
    if piece.mode & stat.S_IWOTH:
        return "everybody may write it"
    if piece.mtime < one.started_at:
        return "it is older than the rank"
    return ""


def parsed(data: bytes, one: RankIdentity, at: float) -> Found | str:
    """A dump, or why it is none of this job: two jobs of one user use the same file."""
    try:
        record = parse_dump(data)
    except ValueError as error:
        return f"it is not believed: {error}"
    members = {rank for group in record.groups for rank in unfold(group.members or "")}
    if members and max(members) >= one.world_size:
        return f"it is of a job with more than {one.world_size} ranks"
    return Found(record, at)


def timed_out(found: Found) -> bool:
    """Had a call of it taken too long when it was written? Then PyTorch wrote it by itself, and the rank does not go on."""
    return any(
        not call.done and call.created_at > 0 and 0 < call.timeout <= found.at - call.created_at
        for group in found.record.groups
        for call in group.calls
    )


def newest(found: Sequence[Found | str]) -> Found | str:
    """Of several places the one written last; else the first reason."""
    dumps = [one for one in found if isinstance(one, Found)]
    if dumps:
        return max(dumps, key=lambda one: one.at)
    return next((one for one in found if one), "")
