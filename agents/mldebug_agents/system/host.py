"""Direct reads of this node's /proc, below a folder that can be chosen. Nothing here raises because a process has gone.

Only files that the kernel answers from memory are read, and what a process may hold up among them
in threads that can be left behind (`held_reads`). What a job can make hang (`environ`, `cmdline`,
`maps`, any path that a descriptor points to) goes through the reader child (see `Paths`).
"""

import errno
import math
import os
import re
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeVar

from mldebug.core.model import ProcessState
from mldebug_agents.system import procfs
from mldebug_agents.system.process.containers import outer_namespace
from mldebug_agents.system.process.details import MAX_FILES, read_process
from mldebug_agents.system.process.held_reads import HeldReads, process_owner
from mldebug_agents.system.process.proc_files import (
    MAX_BYTES,
    first_numbers,
    numbers_in,
    read_link,
    read_short,
    read_text,
    some_names,
)
from mldebug_agents.system.process.read_costs import ReadCosts
from mldebug_agents.system.process.rights import RankRights, namespace_owner
from mldebug_agents.system.procfs import Mount, ProcessStatus, Stat

JUMP = 2.0  # seconds by which the wall clock was set; less is the slewing of a time service
_GPU = re.compile(r"/dev/nvidia(\d{1,4})$")
_GONE = (errno.ENOENT, errno.ESRCH, errno.ENODEV)
MAX_DESCRIPTORS = 16_384
"""Of one process: a user may have a million, and who lists or follows them all takes seconds for each look."""
_AS_LONG_AS_IT_LIKES = re.compile(r"(?:task/\d+/)?(?:status|fdinfo/\d+)")
_NEVER_HELD = frozenset(
    ["status", "cgroup", "mountinfo"]
)  # files of a process that it cannot hold up


MAX_STATUS = 1 << 17  # characters: with 4,096 groups it has a third
_NOBODYS = ProcessStatus(uid=-1)
T = TypeVar("T")


class Failure(Protocol):
    """Why a path could not be read; `stuck`: it did not answer in time."""

    @property
    def reason(self) -> str:
        """The reason as a phrase, like "permission denied"."""

    @property
    def stuck(self) -> bool:
        """Whether the read did not return in time."""

    @property
    def errno(self) -> int | None:
        """The kernel's error number; None where it gave none."""


class Paths(Protocol):
    """The part of `Reader` for /proc files that may block."""

    def read_many(
        self, paths: Sequence[str], *, max_bytes: int, timeout: float = 2.0
    ) -> Mapping[str, bytes | Failure]:
        """Read the first `max_bytes` of each path. Every path has an entry: its data, or the failure."""


class Host:
    """Reads /proc of one node.

    `root`: the folder that contains `proc` and `etc`; `clock`: unix time; `steady`: monotonic
    seconds.
    """

    def __init__(
        self,
        root: str = "/",
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.root = root.rstrip("/")
        self.clock = clock
        self.proc = f"{self.root}/proc"
        self._steady = steady
        self._boot_time = self._offset = -math.inf  # as if the clock had just been set
        self._users: dict[int, str] | None = None
        self._briefs: tuple[float, dict[int, Stat]] = (-math.inf, {})
        self._stat_texts: dict[int, tuple[bytes, Stat]] = {}  # of the last search
        self._reads = HeldReads(self.proc)
        self._costs = ReadCosts(self.belongs_to, steady)
        self.rights = RankRights(self)

    # --- all processes -----------------------------------------------------------------------------

    def pids(self) -> list[int]:
        """The pids of all processes, in ascending order."""
        return numbers_in(self.proc)

    def brief(self, pid: int) -> Stat | None:
        """What /proc/PID/stat says of a process, in one cheap read; None where it is gone.

        What it said last of one that holds the read up.
        """
        known = self._stat_texts.get(pid)
        path, last = f"{self.proc}/{pid}/stat", known[1] if known else None
        return self._reads.one(pid, lambda: procfs.parse_stat(read_text(path)), last)

    def briefs(self, unread: Collection[int] = frozenset()) -> dict[int, Stat]:
        """What /proc/PID/stat says of every process, by pid; of one that holds the read up what it said last.

        `unread`: pids of which the same is good enough, where they are still there.

        A process of which it says the same as the last time has the same object: thousands that only
        sleep are neither parsed nor compared again.
        """
        began, before = self._steady(), self._stat_texts
        texts: dict[int, tuple[bytes, Stat]] = {}
        pids = self.pids()
        unknown = [pid for pid in pids if pid not in unread or pid not in before]
        found_texts = self._reads.many(unknown, lambda pid: read_short(f"{self.proc}/{pid}/stat"))
        for pid in pids:
            known, text = before.get(pid), found_texts.get(pid)
            if known is not None and text in (None, known[0]):
                texts[pid] = known
            elif text is None:
                continue
            elif (stat := procfs.parse_stat(text.decode(errors="replace"))) is not None:
                texts[pid] = text, stat
        found = {pid: stat for pid, (_, stat) in texts.items()}
        self._stat_texts = texts
        self._briefs = began, found  # one word for both: other threads may ask
        return found

    def recent_briefs(self, age: float) -> dict[int, Stat]:
        """The last result of `briefs` if it is at most `age` seconds old, else a new one, because
        reading all processes is expensive.
        """
        began, found = self._briefs
        return dict(found) if self._steady() - began <= age else self.briefs()

    def children(self, age: float = 0.0) -> dict[int, list[int]]:
        """Pids of children by pid of their parent, in ascending order. The answer may be `age` seconds old."""
        family: dict[int, list[int]] = defaultdict(list)
        for pid, brief in self.recent_briefs(age).items():
            family[brief.ppid].append(pid)
        return dict(family)

    # --- the node ----------------------------------------------------------------------------------

    def boot_time(self) -> float:
        """Unix time at which the kernel started, by the wall clock as it is set now; 0.0 if unknown.

        It is read once, because the kernel's answer drifts, and again when the wall clock was set.
        """
        offset = self.clock() - self._steady()
        if abs(offset - self._offset) > JUMP:
            lines = read_text(f"{self.proc}/stat").splitlines()
            words = next((line.split() for line in lines if line.startswith("btime ")), [])
            self._offset, self._boot_time = offset, float(words[1]) if len(words) == 2 else 0.0
        return self._boot_time

    def boot_id(self) -> str:
        """An id that changes with each boot; "" where it cannot be read."""
        return read_text(f"{self.proc}/sys/kernel/random/boot_id").strip()

    def started_at(self, start_ticks: int) -> float:
        """Unix time of a start given in clock ticks since boot."""
        return self.boot_time() + start_ticks / procfs.TICKS

    def user(self, uid: int) -> str:
        """The user's name from /etc/passwd, else the number as text.

        Directory services (LDAP) are not asked, since they could block.
        """
        if self._users is None:
            rows = [line.split(":") for line in read_text(f"{self.root}/etc/passwd").splitlines()]
            self._users = {
                int(row[2]): row[0] for row in reversed(rows) if len(row) > 2 and row[2].isdecimal()
            }
        return self._users.get(uid, str(uid))

    # --- one process -------------------------------------------------------------------------------

    def at_once(self, pid: int, read: Callable[[], T]) -> T:
        """What `read` returns, which may ask this host several times for one process: its reads are handed to another thread
        together, which is most of what each of them costs.

        `read` changes nothing. Where the process holds one of its reads up, it is called again, and gets at once what stands for
        what cannot be read.
        """
        found = self._reads.many((pid,), lambda _: read())
        return found[pid] if pid in found else read()

    def text(self, pid: int, name: str) -> str:
        """The text of /proc/PID/NAME; "" where the process is gone, holds it up, it may not be read, or reading its owner's has cost too much."""
        path = f"{self.proc}/{pid}/{name}"
        if name.rpartition("/")[2] in _NEVER_HELD:
            return self._text(pid, name, path)
        return self._reads.one(pid, lambda: self._text(pid, name, path), "")

    def _text(self, pid: int, name: str, path: str) -> str:
        if _AS_LONG_AS_IT_LIKES.fullmatch(name):
            return self._costs.read(pid, lambda: read_text(path))
        return read_text(path)

    def texts(self, pids: Collection[int], name: str) -> dict[int, str]:
        """The text of /proc/PID/NAME (4 KiB at most) of each of these processes, as `text` gives it. Those are left out that hold it up."""
        found = self._reads.many(pids, lambda pid: read_short(f"{self.proc}/{pid}/{name}"))
        return {pid: text.decode(errors="replace") for pid, text in found.items()}

    def self_text(self, name: str) -> str:
        """The text of /proc/self/NAME, about this process."""
        return read_text(f"{self.proc}/self/{name}")

    def node_text(self, name: str, most: int = MAX_BYTES) -> str:
        """The text of /proc/NAME, about the node, of at most so many bytes."""
        return read_text(f"{self.proc}/{name}", most)

    def kernel_text(self, path: str) -> str:
        """The text of a file below /sys, by its full path; "" where it does not exist, or may not be read."""
        return read_text(path)

    def denied(self, path: str) -> str:
        """Why a file below /sys that exists cannot be opened, like "Permission denied"; "" where it
        can, or does not exist.
        """
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            return "" if error.errno in _GONE else error.strerror or str(error)
        return ""

    def link(self, pid: int, name: str) -> str:
        """The target of the link /proc/PID/NAME (exe, ns/net); "" where the process is gone, holds it up, or it may not be read."""
        if pid == os.getpid():  # which holds up nothing of its own
            return read_link(f"{self.proc}/{pid}/{name}")
        return self._reads.one(pid, lambda: read_link(f"{self.proc}/{pid}/{name}"), "")

    def writes_to(self, pid: int, fd: int | str) -> bool:
        """Whether a descriptor is open for writing, by the mode of its link (a third of the cost of `fdinfo`).

        True where that cannot be read.
        """
        try:
            mode = os.lstat(f"{self.proc}/{pid}/fd/{fd}").st_mode
        except OSError:
            return True
        return not stat.S_ISLNK(mode) or bool(mode & stat.S_IWUSR)

    def reads_from(self, pid: int, fd: int | str) -> bool:
        """Whether a descriptor is open for reading, by the mode of its link; True where that cannot be read."""
        try:
            mode = os.lstat(f"{self.proc}/{pid}/fd/{fd}").st_mode
        except OSError:
            return True
        return not stat.S_ISLNK(mode) or bool(mode & stat.S_IRUSR)

    def open_names(self, pid: int) -> frozenset[str]:
        """The kernel's names of all files that a process has open. That of a deleted file ends in ` (deleted)`."""
        names = lambda: frozenset(read_link(f"{self.proc}/{pid}/fd/{fd}") for fd in self.descriptors(pid))  # fmt: skip
        return self._reads.one(pid, names, frozenset())

    def descriptors(self, pid: int) -> list[int]:
        """The first `MAX_DESCRIPTORS` descriptors that a process has open; empty where it is gone, or they may not be read."""
        return first_numbers(f"{self.proc}/{pid}/fd", MAX_DESCRIPTORS)

    def open_gpus(self, pid: int) -> tuple[int, ...] | None:
        """The numbers N of the /dev/nvidiaN that a process has open, sorted. None where its files cannot be listed, because it has
        ended or is another user's.
        """
        try:
            names = some_names(f"{self.proc}/{pid}/fd", MAX_FILES)
        except OSError:
            return None  # the caller says which rank's GPU is not known
        folder = f"{self.proc}/{pid}/fd"
        links = self._reads.one(
            pid, lambda: [read_link(f"{folder}/{name}") for name in names], None
        )
        if links is None:
            return None
        return tuple(sorted({int(match[1]) for match in map(_GPU.match, links) if match}))

    def status(self, pid: int) -> ProcessStatus:
        """What /proc/PID/status says of a process; of one that is gone, or cannot be read, defaults, and that it is nobody's."""
        text = self.text(pid, "status")
        return procfs.parse_status(text) if 0 < len(text) < MAX_STATUS else _NOBODYS

    def owner(self, pid: int) -> int | None:
        """The uid of the user who made the user namespace of a process; None where that is our own
        namespace, or root made it, or it cannot be read.

        Within such a namespace one user may have 65,536 uids (/etc/subuid).
        """
        its, ours = self.link(pid, "ns/user"), self.link(os.getpid(), "ns/user")
        if not its or not ours or its == ours:
            return None
        return self._reads.one(pid, lambda: namespace_owner(f"{self.proc}/{pid}/ns/user"), None)

    def belongs_to(self, pid: int) -> tuple[int, str]:
        """Whose process it is, by what no process can hold up: its user, and the pod or container that it is in; (-1, "") where it is gone."""
        return process_owner(f"{self.proc}/{pid}") or (-1, "")

    def pid_namespace(self, pid: int) -> str:
        """The outermost process namespace below our own in which a process is, its innermost one where that cannot be told; "" for our
        own, or where none can be read.
        """
        its, ours = self.link(pid, "ns/pid"), self.link(os.getpid(), "ns/pid")
        if not its or not ours or its == ours:
            return ""
        return self._reads.one(
            pid, lambda: outer_namespace(f"{self.proc}/{pid}/ns/pid") or its, its
        )

    def root_of(self, pid: int) -> str:
        """The folder that is `/` for this process (/proc/PID/root).

        What lies below it may hang, so only the reader child opens it.
        """
        return f"{self.proc}/{pid}/root"

    def mount_of(self, pid: int, path: str) -> tuple[str, str]:
        """(mount point, file system type) of a path as that process sees it, ("", "") if unknown."""
        mount = self.mount_at(pid, path)
        return (mount.point, mount.fstype) if mount else ("", "")

    def mount_at(self, pid: int, path: str) -> Mount | None:
        """The mount of a path as that process sees it, None if unknown."""
        return procfs.mount_of(procfs.parse_mountinfo(self.text(pid, "mountinfo")), path)

    def process_state(
        self, pid: int, *, threads: bool = True, files: bool = False, kernel_stacks: bool = False
    ) -> ProcessState | None:
        """State, threads (with their `kernel_stacks`) and open files of a process from /proc; None where it is gone,
        or holds the reads up.

        Fields that this user may not read keep their defaults. At most `MAX_THREADS` threads and
        `MAX_FILES` files are read.
        """
        look = lambda: read_process(self, pid, threads, files, kernel_stacks)
        return self._reads.one(pid, look, None)
