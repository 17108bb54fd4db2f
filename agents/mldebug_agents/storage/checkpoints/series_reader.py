"""One look at one series of checkpoints: lists its folder, and reads what the checkpoint layouts need of the newest ones.

All of it goes through the reader child. What could not be read is a gap, and then no checkpoint counts as missing.
"""

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from posixpath import basename

import msgspec

from mldebug.core.model import Gap
from mldebug.core.redact import clean
from mldebug.storage.checkpoints.completeness import (
    BESIDE,
    UNFINISHED,
    judge,
    unread_files,
    wants,
)
from mldebug.storage.checkpoints.grouping import group_of, join_ranks
from mldebug.storage.checkpoints.history import CheckpointReading, printable
from mldebug.storage.checkpoints.model import (
    ByteRange,
    Checkpoint,
    CheckpointVerdict,
    FileEntry,
    Layout,
)
from mldebug.storage.checkpoints.names import is_part, series_of
from mldebug_agents.system.child.job_paths import Rights
from mldebug_agents.system.child.listing import FolderListing, LeftOut, ListedFile
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import FilePiece, Unreadable

MOST_CHECKPOINTS = 4096  # entries of the folder of a series
MOST_FILES = 20_000  # files of one checkpoint
DEEP = 10  # levels: nanotron has eight
NEWEST = 4  # checkpoints that are looked at each time; older ones seldom
OLD_EVERY = 600.0  # seconds
UNREAD_EVERY = 120.0  # seconds after which a file that could not be read is tried again
MAX_KEPT = 64  # checkpoints of one series that are looked at at all, the newest
MOST_SINGLE = 512  # files of single ranks that are looked at beside each other
ROUNDS = 3
MAX_READ = 16 << 20  # bytes of one checkpoint
BESIDE_BYTES = 512
LONGEST = 4.0  # seconds for one checkpoint

SeriesKey = tuple[str, str]  # folder and series
_WHY = {
    LeftOut.MANY: ("cut", "it holds more than is looked at"),
    LeftOut.TIME: ("cut", "there was no time for all of it"),
    LeftOut.DENIED: ("denied", "permission denied for a part of it"),
    LeftOut.GONE: ("gone", "it was changed while it was read"),
    LeftOut.OTHER: ("mount", "another file system lies in it"),
}


class Trouble(msgspec.Struct, frozen=True):
    """A reason why checkpoints could not be read: a code for metrics, and a phrase for people."""

    code: str
    why: str


class SeriesLook(msgspec.Struct, frozen=True, kw_only=True):
    """What was read in one round of one series: the checkpoints that a job writes one after the other into one folder. `whole`:
    the folder was listed completely, so a checkpoint without a reading does
    not exist.
    """

    run: str
    folder: str
    series: str
    at: float = 0.0  # unix
    readings: tuple[CheckpointReading, ...] = ()
    whole: bool = False
    troubles: tuple[Trouble, ...] = ()

    @property
    def trouble(self) -> str:
        """Why the folder could not be listed completely, so that the newest checkpoint may be unknown; "" where it was."""
        return "" if self.whole else next((one.why for one in self.troubles), "not looked at")

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """All reasons why checkpoints could not be read, as entries of the list of what is missing."""
        what = f"checkpoints {clean(self.series, 80)} in {clean(printable(self.folder), 200)}"
        return tuple(Gap(what=what, reason=one.why) for one in self.troubles)


class _Judged(msgspec.Struct):
    """A checkpoint as it was when it was judged."""

    reading: CheckpointReading
    beside: Mapping[str, bytes]
    looked: float
    inode: int
    judged: float
    unread: tuple[str, ...] = ()  # files that could not be read then, and why

    def holds(self, reading: CheckpointReading, beside: Mapping[str, bytes], now: float) -> bool:
        """Whether the verdict still holds. Files that could not be read are tried again: rights change without a change of the
        file.
        """
        again = bool(self.unread) and not 0 <= now - self.judged < UNREAD_EVERY
        return (
            self.reading.fingerprint == reading.fingerprint and self.beside == beside and not again
        )


class SeriesFiles:
    """Reads the folder of one checkpoint series with the rights of the job's user, below the job's root directory, and follows
    no links from the folder on.
    """

    def __init__(self, reader: Reader, root: str, place: str, rights: Rights) -> None:
        self._reader, self._root, self._rights = reader, root, rights
        self._place = f"{root}{place}"

    def list_folder(self, path: str, *, depth: int, most: int) -> FolderListing | Unreadable:
        """List what lies below a folder, at most `most` entries and `depth` levels, with the rights and the root directory
        of the job.
        """
        how = {"depth": depth, "most": most}
        return self._reader.list_folder(
            f"{self._root}{path}", rights=self._rights, place=self._place, **how
        )

    def read_from(self, path: str, offset: int, *, max_bytes: int) -> FilePiece | Unreadable:
        """Read at most `max_bytes` of a file from `offset` on, with the rights and the root directory of the job."""
        return self._reader.read_from(
            f"{self._root}{path}",
            offset,
            rights=self._rights,
            place=self._place,
            max_bytes=max_bytes,
        )


class SeriesReader:
    """Looks at one series again and again. A checkpoint that has not changed keeps its verdict and is not read again."""

    def __init__(self, key: SeriesKey, layouts: Sequence[Layout], most: int = MAX_KEPT) -> None:
        """`most`: how many checkpoints are looked at, the newest."""
        self.folder, self.series = key
        self._layouts = layouts
        self._most = most
        self._judged: dict[str, _Judged] = {}

    def look(self, run: str, reader: SeriesFiles, writing: frozenset[str], now: float) -> SeriesLook:  # fmt: skip
        """Look once. `writing`: names of checkpoints that a process of the job has open; `now`: unix time."""
        listed = reader.list_folder(self.folder, depth=1, most=MOST_CHECKPOINTS)
        look = SeriesLook(run=run, folder=self.folder, series=self.series, at=now)
        if isinstance(listed, Unreadable):
            code = "stuck" if listed.stuck else "unreadable"
            return msgspec.structs.replace(look, troubles=(Trouble(code, listed.reason),))
        found = {entry.path: entry for entry in listed.entries if self.is_one(entry)}
        beside = self._beside(reader, listed)
        troubles = list(troubles_of(listed))
        newest = self._newest(self._in_order(list(found.values()), writing))
        kept = {one.path for one, _ in newest}  # older ones change nothing in what is shown
        self._judged = {name: one for name, one in self._judged.items() if name in kept}
        for one, number in newest:
            judged = self._judged.get(one.path)
            if judged is None or number < NEWEST or self._due(judged, one, beside, now):
                troubles += self._checkpoint(one, reader, writing, beside, now)
        readings = tuple(join_ranks(one.reading for one in self._judged.values()))
        whole = not troubles_of(listed)
        return msgspec.structs.replace(look, readings=readings, whole=whole, troubles=tuple(dict.fromkeys(troubles)))  # fmt: skip

    def is_one(self, one: ListedFile) -> bool:
        """Whether this entry of a folder is a checkpoint of the series. A symbolic link is none, since its target is listed
        too.
        """
        if one.kind not in ("file", "folder"):
            return False
        if "*" in self.series or "?" in self.series:
            return fnmatchcase(one.path, self.series)
        return series_of(one.path) == self.series

    def _in_order(self, found: list[ListedFile], writing: frozenset[str]) -> list[ListedFile]:
        """The newest first, by times of the file system (its clock may be wrong, but it orders the files)."""
        return sorted(found, key=lambda one: (one.path in writing, one.mtime), reverse=True)

    def _newest(self, found: list[ListedFile]) -> list[tuple[ListedFile, int]]:
        """The entries that are looked at at all, each with the number of its checkpoint: files of single ranks share one."""
        names = [group_of(one.path, single=one.kind == "file") for one in found]
        sizes, left = Counter(names), MOST_SINGLE
        numbers: dict[str, int] = {}
        for name in dict.fromkeys(names):
            left -= sizes[name]
            if len(numbers) < self._most and (left >= 0 or not numbers):
                numbers[name] = len(numbers)
        return [
            (one, numbers[name]) for one, name in zip(found, names, strict=True) if name in numbers
        ]

    def _due(
        self, judged: _Judged, one: ListedFile, beside: Mapping[str, bytes], now: float
    ) -> bool:
        changed = judged.inode != one.inode or judged.beside != beside
        return changed or now - judged.looked >= OLD_EVERY or now < judged.looked

    # --- one checkpoint ------------------------------------------------------------------------------------

    def _checkpoint(self, one: ListedFile, reader: SeriesFiles, writing: frozenset[str], beside: Mapping[str, bytes], now: float) -> list[Trouble]:  # fmt: skip
        path = f"{self.folder}/{one.path}"
        checkpoint, troubles = self._listed(one, path, reader, beside)
        if checkpoint is None:
            self._judged.pop(one.path, None)
            return troubles
        reading = _reading(checkpoint, one, one.path in writing)
        judged = self._judged.get(one.path)
        if judged is None or troubles or not judged.holds(reading, beside, now):
            read = self._read(checkpoint, path, reader)
            reading = msgspec.structs.replace(reading, verdict=judge(read, self._layouts))
            judged = _Judged(reading, beside, now, one.inode, now, tuple(unread_files(read)))
        reading = msgspec.structs.replace(reading, verdict=judged.reading.verdict)
        self._judged[one.path] = msgspec.structs.replace(judged, reading=reading, looked=now)
        return troubles + [Trouble("unread", why) for why in judged.unread[:1]]

    def _listed(self, one: ListedFile, path: str, reader: SeriesFiles, beside: Mapping[str, bytes]) -> tuple[Checkpoint | None, list[Trouble]]:  # fmt: skip
        if one.kind == "file":
            entry = FileEntry("", one.size, one.mtime, inode=one.inode)
            return Checkpoint(name=one.path, folder=False, files=(entry,), beside=beside), []
        listed = reader.list_folder(path, depth=DEEP, most=MOST_FILES)
        if isinstance(listed, Unreadable):
            if listed.errno == 2:  # deleted since its folder was listed
                return None, []
            checkpoint = Checkpoint(name=one.path, cut=listed.reason, beside=beside)
            return checkpoint, [Trouble("stuck" if listed.stuck else "unreadable", listed.reason)]
        troubles = list(troubles_of(listed))
        files = sorted((_entry(it) for it in listed.entries if it.kind == "file"), key=lambda it: it.path)  # fmt: skip
        cut = troubles[0].why if troubles else ""
        return Checkpoint(name=one.path, files=tuple(files), cut=cut, beside=beside), troubles

    def _read(self, checkpoint: Checkpoint, path: str, reader: SeriesFiles) -> Checkpoint:
        """The checkpoint with the byte ranges that its layouts need, as far as they can be read in time."""
        until, left = time.monotonic() + LONGEST, MAX_READ
        for _ in range(ROUNDS):
            needed = wants(checkpoint, self._layouts)
            parts: dict[ByteRange, bytes] = {}
            unread: dict[str, str] = {}
            for one in needed:
                left -= 0 if one.find else one.size
                if left < 0 or time.monotonic() > until:
                    unread[one.path] = "was not read: no time left"
                    continue
                got = read_part(reader, _below(path, one.path), one)
                if isinstance(got, Unreadable):
                    unread[one.path] = f"could not be read: {got.reason}"
                else:
                    parts[one] = got
            checkpoint = msgspec.structs.replace(checkpoint, parts={**checkpoint.parts, **parts}, unread={**checkpoint.unread, **unread})  # fmt: skip
            if not parts:
                break
        return checkpoint

    def _beside(self, reader: SeriesFiles, listed: FolderListing) -> Mapping[str, bytes]:
        marks = [it.path for it in listed.entries if it.kind == "file" and it.path.endswith(UNFINISHED)]  # fmt: skip
        found = dict.fromkeys(marks, b"")
        for entry in listed.entries:
            if entry.path in BESIDE and entry.kind == "file":
                got = reader.read_from(f"{self.folder}/{entry.path}", 0, max_bytes=BESIDE_BYTES)
                if not isinstance(got, Unreadable):
                    found[basename(entry.path)] = got.data
        return found


def troubles_of(listed: FolderListing) -> tuple[Trouble, ...]:
    """Why a listing of a folder is incomplete; empty where it is complete."""
    return tuple(
        Trouble(*code_and_why) for flag, code_and_why in _WHY.items() if flag in listed.left
    )


def _reading(checkpoint: Checkpoint, one: ListedFile, is_open: bool) -> CheckpointReading:
    all_times = [it.mtime for it in checkpoint.files] or [one.mtime]
    own = [
        it.mtime for it in checkpoint.files if is_part(basename(it.path))
    ]  # a copied config keeps its old time
    return CheckpointReading(
        name=one.path,
        size=checkpoint.size,
        files=len(checkpoint.files),
        oldest=min(own or all_times),
        newest=max(all_times),
        inode=one.inode,
        single=not checkpoint.folder,
        open=is_open,
        verdict=CheckpointVerdict(),
    )


def _entry(one: ListedFile) -> FileEntry:
    return FileEntry(one.path, one.size, one.mtime, inode=one.inode)


def _below(path: str, inner: str) -> str:
    return f"{path}/{inner}" if inner else path


PIECE = 1 << 20  # bytes
OVERLAP = 100  # bytes, the longest match
MOST_FOUND = 100_000  # different matches
SEARCH_SECONDS = 8.0  # seconds for one file


def read_part(reader: SeriesFiles, path: str, wanted: ByteRange) -> bytes | Unreadable:
    """The bytes of a range of the file at `path` or, where `wanted` has a `find`, its matches, one a line; an `Unreadable` with
    the reason where that fails.
    """
    if wanted.find:
        return _search(reader, path, wanted)
    got = reader.read_from(path, wanted.offset, max_bytes=wanted.size)
    return got if isinstance(got, Unreadable) else got.data


def _search(reader: SeriesFiles, path: str, wanted: ByteRange) -> bytes | Unreadable:
    """All distinct matches. A match at the end of a piece may go on in the next, so the last bytes are searched again."""
    expression, found, until = (
        re.compile(wanted.find),
        set[bytes](),
        time.monotonic() + SEARCH_SECONDS,
    )
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
