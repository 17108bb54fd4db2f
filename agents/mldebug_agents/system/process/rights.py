"""With whose rights the paths that a process names are opened: read from /proc while it lives, and
remembered for when it has ended.

Nothing that a job names is opened with the agent's own rights (`child/job_paths.py`), so code
that reads a job's file asks here first. A process that its own user may not look into (its effective
user is not its real one, or it is not dumpable) gives no rights to anybody.
"""

import fcntl
import os
import struct
import threading
from typing import NamedTuple, Protocol

from mldebug.core.model import RankIdentity
from mldebug_agents.system.child.job_paths import NO_RIGHTS, Rights
from mldebug_agents.system.procfs import Mount, ProcessStatus, Stat

MAX_KNOWN = 8192  # processes
MAX_GROUPS = 4096  # of one process: all are sent with each read. Who has more has no rights, since a group may also deny
_PARENT, _OWNER = 0xB702, 0xB704  # NS_GET_PARENT, NS_GET_OWNER_UID of ioctl_ns(2)
_OURS = "/proc/self/ns/user"
_OUR_ROOT = "/proc/self/root"  # before a path of a job, so that no other /proc/PID/root can be the one it begins at
_READS_ALL = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH

Key = tuple[int, int]  # pid, start


class RootPlace(NamedTuple):
    """The root folder of a process: its mount namespace, its path there, and whether it is the agent's own root."""

    namespace: str = ""
    name: str = ""
    ours: bool = False


class RightsSource(Protocol):
    """The part of `Host` that is used here."""

    root: str
    proc: str

    def brief(self, pid: int) -> Stat | None: ...
    def status(self, pid: int) -> ProcessStatus: ...
    def link(self, pid: int, name: str) -> str: ...
    def mount_at(self, pid: int, path: str) -> Mount | None: ...
    def root_of(self, pid: int) -> str: ...


class RankRights:
    """Finds the rights of processes, and remembers them. There is one for each `Host`. Any thread may ask."""

    def __init__(self, host: RightsSource) -> None:
        self._host = host
        self._lock = threading.Lock()
        self._known: dict[Key, tuple[Rights, RootPlace]] = {}
        self._real = os.path.ismount(host.proc)  # a copy of /proc in a folder has other owners

    def of(self, rank: RankIdentity) -> Rights:
        """The rights of a rank, also after its end.

        `NO_RIGHTS` (which open nothing) where they were never read, or another user's process has
        its pid.
        """
        found = self.of_process(rank.pid, rank.start_ticks)
        return found if found.uid == rank.uid else NO_RIGHTS

    def of_process(self, pid: int, start_ticks: int) -> Rights:
        """The rights of a process, also after its end.

        `start_ticks`: its start in clock ticks since boot; 0: not known.
        """
        status, stat = self._host.status(pid), self._host.brief(pid)
        lives = stat is not None and start_ticks in (0, stat.start_ticks) and stat.state not in "ZX"
        if not lives or not status.uids:
            with self._lock:
                return self._known.get((pid, start_ticks), _UNKNOWN)[0]
        rights = (
            NO_RIGHTS if stat is None or self.closed(pid, status) else self._rights(stat, status)
        )
        self._remember((pid, start_ticks), rights)
        return rights

    def now(self, pid: int) -> Rights:
        """The rights of whichever process has this pid now."""
        stat = self._host.brief(pid)
        return NO_RIGHTS if stat is None else self.of_process(pid, stat.start_ticks)

    def closed(self, pid: int, status: ProcessStatus | None = None) -> bool:
        """Whether even the process's own user may not look into it: it has changed its user or
        group, or is not dumpable. So is one whose users cannot be read.
        """
        status = status or self._host.status(pid)
        if not status.uids:
            return self._real and os.path.exists(f"{self._host.proc}/{pid}")
        if len(set(status.uids)) > 1 or len(set(status.gids)) > 1:
            return True
        try:
            return self._real and os.stat(f"{self._host.proc}/{pid}/stat").st_uid != status.uid
        except OSError:
            return False

    def roots(self, rank: RankIdentity) -> list[str]:
        """The folders below which the paths of a rank are found: its root while it lives;
        afterwards the root of its launcher, or of this agent, if it was the same.
        """
        stat = self._host.brief(rank.pid)
        if stat is not None and stat.start_ticks == rank.start_ticks and stat.state not in "ZX":
            return [self._host.root_of(rank.pid)]
        with self._lock:
            _, place = self._known.get((rank.pid, rank.start_ticks), _UNKNOWN)
        launcher = rank.launcher_pid
        through = [launcher] if launcher and place.namespace and self._place(launcher)[:2] == place[:2] else []  # fmt: skip
        ours = [self._host.root or _OUR_ROOT] if place.ours else []
        return [*map(self._host.root_of, through), *ours]

    def _rights(self, stat: Stat, status: ProcessStatus) -> Rights:
        """Root has the right to every file only with the capability to, in the user namespace that the files' owners are of."""
        everything = (
            status.uid == 0
            and bool(status.capabilities & _READS_ALL)
            and self._same(stat.pid, "ns/user")
        )
        if len(status.groups) > MAX_GROUPS:
            return NO_RIGHTS
        gid = status.gids[0] if status.gids else -1
        return Rights(
            *(status.uid, gid, status.groups, stat.pid, everything),
            start=stat.start_ticks,
            root=self._host.root,
        )

    def _remember(self, key: Key, rights: Rights) -> None:
        with self._lock:
            known = self._known.pop(key, None)
        place = known[1] if known else self._place(key[0])
        with self._lock:
            self._known[key] = rights, place
            while len(self._known) > MAX_KNOWN:
                del self._known[next(iter(self._known))]

    def _place(self, pid: int) -> RootPlace:
        """Ours: in the same mount namespace, or (the agent's unit has one of its own) the same folder of the same device as root."""
        namespace, name = self._host.link(pid, "ns/mnt"), self._host.link(pid, "root")
        ours = name == "/" and self._same(pid, "ns/mnt")
        if not ours and name == "/":
            mine, its = (self._host.mount_at(one, "/") for one in (os.getpid(), pid))
            ours = (
                mine is not None
                and its is not None
                and (mine.device, mine.root) == (its.device, its.root)
            )
        return RootPlace(namespace, name, ours)

    def _same(self, pid: int, namespace: str) -> bool:
        return (self._host.link(pid, namespace) or "-") == self._host.link(os.getpid(), namespace)


_UNKNOWN = NO_RIGHTS, RootPlace()


def namespace_owner(path: str) -> int | None:
    """The uid of the user who made the user namespace at `path`; where namespaces are nested, of the outermost one below the agent's.

    The uid is one of the agent's user namespace. None for that namespace itself, for one that root made, and where it cannot be
    read.
    """
    owner = None
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        while not os.path.samestat(os.fstat(handle), os.stat(_OURS)):
            (owner,) = struct.unpack("=I", fcntl.ioctl(handle, _OWNER, bytes(4)))
            parent = fcntl.ioctl(handle, _PARENT)
            os.close(handle)
            handle = parent
    except OSError:  # ours lies in another one
        pass
    finally:
        os.close(handle)
    return owner or None
