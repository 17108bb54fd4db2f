"""Follows a log file as it grows, and returns its new records. A hung mount cannot block it.

It only polls: that works on every file system, and a few seconds of delay do not matter. All reads
go through the reader child, and each opens the file anew, which also makes a network file system
report the true size.
"""

import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from mldebug.core.model import Gap
from mldebug.jobs.logs.charts.chart_parser import FileParser
from mldebug.jobs.logs.records import LogRecord
from mldebug_agents.jobs.logs.locations import LogFile
from mldebug_agents.system.reader import FilePiece, Reader, Unreadable

FIRST_LOOK = 256 << 10  # bytes from the end in which the last record before our time is looked for
HEAD_LOOK = 256 << 10  # bytes from the beginning, where the names of a table's columns stand
MAX_NEWS = 4 << 20  # bytes parsed in one poll; of more only the end
CHUNK = 512 << 10
NO_RECORD = 50  # lines without a record after which status says so
EARLIER = 2000  # records written before we came; in a hang a background thread may have written the last thousand
SEAM = 64  # bytes before our place that must still be the same


class LogUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """The records and bytes that were appended to a log since it was read last.

    `records` are signs of progress; mere growth of the file is a weak one.
    """

    records: tuple[LogRecord, ...] = ()
    before: LogRecord | None = None  # first poll only: the last record that was there already
    earlier: tuple[LogRecord, ...] = ()  # first poll only: those before it
    grew_bytes: int = 0  # 0 in the first poll
    skipped_bytes: int = 0  # of these not parsed, because they were too many
    size: int = 0
    modified_at: float = 0.0  # unix, 0.0 unknown
    rotated: bool = False  # another file is written now
    truncated: bool = False  # the same file started again
    stuck: bool = False  # the read did not come back, which is evidence by itself
    gap: Gap | None = None  # why there is no news


class KnownEnd(NamedTuple):
    """How long a log file was (bytes) when an earlier run's follower read it, when that was (unix seconds), and its last bytes then."""

    size: int
    at: float
    seam: bytes


class LogFollower:
    """Follows one log file and returns what is new at each poll. The file may be reached by another
    descriptor or process each time.

    Counts `skipped` (bytes), `rotations` and `truncations`. `other_clock`: the file's times are not of our clock. `known_end`: what
    is known of a file (device, inode) from before its first poll, see `_begin`.
    """

    def __init__(
        self,
        reader: Reader,
        parser: FileParser,
        known_end: Callable[[tuple[int, int]], KnownEnd | None] = lambda _: None,
    ) -> None:
        self.parser = parser
        self._known_end = known_end
        self.skipped = self.rotations = self.truncations = 0
        self.other_clock = False
        self._reader = reader
        self._file: tuple[int, int] | None = None  # device, inode
        self._target = ""
        self._offset = 0
        self._seam = b""
        self._failure: Unreadable | None = None
        self._until = math.inf

    @property
    def file(self) -> tuple[int, int] | None:
        """Device and inode of the file that is followed; None before the first poll."""
        return self._file

    def end(self, at: float) -> KnownEnd:
        """How far the file is read. `at`: the time after the last poll, unix seconds."""
        return KnownEnd(self._offset, at, self._seam)

    @property
    def oddities(self) -> Iterator[str]:
        """What is odd about this log, as sentences for the user."""
        parser = self.parser
        if parser.oversized:
            yield f"{parser.oversized} lines too long to read"
        if parser.binary:
            yield f"{parser.binary} lines of binary data"
        if skipped := self.skipped + parser.skipped:
            yield f"{skipped / 1e6:.0f} MB skipped"
        if parser.lines >= NO_RECORD and not parser.records:
            yield "no line of it understood"
        for name in parser.slow:
            yield f"logs.{name} is too slow for it and was put aside"

    def distrust_clock(self) -> None:
        """Note that the times of the file are of another clock: `other_clock` is set from now on."""
        self.other_clock = True

    def poll(self, place: LogFile, until: float = math.inf) -> LogUpdate:
        """What is new since the last poll. Never raises; a file that cannot be read gives a `gap`.

        No further piece is read after `until` (monotonic seconds); the rest is left for the next
        poll.
        """
        self._failure = None
        self._until = until
        at = self._offset - len(self._seam)
        piece = self._reader.read_from(place.path, at, rights=place.rights, max_bytes=SEAM)
        if isinstance(piece, Unreadable):
            return _no_news(place, piece)
        if self._file is None:
            news = self._begin(place, piece)
        elif self._file != (piece.device, piece.inode):
            news = self._rotated(place, piece)
        elif piece.size < self._offset or not piece.data.startswith(self._seam):
            self._restart()
            news = self._advance(place, piece, truncated=True)
        else:
            news = self._advance(place, piece)
        self._target = place.target
        self.skipped += news.skipped_bytes
        self.rotations += news.rotated
        self.truncations += news.truncated
        if self._failure is None:
            return news
        failed = _no_news(place, self._failure)
        return msgspec.structs.replace(news, gap=failed.gap, stuck=failed.stuck)

    def _begin(self, place: LogFile, piece: FilePiece) -> LogUpdate:
        """The records that stand in the file. It may go on where another launch has ended, and was written to since, without a record:
        what was in it before was written by then, whatever time the file has now.
        """
        self._offset = max(0, piece.size - FIRST_LOOK) if place.parsed else piece.size
        self._file = (piece.device, piece.inode)
        if self._offset:
            self._read_head(place)
            self.parser.resync(self._offset)
        known = self._known_end(self._file)
        old = [] if known is None else self._read_to(place, place.path, min(known.size, piece.size))
        is_same = known is not None and known.size == self._offset and known.seam == self._seam
        new = self._read(place, place.path, piece.size)
        records = [*old, *new]
        return LogUpdate(
            before=records[-1] if records else None,
            earlier=tuple(records[-1 - EARLIER : -1]),
            size=piece.size,
            modified_at=min(piece.mtime, known.at)
            if known and is_same and not new
            else piece.mtime,
        )

    def _read_head(self, place: LogFile) -> None:
        """Have the parser learn from the beginning of the file: a table's column names stand there, and may never come again."""
        if not place.parsed:
            return
        size = min(HEAD_LOOK, self._offset)
        piece = self._reader.read_from(place.path, 0, rights=place.rights, max_bytes=size)
        if isinstance(piece, FilePiece) and (piece.device, piece.inode) == self._file:
            self.parser.preface(piece.data)

    def _rotated(self, place: LogFile, piece: FilePiece) -> LogUpdate:
        start = self._offset
        records = self._rest_of_old(place) if place.parsed else []
        finished = self._offset - start
        self._restart()
        self._file = (piece.device, piece.inode)
        news = self._advance(place, piece, rotated=True)
        return msgspec.structs.replace(
            news, records=(*records, *news.records), grew_bytes=finished + news.grew_bytes
        )

    def _rest_of_old(self, place: LogFile) -> list[LogRecord]:
        """Read the end of the file that was followed so far, under its old name or the one that rotation gives."""
        root = f"{place.path.rpartition('/fd/')[0]}/root"
        for target in (self._target, f"{self._target}.1"):
            path = f"{root}{target}"
            piece = self._reader.read_from(
                path, self._offset, rights=place.rights, place=root, max_bytes=0
            )
            if isinstance(piece, FilePiece) and (piece.device, piece.inode) == self._file:
                self._skip(piece.size)
                return self._read(place, path, piece.size)
        return []

    def _advance(
        self, place: LogFile, piece: FilePiece, *, rotated: bool = False, truncated: bool = False
    ) -> LogUpdate:
        start = self._offset
        skipped = self._skip(piece.size) if place.parsed else 0
        if place.parsed:
            records = self._read(place, place.path, piece.size)
        else:
            records, self._offset = [], piece.size
        return LogUpdate(
            records=tuple(records),
            grew_bytes=self._offset - start,
            skipped_bytes=skipped,
            size=max(piece.size, self._offset),
            modified_at=piece.mtime,
            rotated=rotated,
            truncated=truncated,
        )

    def _skip(self, size: int) -> int:
        """Skip all but the last `MAX_NEWS` bytes; return how many were skipped."""
        skipped = max(0, size - self._offset - MAX_NEWS)
        if skipped:
            self._offset += skipped
            self._seam = b""
            self.parser.resync(self._offset)
        return skipped

    def _read(self, place: LogFile, path: str, size: int) -> list[LogRecord]:
        """Parse from our offset to the end of the file, at most `MAX_NEWS` bytes."""
        left = MAX_NEWS if size > self._offset else 0
        return self._read_to(place, path, self._offset + left) + self.parser.flush()

    def _read_to(self, place: LogFile, path: str, end: int) -> list[LogRecord]:
        """Parse from our offset to this one, while the path leads to our file.

        Between two reads another file may be put there: under a name by a user who may write the folder, at a descriptor
        by the job. What was read of it is dropped.
        """
        records: list[LogRecord] = []
        left = end - self._offset if place.parsed else 0
        while left > 0 and time.monotonic() < self._until:
            piece = self._reader.read_from(
                path, self._offset, rights=place.rights, max_bytes=min(CHUNK, left)
            )
            if isinstance(piece, Unreadable):
                self._failure = piece
                break
            if not piece.data or (piece.device, piece.inode) != self._file:
                break
            records += self.parser.feed(piece.data)
            self._offset += len(piece.data)
            self._seam = (self._seam + piece.data)[-SEAM:]
            left -= len(piece.data)
        return records

    def _restart(self) -> None:
        self._offset, self._seam = 0, b""
        self.parser.restart()


def _no_news(place: LogFile, why: Unreadable) -> LogUpdate:
    gap = Gap(what="log", reason=f"{place.target}: {why.reason}", pid=place.pid)
    return LogUpdate(gap=gap, stuck=why.stuck)
