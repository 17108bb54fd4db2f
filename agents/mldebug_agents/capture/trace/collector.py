"""The rings of all ranks: met while they live, looked at during the watch, read at a capture and after a rank's end."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec

from mldebug.capture.trace.tail import SHOWN, trace_tail
from mldebug.core.model import Gap, NodeCapture, RankCapture, RankIdentity, TraceTail
from mldebug_agents.capture.trace.locations import RingPlace, dead, living, maps_of
from mldebug_agents.capture.trace.ring_file import RingFile, absent, begins_as_one, first_error
from mldebug_agents.capture.trace.source_text import SourceText
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


class Rings:
    """Keep one: it remembers where ranks had their rings, for when they are gone. Any thread may ask."""

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
        self._known: dict[Key, RingPlace] = {}
        self._without: dict[Key, float] = {}  # when to ask again

    def meet(self, found: Discovery) -> dict[int, float]:
        """Look for the rings of all ranks of this node. By pid, unix time of the last record of each that has one."""
        ranks = [rank for job in found.jobs for rank in job.ranks]
        here = {_key(rank) for rank in ranks}
        with self._lock:
            self._without = {key: at for key, at in self._without.items() if key in here}
            for key in list(self._known)[:-MAX_KNOWN]:
                del self._known[key]
        times = {rank.pid: self._written(rank) for rank in ranks}
        return {pid: at for pid, at in times.items() if at is not None}

    def add(self, taken: NodeCapture, left: Callable[[], float]) -> NodeCapture:
        """The capture with the last records of every rank that is traced. Never raises for what a job does."""
        gaps: list[Gap] = []
        ranks = tuple(self._with_trace(one, left, gaps) for one in taken.ranks)
        return msgspec.structs.replace(taken, ranks=ranks, gaps=(*taken.gaps, *gaps))

    def left_behind(self, ranks: Iterable[RankIdentity]) -> dict[int, TraceTail]:
        """By rank, what those that have ended wrote last."""
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

    def _find(self, rank: RankIdentity) -> RingPlace | None:
        """Where its ring is, remembered; a process without one is asked seldom."""
        key = _key(rank)
        known = self._known.get(key)
        if known is not None or self._clock() < self._without.get(key, 0.0):
            return known
        for place in self._living(rank):
            if self._is_its(rank, place):
                with self._lock:
                    self._known[key] = place
                return place
        age = self._host.clock() - rank.started_at
        self._without[key] = self._clock() + (SOON if age < YOUNG else LATER)
        return None

    def _living(self, rank: RankIdentity) -> Iterator[RingPlace]:
        """What it writes now, not what it wrote before it became another program. Few are traced: what it has mapped is read last."""
        for place in living(self._host, rank):
            if begins_as_one(self._reader, place) and (place.open or self._maps(rank, place)):
                yield place

    def _maps(self, rank: RankIdentity, place: RingPlace) -> bool:
        told = self._reader.read_from(maps_of(self._host, rank.pid), 0, max_bytes=MAX_MAPS)
        return isinstance(told, FilePiece) and place.told.encode() in told.data

    def _is_its(self, rank: RankIdentity, place: RingPlace) -> bool:
        try:
            self._file(rank, place).check()
        except (OSError, ValueError):
            return False
        return True

    def _forget(self, rank: RankIdentity) -> None:
        with self._lock:
            self._known.pop(_key(rank), None)

    def _file(self, rank: RankIdentity, place: RingPlace) -> RingFile:
        return RingFile(self._reader, place, rank, self._host.boot_id())

    # --- at a capture, and at the end --------------------------------------------------------------

    def _with_trace(
        self, one: RankCapture, left: Callable[[], float], gaps: list[Gap]
    ) -> RankCapture:
        rank = one.identity
        state = one.process.state
        gone = state is None or state.state in "ZX"
        known = self._known.get(_key(rank))
        places = self._dead(rank) if gone else [known] if known else self._living(rank)
        if left() <= 0:
            return one
        tail, why = self._tail(rank, places)
        if why and known:
            gaps.append(Gap(what=WHAT, reason=why, rank=rank.rank, pid=rank.pid))
        return one if tail is None else msgspec.structs.replace(one, trace=tail)

    def _dead(self, rank: RankIdentity) -> list[RingPlace]:
        return dead(self._host, rank, self._known.get(_key(rank)), self._folders)

    def _tail(
        self, rank: RankIdentity, places: Iterable[RingPlace]
    ) -> tuple[TraceTail | None, str]:
        """The first that is its own, and why there is none."""
        errors: list[Exception] = []
        source = SourceText(self._host, self._reader, rank)
        for place in places:
            try:
                ring = self._file(rank, place).ends(SHOWN)
                return trace_tail(ring, self._host.clock(), place.told, source.line), ""
            except (OSError, ValueError) as error:
                errors.append(error)
            except Exception as error:
                log.exception("the trace ring of rank %s could not be read", rank.rank)
                errors.append(ValueError(f"{type(error).__name__}: a defect of mldebug"))
        return None, first_error(errors)


def _key(rank: RankIdentity) -> Key:
    return rank.pid, rank.start_ticks
