"""Finds where a job writes its charts: TensorBoard's event files, wandb's offline file, `metrics.csv`, JSON lines.

TensorBoard, Lightning and LLaMA-Factory open their files anew for each line, so open descriptors show nothing.
Instead the folders in which a job works, those on its command line or in a settings file on it, and those of its logs are
listed with the rights of the rank's user. Done only for jobs whose steps nothing else shows.

The Trainer's `trainer_state.json` is not read: it is written with each checkpoint, so seldom that the run would be watched less closely
than one that tells nothing.
"""

import re
from collections.abc import Iterable, Iterator

from mldebug.core.model import Job, RankIdentity
from mldebug.jobs.logs.charts.kinds import event_kind
from mldebug_agents.jobs.job_folders import likely_folders
from mldebug_agents.jobs.logs.locations import LogFile
from mldebug_agents.jobs.logs.output_folders import log_folders, settings_folders
from mldebug_agents.system.child.listing import ListedFile
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader, Unreadable

DEPTH = 5  # output_dir/runs/DATE_HOST/charts_of_one_tag/events…
MOST = 4000  # entries of one listing
MAX_FOLDERS = 3  # of each kind
MOST_FOLDERS = 6
MAX_FILES = 2
TIMEOUT = 1.5  # seconds for one listing
_WRITER = re.compile(r"events\.out\.tfevents\.\d+\.[^/]+\.(\d{1,10})\.\d+(?:\.v2)?$")
EARLY = 5.0  # seconds before the first rank's start in which a file may be its own


def find_event_files(
    host: Host, reader: Reader, job: Job, logs: Iterable[LogFile] = ()
) -> tuple[LogFile, ...]:
    """The newest chart files of the job's user that were written since its lowest rank on this node began, at most
    `MAX_FILES`. `logs`: the log files of the job that are known.
    """
    if not job.ranks:
        return ()
    rank = min(job.ranks, key=lambda one: one.rank)
    found: dict[int, tuple[float, LogFile]] = {}
    folders = (
        *likely_folders(host, job)[:MAX_FOLDERS],
        *settings_folders(host, reader, rank)[:MAX_FOLDERS],
        *log_folders(logs),
    )
    for folder in tuple(dict.fromkeys(folders))[:MOST_FOLDERS]:
        for file, place in _listed(host, reader, rank, folder):
            if _is_of(job, file) and file.mtime >= rank.started_at - EARLY and file.uid == rank.uid:
                found.setdefault(file.inode, (file.mtime, place))
    newest = sorted(found.values(), key=lambda one: (-one[0], one[1].target))
    return tuple(place for _, place in newest[:MAX_FILES])


def _is_of(job: Job, file: ListedFile) -> bool:
    """Not where TensorBoard's name for it has another process's number: two jobs may write into one folder."""
    written_by = _WRITER.search(file.path)
    pids = {pid for rank in job.ranks for pid in (rank.pid, rank.namespace_pid)}
    return written_by is None or int(written_by[1]) in pids


def _listed(
    host: Host, reader: Reader, rank: RankIdentity, folder: str
) -> Iterator[tuple[ListedFile, LogFile]]:
    rights = host.rights.of(rank)
    root = host.root_of(rank.pid)
    listing = reader.list_folder(
        f"{root}{folder}", rights=rights, depth=DEPTH, most=MOST, timeout=TIMEOUT
    )
    if isinstance(listing, Unreadable):
        return
    mount, fstype = host.mount_of(rank.pid, folder)
    for file in listing.entries:
        kind = event_kind(file.path.rpartition("/")[2]) if file.kind == "file" else ""
        if kind:
            yield (
                file,
                LogFile(
                    path=f"{root}{folder}/{file.path}",
                    target=f"{folder}/{file.path}",
                    rights=rights,
                    pid=rank.pid,
                    kind=kind,
                    inode=file.inode,
                    mount=mount,
                    fstype=fstype,
                    start_ticks=rank.start_ticks,
                ),
            )
