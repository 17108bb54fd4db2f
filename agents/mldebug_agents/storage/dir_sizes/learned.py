"""Which directories are watched though nobody configured them: those that runs of this node write to, within bounds.

Read from /proc alone: no path is touched here. Watched is only what lies on a local filesystem, belongs to a user of the run, and what the
agent sees at the same place as the ranks do; of the others it is said why they are not.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mldebug.core.model import Gap, Job
from mldebug.storage.usage.tally import is_below, without_nested
from mldebug_agents.storage.dir_sizes.messages import DirSizeRequest
from mldebug_agents.storage.filesystems.mounts import mount_table
from mldebug_agents.system.host import Host
from mldebug_agents.system.procfs import Mount, mount_of

MOST = 8  # directories of the node
OF_RUN = 3
INODES, FOLDERS, DEPTH = 100_000, 2_000, 16
LOCAL = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "jfs", "zfs", "bcachefs", "tmpfs", "overlay"))  # fmt: skip
TOO_MANY = f"{MOST} directories are watched without configuration at most"
WAY_OUT = "trees.paths has it counted all the same"
_SHARED = (
    "",
    "var",
    "dev",
    "run",
    "home",
    "users",
)  # a name directly below these is more than one run's


class LearnedFolder(NamedTuple):
    """A directory that a run writes to. `uids`: who may see its size; `why`: the reason for which it is not watched, "" for none."""

    path: str
    job: str
    uids: tuple[int, ...]
    pid: int  # of a rank that writes there
    why: str = ""

    @property
    def gap(self) -> Gap:
        """Why it is not watched, for the run's owner."""
        return Gap(what=f"the size of {self.path}", reason=self.why, way_out=WAY_OUT, pid=self.pid)


class _Views(NamedTuple):
    """The mounts that the agent sees below `root`, and those that the ranks of a job see."""

    own: Sequence[Mount]
    theirs: Sequence[Mount]
    root: str


def learned_folders(
    host: Host, jobs: Sequence[Job], writes: Mapping[str, Sequence[str]], known: Sequence[str]
) -> list[LearnedFolder]:
    """The directories to which these jobs write, each once; `MOST` of them without a reason against it.

    `writes`: by job, the folders to which it writes, as its ranks see them. `known`: directories that are configured.
    """
    own = mount_table(host, "self")
    found: list[LearnedFolder] = []
    for job in jobs:
        theirs = mount_table(host, str(job.ranks[0].pid)) if job.ranks else ()
        views = _Views(own, theirs, host.root)
        for one in _of_job(views, job, writes.get(job.id, ())) if job.ranks else ():
            if any(is_below(one.path, other) for other in known) or _is_covered(one, found):
                continue
            full = not one.why and sum(not other.why for other in found) >= MOST
            found.append(one._replace(why=TOO_MANY) if full else one)
    return found


def _of_job(views: _Views, job: Job, paths: Sequence[str]) -> list[LearnedFolder]:
    """Its directories, at most `OF_RUN`: those that can be watched before the others, none within another one."""
    judged = [_judged(views, job, path) for path in dict.fromkeys(paths)]
    outer = set(without_nested(one.path for one in judged if not one.why))
    return sorted((one for one in judged if one.why or one.path in outer), key=lambda one: bool(one.why))[:OF_RUN]  # fmt: skip


def request_for(one: LearnedFolder, root: str, rescan: float, verify: float) -> DirSizeRequest:
    """The request to watch a learned directory within the bounds. `root`: of the host; the others as configured."""
    return DirSizeRequest(
        path=one.path, root=root, rescan=rescan, verify=verify, max_inodes=INODES,
        max_folders=FOLDERS, max_depth=DEPTH, links=False, owners=one.uids,
    )  # fmt: skip


def _is_covered(one: LearnedFolder, found: Sequence[LearnedFolder]) -> bool:
    return any(is_below(one.path, other.path) for other in found if one.why or not other.why)


def _judged(views: _Views, job: Job, path: str) -> LearnedFolder:
    pid = job.ranks[0].pid
    uids = tuple(sorted({job.uid, *(rank.uid for rank in job.ranks)}))
    theirs = mount_of(views.theirs, path)
    ours = mount_of(views.own, f"{views.root}{path}")
    why = ""
    if path.strip("/").rpartition("/")[0] in _SHARED:
        why = "more than this run lies there"
    elif theirs is None or ours is None or not _is_same(theirs, ours, path, views.root):
        why = "the agent does not see it where the ranks do"
    elif ours.fstype not in LOCAL:
        why = f"it lies on {ours.fstype}: only local filesystems are watched without configuration"
    return LearnedFolder(path, job.id, uids, pid, why)


def _is_same(theirs: Mount, ours: Mount, path: str, root: str) -> bool:
    """Whether a path means the same folder to the ranks and, below `root`, to the agent."""
    inner = theirs.root.rstrip("/") + path.removeprefix(theirs.point.rstrip("/"))
    outer = ours.root.rstrip("/") + f"{root}{path}".removeprefix(ours.point.rstrip("/"))
    return theirs.device == ours.device and inner == outer
