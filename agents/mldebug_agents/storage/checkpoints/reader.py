"""Looks at the checkpoints of all jobs: finds their series, and looks at each. Runs in a worker thread of its own."""

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
from mldebug_agents.storage.checkpoints.series_reader import (
    SeriesKey,
    SeriesLook,
    SeriesReader,
)
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import Unreadable

MAX_SERIES = 8  # of one job
MAX_PLACES = 32  # that one pattern may lead to
HINT_DEPTH, HINT_ENTRIES = 3, 4000
ROUND = 15.0  # seconds of one look at all jobs; who had no turn is first the next time
EARLY = 2.0  # seconds by which a file may be older than the job that wrote it


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One job: its processes, its known series, and whether it has written much since the last request."""

    job: Job
    pids: tuple[int, ...]
    series: tuple[SeriesKey, ...] = ()
    burst: bool = False


class CheckpointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An order to look at the checkpoints of these jobs, and of the folders that the configuration names."""

    jobs: tuple[JobRequest, ...] = ()
    patterns: tuple[str, ...] = ()


class CheckpointNews(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one look at the checkpoints of all requested jobs."""

    looks: tuple[SeriesLook, ...] = ()
    configured: frozenset[SeriesKey] = frozenset()  # what the patterns lead to now


class CheckpointReader:
    """Reads all series of this node through the reader child."""

    def __init__(self, host: Host, reader: Reader, layouts: Sequence[Layout]) -> None:
        self._host = host
        self._reader = reader
        self._layouts = layouts
        self._descriptors = OpenFileReader(host)
        self._series: dict[tuple[str, SeriesKey], SeriesReader] = {}
        self._expanded: dict[str, list[SeriesKey]] = {}  # by pattern
        self._turn = 0

    def look(self, request: CheckpointRequest) -> CheckpointNews:
        """Look once at all series, for at most about `ROUND` seconds; the others come first the next time."""
        until = time.monotonic() + ROUND
        self._descriptors.keep(one.job.id for one in request.jobs)
        work: list[tuple[str, str, SeriesKey, frozenset[str]]] = []
        for job in request.jobs:
            work += self._of_job(job, request)
        configured = [key for pattern in request.patterns for key in self._expand(pattern)]
        work += [("", self._host.root, key, frozenset()) for key in dict.fromkeys(configured)]
        self._series = {(run, key): self._series.get((run, key)) or SeriesReader(key, self._layouts) for run, _, key, _ in work}  # fmt: skip
        return CheckpointNews(
            looks=tuple(self._look(work, until)), configured=frozenset(configured)
        )

    def _look(self, work: list[tuple[str, str, SeriesKey, frozenset[str]]], until: float) -> Iterator[SeriesLook]:  # fmt: skip
        begin = self._turn % max(1, len(work))
        for number, (run, root, key, writing) in enumerate([*work[begin:], *work[:begin]]):
            if number and time.monotonic() > until:
                self._turn = begin + number
                return
            yield self._series[run, key].look(run, root, self._reader, writing, self._host.clock())

    # --- where ---------------------------------------------------------------------------------------

    def _of_job(self, job: JobRequest, request: CheckpointRequest) -> Iterator[tuple[str, str, SeriesKey, frozenset[str]]]:  # fmt: skip
        opened = self._descriptors.look(job.job.id, list(job.pids))
        root = self._root(job)
        if root is None:
            return
        learned = [file.checkpoint for file in opened]
        if job.burst:
            learned += self._new_files(job, root, request)
        fresh = [series_key(checkpoint) for checkpoint in learned]
        keys = list(dict.fromkeys((*job.series, *fresh)))[:MAX_SERIES]
        for key in keys:
            yield job.job.id, root, key, _names(opened, key)

    def _root(self, job: JobRequest) -> str | None:
        living = (rank.pid for rank in job.job.ranks if self._host.brief(rank.pid) is not None)
        pid = next(living, None)
        return None if pid is None else self._host.root_of(pid)

    def _new_files(
        self, job: JobRequest, root: str, request: CheckpointRequest
    ) -> Iterator[CheckpointPath]:
        """Checkpoint files that the job's user has written since it began, in folders that no other job of this node may write to."""
        others = {it for other in request.jobs if other is not job for it in hints(self._host, other.job)}  # fmt: skip
        for folder in hints(self._host, job.job):
            if folder in others:
                continue
            listed = self._reader.list_folder(
                f"{root}{folder}", depth=HINT_DEPTH, most=HINT_ENTRIES
            )
            for it in () if isinstance(listed, Unreadable) else listed.entries:
                mine = it.kind == "file" and it.uid == job.job.uid
                if mine and it.mtime >= job.job.started_at - EARLY and is_part(basename(it.path)):
                    checkpoint = checkpoint_of(join(folder, it.path))
                    if checkpoint is not None:
                        yield checkpoint

    def _expand(self, pattern: str) -> Iterable[SeriesKey]:
        """The series that a pattern such as `/ckpt/*/step-*` leads to now.

        Where a folder on the way does not answer, the series that were found before stay.
        """
        folders, answered = [""], True
        for part in dirname(pattern).split("/")[1:]:
            matches = [self._matching(folder, part) for folder in folders]
            answered = answered and None not in matches
            folders = [inner for some in matches for inner in some or ()][:MAX_PLACES]
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


def series_key(checkpoint: CheckpointPath) -> SeriesKey:
    """The series that a checkpoint belongs to: its folder, and its name with # for numbers."""
    return checkpoint.folder, series_of(checkpoint.name)


def _names(opened: Iterable[OpenCheckpointFile], key: SeriesKey) -> frozenset[str]:
    return frozenset(file.checkpoint.name for file in opened if series_key(file.checkpoint) == key)
