"""The checkpoints of one series over time: which is the last complete one, which is being written, which was left incomplete.

A file server's clock may be wrong. What was watched is dated by our clock, and times of files are
corrected by the difference measured while they grew. All times are unix seconds by our clock unless
said otherwise.
"""

import itertools
import statistics
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from mldebug.core.model import MeasuredData
from mldebug.core.redact import clean
from mldebug.storage.checkpoints.model import CheckpointVerdict, Completeness
from mldebug.storage.checkpoints.names import step_of
from mldebug.storage.checkpoints.rank_files import OtherCheckpoint, lost_kind, missing_files

MAX_KEPT = 16  # complete checkpoints that are remembered
MAX_TRACKS = 256
SETTLE = 60.0  # seconds without growth, after which nobody writes it any more
SKEW = 2.0  # seconds by which clocks may differ without a word
WRONG_CLOCK = 600.0  # seconds; no file server is further off without anybody noticing
CLOSE = 0.05  # of the size of earlier checkpoints


class CheckpointReading(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint at one reading.

    `oldest` and `newest`: times of its files in unix seconds by the file server's clock.
    """

    name: str
    size: int = 0
    files: int = 0
    oldest: float = 0.0
    newest: float = 0.0
    inode: int = 0
    single: bool = False  # a file, not a folder
    open: bool = False  # a process of the job has one of its files open for writing
    verdict: CheckpointVerdict = CheckpointVerdict()

    @property
    def fingerprint(self) -> tuple[int, int, float, int]:
        """A value that changes with every byte that is added: size, number of files, newest time, inode."""
        return self.size, self.files, self.newest, self.inode


class KnownCheckpoint(MeasuredData, frozen=True, kw_only=True):
    """A checkpoint as it is remembered and shown."""

    name: str  # printable
    state: Completeness
    why: str = ""
    layout: str = ""
    size: int = 0
    shards: int = 0
    expected: int | None = None
    began: float | None = None  # None: it was not watched, and its files do not show it
    ended: float = 0.0
    step: int | None = None
    world_size: int | None = None
    ranks: dict[str, str] = {}  # which ranks have a file there: `{"rank#.pt": "0-3"}`
    kinds: tuple[str, ...] = ()  # names of its files with # for numbers

    @property
    def seconds(self) -> float | None:
        """Seconds that writing it took; None where that is not known."""
        return self.ended - self.began if self.began is not None else None

    @property
    def rate(self) -> float | None:
        """Bytes per second of writing it; None where the duration is not known or below half a second."""
        seconds = self.seconds
        return self.size / seconds if seconds is not None and seconds >= 0.5 else None


class SeriesMemory(msgspec.Struct, kw_only=True):
    """What is stored of one series of checkpoints, so that it survives a restart of the agent."""

    complete: list[KnownCheckpoint] = []  # the oldest first; also those that were deleted since
    skew: float = 0.0  # seconds by which the server's clock is ahead


class _Track(msgspec.Struct, kw_only=True):
    reading: CheckpointReading
    first: float
    fresh: bool  # it came while we watched
    step: int | None = None  # of the run, when it came or was begun anew
    world_size: int | None = None  # likewise
    grown: float | None = None
    looked: float = 0.0
    checkpoint: KnownCheckpoint | None = None


class CheckpointSeries:
    """All checkpoints with one kind of name (`model-#.pt`) in one folder, as one job writes them.

    A checkpoint that has not grown for `settle` seconds counts as written.
    """

    def __init__(self, memory: SeriesMemory | None = None, settle: float = SETTLE) -> None:
        self.memory = memory or SeriesMemory()
        self.settle = settle
        self._tracks: dict[str, _Track] = {}
        self._looked: float | None = None
        self.grown_at: float | None = (
            None  # when a checkpoint that the job's own processes write last grew
        )

    def set_settle(self, settle: float) -> None:
        """Set `settle`: a checkpoint that has not grown for this many seconds counts as written."""
        self.settle = settle

    # --- looking -------------------------------------------------------------------------------------

    def look(self, now: float, readings: Sequence[CheckpointReading], *, whole: bool, step: int | None = None, world_size: int | None = None) -> None:  # fmt: skip
        """Add the readings made at unix time `now`.

        `step` and `world_size`: the run's at that time; None: not known.

        `whole`: the whole folder was read, so a checkpoint without a reading is gone.
        """
        in_order = sorted(
            readings[:MAX_TRACKS], key=lambda it: it.newest
        )  # each is compared with those before it
        for reading in in_order:
            track = self._follow(reading, now, step, world_size)
            track.checkpoint = self._judge(track, now)
            track.looked = now
        if whole:
            present = {one.name for one in readings}
            self._tracks = {name: one for name, one in self._tracks.items() if name in present}
        self._looked = now

    def _follow(
        self, one: CheckpointReading, now: float, step: int | None, world_size: int | None
    ) -> _Track:
        track = self._tracks.get(one.name)
        if track is None:
            fresh = self._looked is not None
            track = self._tracks[one.name] = _Track(reading=one, first=now, fresh=fresh, step=step if fresh else None, looked=now)  # fmt: skip
            track.world_size = world_size if fresh else None  # who wrote an older one is not known
            if fresh or one.open:
                self._grew(track, one, now)
        elif track.reading.fingerprint != one.fingerprint:
            if track.checkpoint is not None and track.checkpoint.state is not Completeness.WRITING:
                track.first, track.fresh = now, True  # written over
                track.step, track.world_size = step, world_size
            self._learn_skew(one, track.looked, now)
            self._grew(track, one, now)
        track.reading = one
        return track

    def _grew(self, track: _Track, one: CheckpointReading, now: float) -> None:
        if track.reading.fingerprint == one.fingerprint or one.size > track.reading.size:
            track.grown = now
            self.grown_at = now if one.open else self.grown_at

    def _learn_skew(self, one: CheckpointReading, before: float, now: float) -> None:
        """Measure the error of the server's clock: the file was written between two looks, so its time must lie between them."""
        ahead, behind = one.newest - now, one.newest - before
        if ahead > SKEW:
            self.memory.skew = ahead
        elif (
            behind < -SKEW and not one.verdict.state is Completeness.COMPLETE
        ):  # a rename keeps old times
            self.memory.skew = behind
        elif before - SKEW <= one.newest <= now + SKEW:
            self.memory.skew = 0.0

    # --- judging -------------------------------------------------------------------------------------

    def _judge(self, track: _Track, now: float) -> KnownCheckpoint:
        one, before = track.reading, track.checkpoint
        state, why = self._missing(track) or (one.verdict.state, one.verdict.why)
        if state is not Completeness.COMPLETE and before is not None and self._shrinks(one, before):
            return msgspec.structs.replace(
                before, state=Completeness.UNKNOWN, why="it is being deleted"
            )
        if state is not Completeness.COMPLETE and self._is_written(track, now):
            state = Completeness.WRITING
        elif state is Completeness.INCOMPLETE and self._is_news(track, now):
            state, why = (
                Completeness.UNKNOWN,
                f"{why}, and it was not watched for long enough to say more",
            )
        began, ended = self._times(track, now)
        checkpoint = KnownCheckpoint(
            name=printable(one.name),
            state=state,
            why=clean(why, 300),  # it may quote names of files, and an index of any length
            layout=one.verdict.layout,
            size=one.size,
            shards=one.verdict.shards,
            expected=one.verdict.expected,
            began=began,
            ended=ended,
            step=_step(one.name, track.step),
            world_size=track.world_size,
            ranks=dict(one.verdict.ranks),
            kinds=one.verdict.kinds,
        )
        return self._remember(checkpoint, track) if state is Completeness.COMPLETE else checkpoint

    def _missing(self, track: _Track) -> tuple[Completeness, str] | None:
        """Why it is not complete although its own files look so: the file of a rank is missing."""
        verdict = track.reading.verdict
        if verdict.state is not Completeness.COMPLETE:
            return None
        at = track.reading.newest - self.memory.skew
        step = _step(track.reading.name, track.step)
        earlier = [one for one in self._others(track) if _is_before(one, step, at)]
        if lost := lost_kind(verdict.kinds, earlier):
            return Completeness.INCOMPLETE, lost
        if not verdict.ranks:
            return None
        return missing_files(verdict.ranks, verdict.writers, track.world_size, self._others(track))

    def _others(self, track: _Track) -> Iterator[OtherCheckpoint]:
        """Other checkpoints to compare with: the complete ones and the finished ones whose state is unknown."""
        own = printable(track.reading.name)
        present = [
            one.checkpoint for one in self._tracks.values() if one.checkpoint and one is not track
        ]
        for one in (*present, *self.memory.complete):
            if (
                one.name != own
                and (one.ranks or one.kinds)
                and one.state in (Completeness.COMPLETE, Completeness.UNKNOWN)
            ):
                whole = one.state is Completeness.COMPLETE
                yield OtherCheckpoint(
                    one.name, one.ranks, one.world_size, whole, one.kinds, one.ended, one.step
                )

    def _shrinks(self, one: CheckpointReading, before: KnownCheckpoint) -> bool:
        if before.state is not Completeness.COMPLETE:
            return False
        newer = any(
            checkpoint.ended > before.ended
            for checkpoint in self.complete
            if checkpoint.name != before.name
        )
        return one.size < before.size and newer

    def _is_written(self, track: _Track, now: float) -> bool:
        age = now - (track.reading.newest - self.memory.skew)
        lately = track.grown is not None and now - track.grown < self.settle
        return track.reading.open or lately or abs(age) < self.settle

    def _is_news(self, track: _Track, now: float) -> bool:
        """Whether it was there before the agent, too short a time ago to exclude that it is being written under a wrong clock."""
        age = now - (track.reading.newest - self.memory.skew)
        return not track.fresh and now - track.first < self.settle and abs(age) < WRONG_CLOCK

    def _times(self, track: _Track, now: float) -> tuple[float | None, float]:
        """When it was begun (None: unknown) and ended, never later than now whatever the server's clock says."""
        one, skew = track.reading, self.memory.skew
        ended = min(one.newest - skew, now)
        if track.fresh:
            ended = min(max(ended, track.first - self.settle), now)
        began = min(one.oldest - skew, ended) if one.files > 1 else None
        if began is not None and any(began < checkpoint.ended < ended for checkpoint in self.memory.complete if checkpoint.name != printable(one.name)):  # fmt: skip
            began = None  # a part was taken over from an earlier checkpoint, with its time
        if track.fresh and track.grown is not None and track.grown > track.first:
            began = min(track.first, ended, began if began is not None else ended)
        return began, ended

    def _remember(self, checkpoint: KnownCheckpoint, track: _Track) -> KnownCheckpoint:
        remembered = self.memory.complete
        same = next((one for one in remembered if one.name == checkpoint.name and abs(one.ended - checkpoint.ended) < 1.0 and one.size == checkpoint.size), None)  # fmt: skip
        if same is not None:
            return same  # what an earlier agent saw of its beginning is more than its files say
        if (
            track.checkpoint is not None
            and track.checkpoint.state is Completeness.COMPLETE
            and not track.fresh
        ):
            return checkpoint
        remembered[:] = sorted((*remembered, checkpoint), key=lambda one: one.ended)[-MAX_KEPT:]
        return checkpoint

    # --- results -------------------------------------------------------------------------------------

    @property
    def checkpoints(self) -> tuple[KnownCheckpoint, ...]:
        """All checkpoints that are there, the oldest first."""
        found = (track.checkpoint for track in self._tracks.values() if track.checkpoint)
        return tuple(sorted(found, key=lambda one: (one.ended, one.step or 0, one.name)))

    @property
    def complete(self) -> tuple[KnownCheckpoint, ...]:
        """The complete checkpoints that are on disk, the oldest first."""
        return self.of(Completeness.COMPLETE)

    def of(self, state: Completeness) -> tuple[KnownCheckpoint, ...]:
        """The checkpoints on disk that have this state, the oldest first."""
        return tuple(checkpoint for checkpoint in self.checkpoints if checkpoint.state is state)

    @property
    def period(self) -> float | None:
        """Seconds between two checkpoints: the median of the last five gaps; None before the third checkpoint."""
        ends = [one.ended for one in self.memory.complete]
        gaps = [after - before for before, after in itertools.pairwise(ends)][-5:]
        return statistics.median(gaps) if len(gaps) >= 2 else None


def size_change(
    checkpoint: KnownCheckpoint, all_of_them: Iterable[KnownCheckpoint]
) -> float | None:
    """By how much a checkpoint's size differs from the median of up to 5 before it (0.1: 10 % larger); None without any before."""
    sizes = [one.size for one in all_of_them if one.ended < checkpoint.ended and one.name != checkpoint.name and one.size][-5:]  # fmt: skip
    return checkpoint.size / statistics.median(sizes) - 1.0 if sizes else None


def printable(name: str) -> str:
    """A file name as text of at most 200 characters: bytes that are no UTF-8 are escaped, so that it can be stored and sent."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")[:200]


def _is_before(other: OtherCheckpoint, step: int | None, ended: float) -> bool:
    """Whether another checkpoint is of an earlier step; by their times where one has no step."""
    return other.step < step if other.step is not None and step is not None else other.ended < ended


def _step(name: str, at_the_beginning: int | None) -> int | None:
    named = step_of(name)
    return named if named is not None else at_the_beginning
