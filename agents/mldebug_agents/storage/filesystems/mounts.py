"""Which mounts jobs use: those of their open files, found by mount id, and those of folders that every rank needs, found by mount
table.
"""

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from mldebug.core.model import Job, RankIdentity
from mldebug.jobs.owners import owner_of
from mldebug_agents.system import procfs
from mldebug_agents.system.host import Host
from mldebug_agents.system.process.proc_files import read_link, some_names

NEEDED = ("/", "/tmp", "/dev/shm")  # of every rank  # noqa: S108 - it is looked at, not written
Key = tuple[str, str]  # of `Used`: device and folder
MOST = 400  # mounts of one look
MAX_FILES = 1024  # descriptors of one process
MAX_TABLE = (
    4 << 20
)  # bytes of the mounts in a namespace of somebody's own: containers have some thousand bytes
MAX_OWN = 64 << 20  # bytes of those in our own: each container of a node may be mounted there
MAX_OF_OWNER = (
    16 << 20
)  # bytes of what is read in one look because of one owner's jobs, after the first table
_NO_SPACE = frozenset(
    [
        "autofs",
        "binfmt_misc",
        "bpf",
        "cgroup",
        "cgroup2",
        "configfs",
        "cpuset",
        "debugfs",
        "devpts",
        "devtmpfs",
        "efivarfs",
        "fusectl",
        "hugetlbfs",
        "mqueue",
        "nsfs",
        "proc",
        "pstore",
        "rpc_pipefs",
        "securityfs",
        "selinuxfs",
        "sysfs",
        "tracefs",
    ]
)  # autofs: to touch it would mount something
IMAGES = frozenset(("squashfs", "iso9660", "erofs", "cramfs", "udf"))  # full by nature


class UsedMount(msgspec.Struct, kw_only=True):
    """A mount that jobs use, as its first user sees it; `path`: where the mount child finds it."""

    mount: procfs.Mount
    path: bytes
    ranks: set[int] = set()  # their pids
    owners: set[int] = set()  # their uids
    folders: tuple[str, ...] = ()  # configured folders that lie on it
    public: bool = (
        False  # everyone may see it: it is configured, or every process of the node has it
    )

    @property
    def key(self) -> Key:
        """Device and folder: the same for all mounts of one folder of a filesystem, in whichever container."""
        return self.mount.device, self.mount.root

    @property
    def uids(self) -> tuple[int, ...]:
        """The ids of the users who may see this mount; empty: everyone."""
        return () if self.public else tuple(sorted(self.owners))

    @property
    def name(self) -> str:
        """The mount point as printable text."""
        return printable_path(self.mount.point)

    @property
    def title(self) -> str:
        """The mount point with its server or device: "/data (nfs01:/data)"."""
        return f"{self.name} ({printable_path(self.mount.source) or self.mount.fstype})"


def printable_path(path: str) -> str:
    """A path as text; bytes that are no UTF-8 are replaced."""
    return os.fsencode(path).decode(errors="replace")


def used_mounts(
    host: Host,
    jobs: Sequence[Job],
    paths: Sequence[str],
    before: Mapping[int, Collection[Key]] = {},
    where: Mapping[str, int] = {},
    places: Mapping[str, Sequence[str]] = {},
    workers: Mapping[int, int] = {},
) -> dict[Key, UsedMount]:
    """The mounts that these jobs, and the paths in `paths`, use, each filesystem and folder once. Reads only /proc, never the filesystems.

    `before`: what each pid was found to use earlier; it stays in use while it is mounted, as a checkpoint is open for seconds only.
    `where`: mount ids of `paths` where they are known; others are found by name.
    `places`: by job, the folders of its checkpoints and its log, as its ranks see them.
    `workers`: by pid of a rank the process of its own whose open files count as well: data are read by the workers of a DataLoader.
    """
    found: dict[Key, UsedMount] = {}
    tables = MountTables(host)
    for job in jobs:
        for rank in job.ranks:
            table = tables.of(rank.pid, owner_of(job))
            named = places.get(job.id, ())
            pids = [pid for pid in (rank.pid, workers.get(rank.pid)) if pid]
            for mount in _of_rank(host, pids, table, before.get(rank.pid, ()), named):
                _note(found, mount, host.root_of(rank.pid), rank)
    own = mount_table(host, "self")
    by_id = {mount.id: mount for mount in own}
    for path in (*NEEDED, *paths):
        holder = by_id.get(where.get(path, 0)) or procfs.mount_of(own, f"{host.root}{path}")
        if holder and path in paths:
            _note(found, holder, "", None)
        if holder and (used := found.get((holder.device, holder.root))):
            used.public = True
            used.folders += (path,) if path in paths else ()
    return found


class MountTables:
    """The mounts of processes in one look: of each namespace and root once, and only so much because of one owner."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._known: dict[str, tuple[procfs.Mount, ...]] = {}
        self._read: dict[object, int] = {}  # bytes, by owner

    def of(self, pid: int, owner: object) -> tuple[procfs.Mount, ...]:
        """The mounts that a process sees; empty where they are not known."""
        space = self._host.link(pid, "ns/mnt") + self._host.link(pid, "root") or str(pid)
        if space not in self._known and self._read.get(owner, 0) < MAX_OF_OWNER:
            data = _table(self._host, str(pid))
            self._known[space] = _parsed(data)
            self._read[owner] = self._read.get(owner, 0) + len(data)
        return self._known.get(space, ())


def mount_table(host: Host, pid: str) -> tuple[procfs.Mount, ...]:
    """All mounts that a process sees; names that are no UTF-8 have surrogates. Empty where the process is gone, or has too many: a part of
    them would tell a wrong mount for what lies on another.
    """
    return _parsed(_table(host, pid))


def _table(host: Host, pid: str) -> bytes:
    """The text of its mounts, b"" for too many. Any user may make 100,000 in an own namespace, with names of 4 KiB each."""
    most = MAX_OWN if pid == "self" or _is_the_node_s(host, int(pid)) else MAX_TABLE
    with contextlib.suppress(OSError), open(f"{host.proc}/{pid}/mountinfo", "rb") as file:
        data = file.read(most + 1)
        return data if len(data) <= most else b""
    return b""


def _is_the_node_s(host: Host, pid: int) -> bool:
    """Whether a process sees the mounts that the agent sees, or the node's first process: there only root may mount what it likes."""
    space = host.link(pid, "ns/mnt")
    return bool(space) and space in (host.link(1, "ns/mnt"), read_link(f"{host.proc}/self/ns/mnt"))


def _parsed(data: bytes) -> tuple[procfs.Mount, ...]:
    return procfs.parse_mountinfo(data.decode(errors="surrogateescape"))


def used_by(found: Mapping[Key, UsedMount]) -> dict[int, set[Key]]:
    """Return by pid the keys (`UsedMount.key`) of the mounts that the process uses."""
    users: dict[int, set[Key]] = {}
    for key, used in found.items():
        for pid in used.ranks:
            users.setdefault(pid, set()).add(key)
    return users


def hidden_ranks(host: Host, job: Job) -> list[int]:
    """Pids of the ranks whose open files the agent's user may not see."""
    return [rank.pid for rank in job.ranks if _denied(f"{host.proc}/{rank.pid}/fdinfo")]


def _denied(folder: str) -> bool:
    try:
        os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
    except PermissionError:
        return True  # the monitor tells how many there are
    except OSError:
        return False  # it has ended
    return False


def _of_rank(
    host: Host,
    pids: Sequence[int],
    table: tuple[procfs.Mount, ...],
    before: Collection[Key],
    named: Sequence[str],
) -> Iterator[procfs.Mount]:
    yield from (mount for mount in table if (mount.device, mount.root) in before)
    by_id = {mount.id: mount for mount in table}
    for path in (*NEEDED, host.link(pids[0], "cwd"), *named):
        if path.startswith("/") and (mount := procfs.mount_of(table, path)):
            yield mount
    for number in {number for pid in pids for number in _open_on(host, pid)}:
        if number in by_id:
            yield by_id[number]


def _open_on(host: Host, pid: int) -> set[int]:
    """The mount ids of all open files."""
    folder = f"{host.proc}/{pid}/fdinfo"
    numbers: list[str] = []
    with contextlib.suppress(OSError):  # the process has ended, or is not this user's
        numbers = some_names(folder, MAX_FILES)
    return {procfs.parse_fdinfo(host.text(pid, f"fdinfo/{fd}"))[1] for fd in numbers}


def _note(
    found: dict[Key, UsedMount], mount: procfs.Mount, root: str, rank: RankIdentity | None
) -> None:
    if mount.fstype in _NO_SPACE or len(found) >= MOST:
        return
    path = os.fsencode(root + mount.point)
    fresh = UsedMount(mount=mount, path=path, ranks=set(), owners=set())
    used = found.setdefault((mount.device, mount.root), fresh)
    if rank is not None:
        used.ranks.add(rank.pid)
        used.owners.add(rank.uid)
