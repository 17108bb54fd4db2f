"""Filesystems, quotas, folders that grow, who writes, checkpoints and host memory: what is full soon or hangs comes first."""

import zlib
from collections.abc import Iterable, Iterator

import msgspec

from mldebug.core.model import Gap
from mldebug.core.plugins import NoOptions
from mldebug.core.redact import clean
from mldebug.core.units import size_words
from mldebug.hardware.host_memory.parse import RankMemory
from mldebug.hardware.host_memory.state import (
    LevelState,
    NodeMemory,
    alarms,
    level_name,
    level_sentence,
)
from mldebug.status.run_lines import ailing_lines
from mldebug.status.snapshot import Snapshot
from mldebug.status.storage_lines import NOTHING, checkpoint_words
from mldebug.storage.checkpoints.model import Completeness
from mldebug.storage.checkpoints.state import SeriesState, lost_words
from mldebug.web.page import PageRequest, WebPage
from mldebug.web.storage_lists import MOST, WIDEST, ItemGroup, ListItem, groups, share

NOT_YET = "Nothing is known yet: the agent has not looked, or its look has not come back."
VERDICTS = ("storage_fault", "rank_blocked_io")
SOURCES = ("storage-", "checkpoints", "memory")  # of the agent, by what their names begin with


class StorageIncident(msgspec.Struct, frozen=True, kw_only=True):
    """An open incident whose verdict is about storage."""

    id: str
    job: str
    sentence: str


class CheckpointSeriesRow(msgspec.Struct, frozen=True, kw_only=True):
    """A series of checkpoints on the page."""

    id: str  # the same at each look, whatever the order
    place: str
    job: str
    css_class: str
    lost: str  # "12 min of work and 1,200 steps"; "": not known
    sentence: str
    listed: tuple[ListItem, ...]


class RankMemoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's memory on the page; what the kernel cannot take back stands first."""

    job: str
    rank: int
    own: str
    shared: str
    mapped: str
    swap: str
    growth: str


class StoragePageData(msgspec.Struct, frozen=True, kw_only=True):
    """What the template of the page "Storage" shows."""

    lead: str
    alarms: tuple[str, ...]
    blocked: tuple[StorageIncident, ...]
    groups: tuple[ItemGroup, ...]
    checkpoint_series: tuple[CheckpointSeriesRow, ...]
    levels: tuple[ListItem, ...]
    ranks: tuple[RankMemoryRow, ...]
    more_ranks: int
    notes: tuple[str, ...]  # why something is missing
    gaps: tuple[Gap, ...]


class StoragePage:
    """The page "Storage": filesystems and checkpoints, as `mldebug status --storage` prints them."""

    title = "Storage"
    key = "s"
    reports = False

    def build(self, request: PageRequest) -> StoragePageData:
        """Build the page from the snapshot's storage, checkpoints and memory."""
        snapshot = request.snapshot
        memory = snapshot.memory or NodeMemory()
        found = tuple(_alarms(snapshot))
        ranks = sorted(memory.ranks, key=lambda one: -one.own)
        states = (
            *snapshot.checkpoint_series,
            *(one for run in snapshot.runs for one in run.checkpoint_series),
        )
        names = {run.id: clean(run.name, 60) for run in snapshot.runs}
        return StoragePageData(
            lead=_lead(snapshot, len(found)),
            alarms=found,
            blocked=tuple(_blocked(snapshot)),
            groups=tuple(groups(snapshot.storage)) if snapshot.storage else (),
            checkpoint_series=tuple(_checkpoint_rows(states, names, snapshot.at)),
            levels=tuple(_level(level, memory) for level in memory.levels),
            ranks=tuple(_rank(rank, names) for rank in ranks[:MOST]),
            more_ranks=max(0, len(ranks) - MOST),
            notes=tuple(_notes(snapshot)),
            gaps=_gaps(snapshot, memory, states),
        )


def _lead(snapshot: Snapshot, found: int) -> str:
    if found:
        return f"{found} storage {'alarm' if found == 1 else 'alarms'}"
    return "No storage alarm" if snapshot.storage or snapshot.memory else "Storage is not known yet"


def _alarms(snapshot: Snapshot) -> Iterator[str]:
    """What hangs before what is full."""
    every = snapshot.storage.alarms if snapshot.storage else ()
    for one in sorted(every, key=lambda alarm: "stuck" not in alarm.kind):
        yield clean(one.whole, WIDEST)
    for line in alarms(snapshot.memory) if snapshot.memory else ():
        yield clean(line, WIDEST)


def _blocked(snapshot: Snapshot) -> Iterator[StorageIncident]:
    for run in snapshot.runs:
        if run.incident and run.verdict in VERDICTS:
            job, words = clean(run.name, 60), clean(run.report, 400)
            yield StorageIncident(
                id=run.incident, job=job, sentence=words or "its report is being written"
            )


# --- checkpoints and memory ----------------------------------------------------------------------


def _checkpoint_rows(
    states: Iterable[SeriesState], names: dict[str, str], now: float
) -> Iterator[CheckpointSeriesRow]:
    """The series whose job would lose most comes first, but behind those of which that is not known."""
    for state in sorted(states, key=_by_loss):
        left = state.newest is not None and state.newest.state is Completeness.INCOMPLETE
        key = f"{state.run}/{state.folder}/{state.series}".encode(errors="replace")
        yield CheckpointSeriesRow(
            id=f"saves-{zlib.crc32(key):08x}",
            place=clean(f"{state.folder}/{state.series}", 180),
            job=names.get(state.run, clean(state.run, 60)),
            css_class="quiet" if state.last is None or state.trouble or left else "good",
            lost=lost_words(state),
            sentence=clean(state.sentence, 600),
            listed=tuple(
                ListItem(
                    title=clean(kept.name, 80),
                    words=clean(checkpoint_words(kept, now), WIDEST),
                    css_class="good"
                    if kept.state in (Completeness.COMPLETE, Completeness.WRITING)
                    else "quiet",
                )
                for kept in state.listed
            ),
        )


def _by_loss(one: SeriesState) -> tuple[bool, float]:
    return one.lost_seconds is not None, -(one.lost_seconds or 0.0)


def _level(one: LevelState, memory: NodeMemory) -> ListItem:
    name = level_name(one.level)
    return ListItem(
        title=clean(name.capitalize() if one.level.scope == "host" else name, 120),
        words=clean(level_sentence(one, memory.ranks).removeprefix(f"{name}: "), WIDEST),
        css_class="bad" if one.alarm else "good",
        ratio=share(one.level.used / one.level.limit) if one.level.limit else None,
    )


def _rank(one: RankMemory, names: dict[str, str]) -> RankMemoryRow:
    return RankMemoryRow(
        job=names.get(one.run, ""),
        rank=one.rank,
        own=size_words(one.anon),
        shared=size_words(one.shmem),
        mapped=size_words(one.file),
        swap=size_words(one.swap),
        growth="" if one.growth is None else f"{size_words(max(0.0, one.growth) * 60)} a minute",
    )


# --- what is missing -----------------------------------------------------------------------------


def _notes(snapshot: Snapshot) -> Iterator[str]:
    mine = tuple(source for source in snapshot.sources if source.name.startswith(SOURCES))
    bare = Snapshot(node="", at=0.0, started_at=0.0, sources=mine)
    yield from (clean(line, WIDEST) for line in ailing_lines(bare))
    if snapshot.storage is None:
        yield NOT_YET
    elif snapshot.storage.rows.get("filesystems") == ():
        yield NOTHING


def _gaps(snapshot: Snapshot, memory: NodeMemory, states: Iterable[SeriesState]) -> tuple[Gap, ...]:
    """Each once, however many ranks it hit."""
    every = (*(snapshot.storage.gaps if snapshot.storage else ()), *memory.gaps)
    every = (*every, *(gap for state in states for gap in state.gaps))
    found = {(one.what, one.reason, one.way_out): one for one in every}
    return tuple(
        Gap(what=clean(what, 160), reason=clean(reason, 300), way_out=clean(way_out, 200))
        for what, reason, way_out in list(found)[:MOST]
    )


def create(options: NoOptions) -> WebPage:
    """Build the web page `storage`: filesystems, quotas, folders that grow, who writes, checkpoints and host memory: what is full soon or hangs comes first."""
    return StoragePage()
