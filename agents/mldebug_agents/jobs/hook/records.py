"""The records that hooked training processes keep in shared memory, found by the pid and start time
as the process itself sees them.

A record is used only where it is a regular file of the user that runs the process, which nobody
else may write. No record means a job without the hook; a record that cannot be read is reported
with the reason.
"""

import errno
import stat
import time
from collections.abc import Callable, Iterable, Sequence

from mldebug.core.model import Gap, HookState, RankIdentity
from mldebug.jobs.heartbeat import (
    RECORD,
    SIZE,
    Heartbeat,
    TornError,
    hook_summary,
    parse_record,
    record_name,
)
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import FilePiece, Unreadable

FOLDER = "/dev/shm"  # noqa: S108 - read, never written
SOON, LATER = (
    5.0,
    60.0,
)  # seconds until a process without a record is asked again: a young one, an old one
YOUNG = 300.0
TRIES = 3
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ESRCH)
_WRITING = "it was being written whenever it was read"
_BROKEN = "its process has ended while it was being written"


class HeartbeatReader:
    """Reads the hook records of ranks.

    There is one per agent: it remembers processes without a record and asks them seldom, so that
    jobs without the hook cost nothing.
    """

    def __init__(
        self, host: Host, reader: Reader, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._host = host
        self._reader = reader
        self._clock = clock
        self._without: dict[tuple[int, int], float] = {}  # (pid, start) -> when to ask again
        self.refused: dict[int, str] = {}  # pid -> why its record is not read, or not believed

    def read(self, ranks: Iterable[RankIdentity]) -> dict[int, Heartbeat]:
        """The present records, by rank.

        Ranks without one are left out; why a record was not used stands in `refused`, by pid.
        """
        ranks = tuple(ranks)
        here = {(rank.pid, rank.start_ticks) for rank in ranks}
        self._without = {key: at for key, at in self._without.items() if key in here}
        self.refused.clear()
        found = {rank.rank: self._one(rank) for rank in ranks}
        return {rank: beat for rank, beat in found.items() if beat is not None}

    def _one(self, rank: RankIdentity) -> Heartbeat | None:
        key = rank.pid, rank.start_ticks
        if self._clock() < self._without.get(key, 0.0):
            return None
        beat = self._believed(rank)
        if beat is None and self.refused.get(rank.pid) != _WRITING:
            age = self._host.clock() - rank.started_at
            self._without[key] = self._clock() + (SOON if age < YOUNG else LATER)
        return beat

    def _believed(self, rank: RankIdentity) -> Heartbeat | None:
        pid = rank.namespace_pid or rank.pid
        name = record_name(pid, rank.start_ticks)
        root, rights = self._host.root_of(rank.pid), self._host.rights.of(rank)
        path = f"{root}{FOLDER}/{name}"
        for _ in range(TRIES):
            piece = self._reader.read_from(path, 0, rights=rights, place=root, max_bytes=SIZE + 1)
            if not isinstance(piece, FilePiece):
                self._unread(rank.pid, piece)
                return None
            try:
                check_owner(piece, rank.uid)
                return parse_record(piece.data, pid, rank.start_ticks, self._clock())
            except TornError:
                continue  # it was just being written: read again
            except ValueError as error:
                self.refused[rank.pid] = str(error)
                return None
        self.refused[rank.pid] = _WRITING if self._lives(rank) else _BROKEN
        return None

    def _unread(self, pid: int, why: Unreadable) -> None:
        if why.errno not in _ABSENT:
            self.refused[pid] = f"it could not be read: {why.reason}"

    def _lives(self, rank: RankIdentity) -> bool:
        stat = self._host.brief(rank.pid)
        return stat is not None and stat.state not in "ZX" and stat.start_ticks == rank.start_ticks


def read_hook_summaries(
    host: Host, reader: Reader, ranks: Sequence[RankIdentity]
) -> tuple[dict[int, HookState], tuple[Gap, ...]]:
    """The present records' summaries by rank, and the reason for each record that could not be read or is not valid."""
    source = HeartbeatReader(host, reader)
    found = source.read(ranks)
    gaps = [
        Gap(what=RECORD, reason=source.refused[rank.pid], rank=rank.rank, pid=rank.pid)
        for rank in ranks
        if rank.pid in source.refused
    ]
    now = time.monotonic()
    return {rank: hook_summary(beat, now) for rank, beat in found.items()}, tuple(gaps)


def check_owner(piece: FilePiece, uid: int) -> None:
    """Raise ValueError where the file belongs to another user than `uid`, or others may write it."""
    if piece.uid != uid:
        raise ValueError(f"it belongs to user {piece.uid} and not to user {uid} of the rank")
    if piece.mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ValueError("others may write it")
