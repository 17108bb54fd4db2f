"""Looks at the saves of all jobs: learns their places, and looks at each. Runs in a worker thread of its own."""

import errno
import time
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from posixpath import basename, dirname, join

import msgspec

from mldebug.core.model import Job
from mldebug.storage.checkpoints.model import Layout
from mldebug.storage.checkpoints.names import CheckpointPath, checkpoint_of, is_part, series_of
from mldebug_agents.storage.checkpoints.open_files import OpenCheckpointFile, OpenFileReader, hints
from mldebug_agents.storage.checkpoints.series_reader import SeriesKey as Known
from mldebug_agents.storage.checkpoints.series_reader import SeriesLook, SeriesReader, Trouble
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import Unreadable

MAX_SERIES = 8  # of one job
MAX_PLACES = 32  # that one pattern may lead to
HINT_DEPTH, HINT_ENTRIES = 3, 4000
ROUND = 15.0  # seconds of one look at all jobs; who had no turn is first the next time
EARLY = 2.0  # seconds by which a file may be older than the job that wrote it


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One job: its processes, the series that are known, and whether it has written much since the order before."""

    job: Job
    pids: tuple[int, ...]
    known: tuple[Known, ...] = ()
    burst: bool = False


class CheckpointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One look. `patterns` are those of the configuration."""

    jobs: tuple[JobRequest, ...] = ()
    patterns: tuple[str, ...] = ()


class CheckpointNews(msgspec.Struct, frozen=True, kw_only=True):
    """What one look came to."""

    looks: tuple[SeriesLook, ...] = ()
    troubles: tuple[Trouble, ...] = ()  # that no series has
    places: frozenset[Known] = frozenset()  # of the configuration, as they are now


class CheckpointReader:
    """The watch of all series of this node."""

    def __init__(self, host: Host, reader: Reader, layouts: Sequence[Layout]) -> None:
        self._host = host
        self._reader = reader
        self._layouts = layouts
        self._descriptors = OpenFileReader(host)
        self._series: dict[tuple[str, Known], SeriesReader] = {}
        self._expanded: dict[str, list[Known]] = {}  # by pattern
        self._turn = 0

    def look(self, order: CheckpointRequest) -> CheckpointNews:
        """Look once."""
        until = time.monotonic() + ROUND
        self._descriptors.keep(one.job.id for one in order.jobs)
        work: list[tuple[str, str, Known, frozenset[str]]] = []
        for one in order.jobs:
            work += self._of_job(one, order)
        places = [place for pattern in order.patterns for place in self._expand(pattern)]
        work += [("", self._host.root, place, frozenset()) for place in dict.fromkeys(places)]
        self._series = {(run, place): self._series.get((run, place)) or SeriesReader(place, self._layouts) for run, _, place, _ in work}  # fmt: skip
        return CheckpointNews(looks=tuple(self._look(work, until)), places=frozenset(places))

    def _look(self, work: list[tuple[str, str, Known, frozenset[str]]], until: float) -> Iterator[SeriesLook]:  # fmt: skip
        begin = self._turn % max(1, len(work))
        for number, (run, root, place, writing) in enumerate([*work[begin:], *work[:begin]]):
            if number and time.monotonic() > until:
                self._turn = begin + number
                return
            yield self._series[run, place].look(
                run, root, self._reader, writing, self._host.clock()
            )

    # --- where ---------------------------------------------------------------------------------------

    def _of_job(self, one: JobRequest, order: CheckpointRequest) -> Iterator[tuple[str, str, Known, frozenset[str]]]:  # fmt: skip
        opened = self._descriptors.look(one.job.id, list(one.pids))
        root = self._root(one)
        if root is None:
            return
        learned = [it.place for it in opened]
        if one.burst:
            learned += self._new_files(one, root, order)
        fresh = [series_key(place) for place in learned]
        places = list(dict.fromkeys((*one.known, *fresh)))[:MAX_SERIES]
        for place in places:
            yield one.job.id, root, place, _names(opened, place)

    def _root(self, one: JobRequest) -> str | None:
        living = (rank.pid for rank in one.job.ranks if self._host.brief(rank.pid) is not None)
        pid = next(living, None)
        return None if pid is None else self._host.root_of(pid)

    def _new_files(
        self, one: JobRequest, root: str, order: CheckpointRequest
    ) -> Iterator[CheckpointPath]:
        """Parts of saves that its user has written since it began, where no other job of this node looks like it."""
        others = {it for other in order.jobs if other is not one for it in hints(self._host, other.job)}  # fmt: skip
        for folder in hints(self._host, one.job):
            if folder in others:
                continue
            listed = self._reader.list_folder(
                f"{root}{folder}", depth=HINT_DEPTH, most=HINT_ENTRIES
            )
            for it in () if isinstance(listed, Unreadable) else listed.entries:
                mine = it.kind == "file" and it.uid == one.job.uid
                if mine and it.mtime >= one.job.started_at - EARLY and is_part(basename(it.path)):
                    place = checkpoint_of(join(folder, it.path))
                    if place is not None:
                        yield place

    def _expand(self, pattern: str) -> Iterable[Known]:
        """`/ckpt/*/step-*`: the folders that the first part leads to, and the series in them.

        Where a folder above them does not answer, what it led to before stays.
        """
        folders, answered = [""], True
        for part in dirname(pattern).split("/")[1:]:
            told = [self._matching(folder, part) for folder in folders]
            answered = answered and None not in told
            folders = [inner for some in told for inner in some or ()][:MAX_PLACES]
        found = [(folder, basename(pattern)) for folder in folders]
        before = self._expanded.get(pattern, [])
        self._expanded[pattern] = found if answered else list(dict.fromkeys((*found, *before)))
        return self._expanded[pattern]

    def _matching(self, folder: str, part: str) -> list[str] | None:
        if "*" not in part and "?" not in part:
            return [f"{folder}/{part}"]
        listed = self._reader.list_folder(f"{self._host.root}{folder}/", depth=1, most=HINT_ENTRIES)
        if isinstance(listed, Unreadable):
            return None if listed.errno not in (errno.ENOENT, errno.ENOTDIR) else []
        return [f"{folder}/{it.path}" for it in listed.entries if it.kind == "folder" and fnmatchcase(it.path, part)]  # fmt: skip


def series_key(place: CheckpointPath) -> Known:
    """The series that a save belongs to."""
    return place.folder, series_of(place.name)


def _names(opened: Iterable[OpenCheckpointFile], place: Known) -> frozenset[str]:
    return frozenset(one.place.name for one in opened if series_key(one.place) == place)
