"""Runs that are known on this node, running or recorded, and which checkpoints they named or may have resumed from."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from posixpath import join, normpath

import msgspec

from mldebug.core.errors import MldebugError
from mldebug.core.model import Job
from mldebug.core.redact import clean
from mldebug.jobs.run_records.model import RunRecord
from mldebug.status.snapshot import Snapshot
from mldebug.storage.checkpoints.history import KnownCheckpoint
from mldebug.storage.checkpoints.retention import resumed_from
from mldebug.storage.usage.tally import is_below
from mldebug_agents.jobs.job_folders import likely_folders
from mldebug_agents.system.host import Host
from mldebug_agents.web.client import record_of_run, recorded_runs

MAX_RECORDS = 64
MAX_WORDS = 4096  # of one command line


class KnownRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run, the folders that it works with, and every path that its command line names. `started_at`: unix, 0 where not known."""

    title: str
    started_at: float
    folders: tuple[str, ...]
    named: tuple[str, ...]
    writes: tuple[str, ...] = ()  # folders where the agent saw its checkpoints


def running(host: Host, jobs: Sequence[Job], snapshot: Snapshot | None) -> Iterator[KnownRun]:
    """The runs on this node, with the paths that they name and the folders to which they write checkpoints."""
    saved = {run.id: [one.folder for one in run.checkpoint_series] for run in snapshot.runs} if snapshot else {}  # fmt: skip
    for job in jobs:
        named: list[str] = []
        for rank in job.ranks[:1]:
            named += _paths(host.link(rank.pid, "cwd"), rank.argv)
        writes = tuple(saved.get(job.id, ()))
        yield KnownRun(
            title=clean(f"{job.name} {job.id}", 60),
            started_at=job.started_at or 0.0,
            folders=(*likely_folders(host, job), *writes),
            named=tuple(named),
            writes=writes,
        )


def recorded(state_dir: Path) -> tuple[tuple[KnownRun, ...], str]:
    """The runs that the agent has recorded and this user may see, and why there are none; "" where it answered."""
    try:
        runs = recorded_runs(state_dir)[:MAX_RECORDS]
        return tuple(_of_record(record_of_run(state_dir, one.run)) for one in runs), ""
    except MldebugError as error:
        return (), str(error)


def _of_record(record: RunRecord) -> KnownRun:
    named = tuple(_paths(record.directory, record.arguments))
    return KnownRun(
        title=clean(f"{record.name} {record.run}", 60),
        started_at=record.started_at,
        folders=named,
        named=named,
    )


def processes(host: Host, contents: Mapping[int, bytes]) -> KnownRun:
    """The paths in the command lines of all processes of this node, since an evaluation or a server may have a checkpoint loaded.

    `contents`: by pid, the content of /proc/PID/cmdline.
    """
    named: list[str] = []
    for pid, data in contents.items():
        words = [os.fsdecode(one) for one in data.split(b"\0")]
        if any("/" in one for one in words[1:]):
            named += _paths(host.link(pid, "cwd"), words)
    return KnownRun(title="a process", started_at=0.0, folders=(), named=tuple(dict.fromkeys(named)))  # fmt: skip


def _paths(folder: str, words: Sequence[str]) -> Iterator[str]:
    """Every word of a command line, and every value of `--name=value`, that may be a path, made whole."""
    for word in words[:MAX_WORDS]:
        path = word.rpartition("=")[2]
        if path and not path.startswith("-") and "\0" not in path and len(path) < 4096:
            yield normpath(join(folder or "/", path))


def needed(
    checkpoints: Sequence[KnownCheckpoint],
    folder: str,
    runs: Iterable[KnownRun],
    links: Iterable[str],
) -> dict[str, str]:
    """The checkpoints of one series that must stay, and why: named by a command line, led to by a link, or what a run may have
    resumed from.
    """
    found: dict[str, str] = {}
    paths = {join(folder, one.name): one.name for one in checkpoints}
    for run in runs:
        for path, name in paths.items():
            if any(is_below(one, path) for one in run.named):
                found.setdefault(name, f"named by {run.title}")
        here = any(is_below(folder, one) for one in run.folders if one.count("/") > 1)
        if here and run.started_at and (one := resumed_from(checkpoints, run.started_at)):
            found.setdefault(one.name, f"{run.title} may have resumed from it")
    for target in links:
        for path, name in paths.items():
            if is_below(target, path):
                found.setdefault(name, "a link leads to it")
    return found
