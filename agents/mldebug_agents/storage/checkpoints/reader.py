"""Finds the checkpoint series of all jobs and looks at each (a series: one folder, names that differ only in numbers).

Runs in a worker thread of its own.

Where a job writes checkpoints is found by the files that its processes have open for writing and, after a burst of writing,
by new files in the folder in which it works and in those that its command line names.

Only links below /proc/PID/fd are read here, which the kernel answers from memory; folders are listed by the reader child.
"""

import errno
import time
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from posixpath import basename, dirname, join
from typing import NamedTuple

import msgspec

from mldebug.core.model import Job
from mldebug.storage.checkpoints.model import Layout
from mldebug.storage.checkpoints.names import CheckpointPath, checkpoint_of, is_part, series_of
from mldebug_agents.jobs.job_folders import likely_folders
from mldebug_agents.storage.checkpoints.series_reader import (
    SeriesFiles,
    SeriesKey,
    SeriesLook,
    SeriesReader,
)
from mldebug_agents.system import procfs
from mldebug_agents.system.child.job_paths import OPERATOR, Rights
from mldebug_agents.system.host import Host
from mldebug_agents.system.process.proc_files import some_names
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import Unreadable

BUDGET = 0.25  # seconds of one look at all descriptors of one job
MAX_PROCESSES = 256  # of one job
MAX_FILES = 4096  # descriptors of one process
WRITING = ("w", "rw")


class OpenCheckpointFile(msgspec.Struct, frozen=True):
    """A file of a checkpoint that a process has open for writing."""

    pid: int
    path: str  # as the process sees it
    checkpoint: CheckpointPath


class OpenFileReader:
    """Looks at the open files of jobs; where there are very many, at a part of them in each call."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._turn: dict[str, int] = {}  # job -> the process that is next

    def look(self, job_id: str, pids: list[int]) -> tuple[OpenCheckpointFile, ...]:
        """The checkpoint files that these processes are writing. Processes for which no time was left come first at the next call."""
        until = time.monotonic() + BUDGET
        begin = self._turn.get(job_id, 0) % max(1, len(pids))
        found: list[OpenCheckpointFile] = []
        order = [*pids[begin:], *pids[:begin]][:MAX_PROCESSES]
        for number, pid in enumerate(order):
            if number and time.monotonic() > until:
                self._turn[job_id] = begin + number
                break
            found += self._of(pid)
        return tuple(found)

    def keep(self, jobs: Iterable[str]) -> None:
        """Forget what is remembered of all jobs but these."""
        kept = set(jobs)
        self._turn = {job: turn for job, turn in self._turn.items() if job in kept}

    def _of(self, pid: int) -> Iterator[OpenCheckpointFile]:
        for fd in self._numbers(pid):
            path = self._host.link(pid, f"fd/{fd}")
            if not procfs.is_stored(path) or not is_part(basename(path)):
                continue
            mode, _ = procfs.parse_fdinfo(self._host.text(pid, f"fdinfo/{fd}"))
            checkpoint = checkpoint_of(path)
            if checkpoint is not None and mode in WRITING:
                yield OpenCheckpointFile(pid, path, checkpoint)

    def _numbers(self, pid: int) -> list[str]:
        try:
            return sorted(some_names(f"{self._host.proc}/{pid}/fd", MAX_FILES))
        except OSError:
            return []


MAX_SERIES = 32  # of one job
MAX_PLACES = 32  # that one pattern may lead to
HINT_DEPTH, HINT_ENTRIES = 3, 4000
ROUND = 15.0  # seconds of one look at all jobs; who had no turn is first the next time
EARLY = 2.0  # seconds by which a file may be older than the job that wrote it


class JobRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The request to look at one job's checkpoints: its processes, its known series, and in `burst` whether it wrote much
    lately.
    """

    job: Job
    pids: tuple[int, ...]
    series: tuple[SeriesKey, ...] = ()
    burst: bool = False


class CheckpointRequest(msgspec.Struct, frozen=True, kw_only=True):
    """An order to look at the checkpoints of these jobs, and of the folders that the configuration names."""

    jobs: tuple[JobRequest, ...] = ()
    patterns: tuple[str, ...] = ()


class CheckpointNews(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of the checkpoint folders of all requested jobs in one round."""

    looks: tuple[SeriesLook, ...] = ()
    configured: frozenset[SeriesKey] = frozenset()  # what the patterns lead to now


class SeriesWork(NamedTuple):
    """One series to look at. `run`: the job that writes it, "" for a pattern of the configuration; `writing`: names of
    checkpoints that a process has open.
    """

    run: str
    key: SeriesKey
    files: SeriesFiles
    writing: frozenset[str] = frozenset()


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
        """Look once at all series, for about `ROUND` seconds at most; those without a turn come first the next time."""
        until = time.monotonic() + ROUND
        self._descriptors.keep(one.job.id for one in request.jobs)
        work: list[SeriesWork] = []
        for job in request.jobs:
            work += self._of_job(job, request)
        configured = {key: plain_part(pattern) for pattern in request.patterns for key in self._expand(pattern)}  # fmt: skip
        work += [SeriesWork("", key, self._by_operator(place)) for key, place in configured.items()]
        self._series = {(one.run, one.key): self._series.get((one.run, one.key)) or SeriesReader(one.key, self._layouts) for one in work}  # fmt: skip
        return CheckpointNews(
            looks=tuple(self._look(work, until)), configured=frozenset(configured)
        )

    def _look(self, work: list[SeriesWork], until: float) -> Iterator[SeriesLook]:
        begin = self._turn % max(1, len(work))
        for number, one in enumerate([*work[begin:], *work[:begin]]):
            if number and time.monotonic() > until:
                self._turn = begin + number
                return
            series = self._series[one.run, one.key]
            yield series.look(one.run, one.files, one.writing, self._host.clock())

    # --- where ---------------------------------------------------------------------------------------

    def _of_job(self, job: JobRequest, request: CheckpointRequest) -> Iterator[SeriesWork]:
        """What the job writes is looked at as its user sees it: from the root of one of its ranks, with that rank's rights."""
        opened = self._descriptors.look(job.job.id, list(job.pids))
        rank = next((one for one in job.job.ranks if self._host.brief(one.pid) is not None), None)
        if rank is None:
            return
        root, rights = self._host.root_of(rank.pid), self._host.rights.of(rank)
        learned = [file.checkpoint for file in opened]
        if job.burst:
            learned += self._new_files(job, root, rights, request)
        fresh = [series_key(checkpoint) for checkpoint in learned]
        keys = list(dict.fromkeys((*job.series, *fresh)))[:MAX_SERIES]
        for key in keys:
            files = SeriesFiles(self._reader, root, key[0], rights)
            yield SeriesWork(job.job.id, key, files, _names(opened, key))

    def _by_operator(self, place: str) -> SeriesFiles:
        return SeriesFiles(self._reader, self._host.root, place, OPERATOR)

    def _new_files(
        self, job: JobRequest, root: str, rights: Rights, request: CheckpointRequest
    ) -> Iterator[CheckpointPath]:
        """Checkpoint files that the job's user has written since it began, in folders that no other job of the user on this node may
        write to.

        Jobs of other users write other users' files, whatever folders they name.
        """
        alike = (one for one in request.jobs if one is not job and one.job.uid == job.job.uid)
        others = {it for other in alike for it in likely_folders(self._host, other.job)}
        for folder in likely_folders(self._host, job.job):
            if folder in others:
                continue
            listed = self._reader.list_folder(
                f"{root}{folder}", rights=rights, depth=HINT_DEPTH, most=HINT_ENTRIES
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
            files = self._by_operator(plain_part(pattern))
            matches = [self._matching(files, folder, part) for folder in folders]
            answered = answered and None not in matches
            folders = [inner for some in matches for inner in some or ()][:MAX_PLACES]
        found = [(folder, basename(pattern)) for folder in folders]
        before = self._expanded.get(pattern, [])
        self._expanded[pattern] = found if answered else list(dict.fromkeys((*found, *before)))
        return self._expanded[pattern]

    def _matching(self, files: SeriesFiles, folder: str, part: str) -> list[str] | None:
        if "*" not in part and "?" not in part:
            return [f"{folder}/{part}"]
        listed = files.list_folder(f"{folder}/", depth=1, most=HINT_ENTRIES)
        if isinstance(listed, Unreadable):
            return None if listed.errno not in (errno.ENOENT, errno.ENOTDIR) else []
        return [f"{folder}/{it.path}" for it in listed.entries if it.kind == "folder" and fnmatchcase(it.path, part)]  # fmt: skip


def plain_part(pattern: str) -> str:
    """The leading folders of a pattern that contain no `*` or `?`. They are the operator's words; what a wildcard leads to may
    be a job's.
    """
    parts = dirname(pattern).split("/")
    wild = (number for number, part in enumerate(parts) if "*" in part or "?" in part)
    return "/".join(parts[: next(wild, len(parts))])


def series_key(checkpoint: CheckpointPath) -> SeriesKey:
    """The series that a checkpoint belongs to: its folder, and its name with # for numbers."""
    return checkpoint.folder, series_of(checkpoint.name)


def _names(opened: Iterable[OpenCheckpointFile], key: SeriesKey) -> frozenset[str]:
    return frozenset(file.checkpoint.name for file in opened if series_key(file.checkpoint) == key)
