"""The call traces ("rings") of the ranks on this node: found while a rank lives, or after its end
at the default place; read at a capture and after a rank has ended.

Source lines that a ring names are read through the rank's root, and only where the rank's user may
read the file.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import msgspec

from mldebug.capture.trace.line_format import SHOWN, is_source, nth_line, trace_tail
from mldebug.core.model import Gap, Job, NodeCapture, RankCapture, RankIdentity, TraceTail
from mldebug.jobs.owners import Owner, owner_of
from mldebug_agents.capture.trace.ring_file import (
    RingLocation,
    RingReader,
    absent,
    begins_as_one,
    dead,
    first_error,
    living,
    maps_of,
)
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import FilePiece

log = logging.getLogger("mldebug")

WHAT = "trace ring"
SOON, LATER = 5.0, 60.0  # seconds until a process without a ring is asked again: young, old
YOUNG = 300.0
MAX_KNOWN = 4096  # processes
MAX_MAPS = 4 << 20  # bytes
MAX_DEAD = 64  # of one job

Key = tuple[int, int]  # pid, start
MAX_BYTES = 1 << 20  # of one file
MAX_FILES = 16  # of one rank
MOST_SECONDS = 0.25  # in which the traces of one owner's ranks are looked for and read in one look


class TraceCollector:
    """Reads the call traces of ranks.

    There is one per agent: it remembers where each rank had its trace file, also after the rank has
    ended. Safe from any thread.
    """

    def __init__(
        self,
        host: Host,
        reader: Reader,
        folders: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._reader = reader
        self._folders = tuple(folders)
        self._clock = clock
        self._lock = threading.Lock()
        self._locations: dict[Key, RingLocation] = {}
        self._without: dict[Key, float] = {}  # when to ask again
        self._times: dict[Key, float | None] = {}  # when each was last written, as last read

    def update(self, found: Discovery, wanted: Collection[str] | None = None) -> dict[int, float]:
        """Look for the trace files of all ranks of this node, or those of the `wanted` jobs (by id).

        Returns by pid the unix time of the newest record, for the ranks that have one. Ranks for which an owner's `MOST_SECONDS` did
        not suffice keep the time that was read last, and come first the next time.
        """
        ranks = [rank for job in found.jobs for rank in job.ranks]
        here = {_key(rank) for rank in ranks}
        with self._lock:
            self._without = {key: at for key, at in self._without.items() if key in here}
            for key in list(self._locations)[:-MAX_KNOWN]:
                del self._locations[key]
        jobs = [job for job in found.jobs if wanted is None or job.id in wanted]
        here = {_key(rank) for job in jobs for rank in job.ranks}
        self._times = {key: at for key, at in self._times.items() if key in here}
        self._read_in_turns(jobs)
        return {pid: at for (pid, _), at in self._times.items() if at is not None}

    def _read_in_turns(self, jobs: Iterable[Job]) -> None:
        """Who was read last is read again last."""
        order = {key: place for place, key in enumerate(self._times)}
        ranks = [(rank, owner_of(job)) for job in jobs for rank in job.ranks]
        ranks.sort(key=lambda one: order.get(_key(one[0]), -1))
        left: dict[Owner, float] = {}
        for rank, owner in ranks:
            began = self._clock()
            if left.setdefault(owner, MOST_SECONDS) > 0:
                self._times.pop(_key(rank), None)
                self._times[_key(rank)] = self._written(rank)
                left[owner] -= self._clock() - began

    def add(self, taken: NodeCapture, left: Callable[[], float]) -> NodeCapture:
        """The capture, with the last calls of every traced rank, and in its `gaps` the reasons for traces that could not be read.

        Never raises for what a job does.
        """
        gaps: list[Gap] = []
        ranks = tuple(self._with_trace(rank, left, gaps) for rank in taken.ranks)
        return msgspec.structs.replace(taken, ranks=ranks, gaps=(*taken.gaps, *gaps))

    def left_behind(self, ranks: Iterable[RankIdentity]) -> dict[int, TraceTail]:
        """The last recorded calls of ranks that have ended, by rank.

        Ranks without a trace are left out, and those after the first `MAX_DEAD`.
        """
        found: dict[int, TraceTail] = {}
        for rank in list(ranks)[:MAX_DEAD]:
            tail, _ = self._tail(rank, self._dead(rank))
            if tail is not None:
                found[rank.rank] = tail
        return found

    # --- while it lives ----------------------------------------------------------------------------

    def _written(self, rank: RankIdentity) -> float | None:
        place = self._find(rank)
        if place is None:
            return None
        try:
            at = self._file(rank, place).written_ns()
        except (OSError, ValueError) as error:
            if absent(error) or isinstance(error, ValueError):
                self._forget(rank)
            return None
        return None if at is None else at / 1e9

    def _find(self, rank: RankIdentity) -> RingLocation | None:
        """Where its ring is, remembered; a process without one is asked seldom."""
        key = _key(rank)
        location = self._locations.get(key)
        if location is not None or self._clock() < self._without.get(key, 0.0):
            return location
        for place in self._living(rank):
            if self._is_its(rank, place):
                with self._lock:
                    self._locations[key] = place
                return place
        age = self._host.clock() - rank.started_at
        self._without[key] = self._clock() + (SOON if age < YOUNG else LATER)
        return None

    def _living(self, rank: RankIdentity) -> Iterator[RingLocation]:
        """The rings that it writes now, not those of before an exec. Few ranks are traced, so /proc/PID/maps is read last."""
        rights = self._host.rights.of(rank)
        for place in living(self._host, rank):
            if begins_as_one(self._reader, place, rights) and (
                place.open or self._maps(rank, place)
            ):
                yield place

    def _maps(self, rank: RankIdentity, place: RingLocation) -> bool:
        path = maps_of(self._host, rank.pid)
        maps = self._reader.read_many([path], max_bytes=MAX_MAPS)[path]
        return isinstance(maps, bytes) and place.path_in_rank.encode() in maps

    def _is_its(self, rank: RankIdentity, place: RingLocation) -> bool:
        try:
            self._file(rank, place).check()
        except (OSError, ValueError):
            return False  # ended meanwhile, or another file in its place
        return True

    def _forget(self, rank: RankIdentity) -> None:
        with self._lock:
            self._locations.pop(_key(rank), None)

    def _file(self, rank: RankIdentity, place: RingLocation) -> RingReader:
        rights = self._host.rights.of(rank)
        return RingReader(self._reader, place, rank, rights, self._host.boot_id())

    # --- at a capture, and at the end --------------------------------------------------------------

    def _with_trace(
        self, one: RankCapture, left: Callable[[], float], gaps: list[Gap]
    ) -> RankCapture:
        rank = one.identity
        state = one.process.state
        gone = state is None or state.state in "ZX"
        location = self._locations.get(_key(rank))
        places = self._dead(rank) if gone else [location] if location else self._living(rank)
        if left() <= 0:
            return one
        tail, why = self._tail(rank, places)
        if why and location:
            gaps.append(Gap(what=WHAT, reason=why, rank=rank.rank, pid=rank.pid))
        return one if tail is None else msgspec.structs.replace(one, trace=tail)

    def _dead(self, rank: RankIdentity) -> list[RingLocation]:
        return dead(self._host, rank, self._locations.get(_key(rank)), self._folders)

    def _tail(
        self, rank: RankIdentity, places: Iterable[RingLocation]
    ) -> tuple[TraceTail | None, str]:
        """The first that is its own, and why there is none."""
        errors: list[Exception] = []
        source = SourceText(self._host, self._reader, rank)
        for place in places:
            try:
                ring = self._file(rank, place).ends(SHOWN)
                return trace_tail(ring, self._host.clock(), place.path_in_rank, source.line), ""
            except (OSError, ValueError) as error:
                errors.append(error)
            except Exception as error:
                log.exception("the trace ring of rank %s could not be read", rank.rank)
                errors.append(ValueError(f"{type(error).__name__}: a defect of mldebug"))
        return None, first_error(errors)


def _key(rank: RankIdentity) -> Key:
    return rank.pid, rank.start_ticks


class SourceText:
    """Reads source lines for one rank, with the rights of its user; keeps at most `MAX_FILES` files."""

    def __init__(self, host: Host, reader: Reader, rank: RankIdentity) -> None:
        self._reader = reader
        self._rights = host.rights.of(rank)
        self._roots = host.rights.roots(rank)
        self._files: dict[str, bytes] = {}

    def line(self, path: str, number: int) -> str:
        """The text of line `number` (from 1) of a source file as the rank names it; "" where it cannot be read."""
        if not is_source(path):
            return ""
        if path not in self._files:
            full = len(self._files) >= MAX_FILES
            self._files[path] = b"" if full else self._read(path)
        return nth_line(self._files[path], number)

    def _read(self, path: str) -> bytes:
        for root in self._roots:
            whole = f"{root}{path}"
            piece = self._reader.read_from(whole, 0, rights=self._rights, max_bytes=MAX_BYTES)
            if isinstance(piece, FilePiece):
                return piece.data
        return b""
