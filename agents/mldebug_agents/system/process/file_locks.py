"""Who holds the lock on a file that a process waits for: /proc/locks, and the `lock:` lines of /proc/PID/fdinfo.

Both are answered by the kernel from memory. Of locks whose holder is on another node (NFS, Lustre) this node knows nothing.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from mldebug.core.model import FileLock, LockHolder, ProcessState, ThreadState
from mldebug.core.redact import redact_argv, safe_line
from mldebug.diagnosis.classify.awaited.file_locks import waits_for_file_lock
from mldebug_agents.system import procfs
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader, Unreadable

MAX_ROWS = 20_000
MAX_HOLDERS = 8
MAX_SEARCHED = 512  # processes whose descriptors are looked at for an open file that was inherited
MAX_COMMAND = 120
MAX_TABLE = 16 << 20  # bytes of /proc/locks: anybody may have a hundred thousand
SECONDS = 1.0  # of one capture, in which holders are searched for: each process may have thousands of descriptors
KINDS = {"FLOCK": "flock", "POSIX": "lockf", "OFDLCK": "ofd"}


class KernelLock(NamedTuple):
    """One line of /proc/locks.

    `blocked`: it is the request of a waiting process, and the line of the holder has the same
    `number`.
    """

    number: str
    kind: str  # flock, lockf, ofd
    access: str  # READ, WRITE
    pid: int  # -1 for ofd, and 0 for a process of another pid namespace
    inode: int
    blocked: bool


def parse_locks(text: str) -> tuple[KernelLock, ...]:
    """The locks in /proc/locks, or in `lock:` lines of an fdinfo text; leases and lines that cannot be parsed are left out."""
    lines = text.splitlines()[:MAX_ROWS]
    return tuple(row for line in lines if (row := _row(line.removeprefix("lock:"))) is not None)


def _row(line: str) -> KernelLock | None:
    words = line.split()
    blocked = words[1:2] == ["->"]
    fields = words[2:] if blocked else words[1:]
    if len(fields) < 5 or fields[0] not in KINDS or not words[0].endswith(":"):
        return None
    pid, inode = fields[3], fields[4].rpartition(":")[2]
    if not pid.lstrip("-").isdecimal() or not inode.isdecimal():
        return None
    return KernelLock(words[0], KINDS[fields[0]], fields[2], int(pid), int(inode), blocked)


class FileLocks:
    """The file locks of this node, read from /proc/locks once, when the first process is found to wait for one."""

    def __init__(
        self,
        host: Host,
        reader: Reader,
        job: Mapping[int, LockHolder],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`job`: its ranks and their children by pid, which are looked at first for inherited locks."""
        self._host = host
        self._reader = reader
        self._job = job
        self._clock = clock
        self._left = SECONDS
        self._text: str | None = None

    def wait_of(self, state: ProcessState | None, thread: ThreadState | None) -> FileLock | None:
        """The lock for which this thread of the process waits, with at most `MAX_HOLDERS` holders
        (none where they are not known).

        None where it waits for none.
        """
        if state is None or thread is None or not waits_for_file_lock(thread):
            return None
        fd = thread.syscall_args[0] if thread.syscall_args else -1
        path = next((file.target for file in state.files if file.fd == fd), "")
        row = self._wanted(state, fd)
        if row is None:
            return FileLock(
                tid=thread.tid, kind="flock" if thread.syscall == "flock" else "lockf", path=path
            )
        begun = self._clock()
        until = begun + self._left
        pids = dict.fromkeys(pid for held in self._in_the_way(row) for pid in self._holders(held, state.uid, path, until))  # fmt: skip
        self._left -= self._clock() - begun
        holders = tuple(self._holder(pid, state.uid) for pid in list(pids)[:MAX_HOLDERS])
        return FileLock(tid=thread.tid, kind=row.kind, path=path, holders=holders)

    def _rows(self, pattern: str) -> tuple[KernelLock, ...]:
        """The rows of /proc/locks, read once, of which this is a part."""
        if self._text is None:
            self._text = self._host.node_text("locks", MAX_TABLE)
        return parse_locks("\n".join(re.findall(rf"^.*{pattern}.*$", self._text, re.MULTILINE)))

    def _wanted(self, state: ProcessState, fd: int) -> KernelLock | None:
        """The line of what a thread of this process wants. The kernel names the process, not the thread, so the file decides between two."""
        inode = procfs.parse_inode(self._host.text(state.pid, f"fdinfo/{fd}")) if fd >= 0 else 0
        found = [
            row for row in self._rows(" -> ") if row.blocked and (row.pid == state.pid or row.kind == "ofd")
        ]  # fmt: skip
        if inode:
            found = [row for row in found if row.inode == inode]
        mine = [row for row in found if row.pid == state.pid] or found
        return mine[0] if mine and (inode or len(mine) == 1) else None

    def _in_the_way(self, wanted: KernelLock) -> Iterator[KernelLock]:
        """The lock that it is queued behind; of readers, all that share it."""
        same = self._rows(rf":{wanted.inode} ")
        heads = [row for row in same if not row.blocked and row.inode == wanted.inode]
        first = next((row for row in heads if row.number == wanted.number), None)
        if first is None:
            return
        yield first
        for row in heads:
            if row is not first and first.access == row.access == "READ":
                yield row

    def _holders(self, held: KernelLock, uid: int, path: str, until: float) -> Iterator[int]:
        """The process that took it, if it still has it; else those that have inherited the open file."""
        if held.kind == "lockf" or (held.pid > 0 and self._has(held.pid, held, path, until)):
            if held.pid > 0:
                yield held.pid
            return
        job = list(self._among(self._job, held, path, until))
        yield from job or self._among(self._strangers(uid), held, path, until)

    def _among(
        self, pids: Iterable[int], held: KernelLock, path: str, until: float
    ) -> Iterator[int]:
        for pid in pids:
            if self._clock() >= until:
                return
            if self._has(pid, held, path, until):
                yield pid

    def _strangers(self, uid: int) -> Iterator[int]:
        """Other processes of that user, a bounded number."""
        pids = (pid for pid in self._host.pids() if pid not in self._job)
        for count, pid in enumerate(pid for pid in pids if self._host.status(pid).uid == uid):
            if count >= MAX_SEARCHED:
                return
            yield pid

    def _has(self, pid: int, held: KernelLock, path: str, until: float) -> bool:
        """Whether one of its open files of this path holds the lock; a path that is not known may be any. False where there is no time."""
        return self._host.at_once(pid, lambda: self._holds(pid, held, path, until))

    def _holds(self, pid: int, held: KernelLock, path: str, until: float) -> bool:
        for fd in self._host.descriptors(pid):
            if self._clock() >= until:
                return False
            if path and self._host.link(pid, f"fd/{fd}") != path:
                continue
            rows = parse_locks(self._host.text(pid, f"fdinfo/{fd}"))
            if any((row.kind, row.inode) == (held.kind, held.inode) for row in rows):
                return True
        return False

    def _holder(self, pid: int, uid: int) -> LockHolder:
        """Of another user's process not even the number is passed on."""
        known = self._job.get(pid)
        if known is not None and not known.child:
            return known
        if self._host.status(pid).uid != uid:
            return LockHolder(pid=None)
        command = command_of(self._host, self._reader, pid)
        return msgspec.structs.replace(known or LockHolder(pid=pid), command=command)


def command_of(host: Host, reader: Reader, pid: int) -> str:
    """The command line of a process in one line, with secrets hidden; its name where it cannot be read."""
    path = f"{host.proc}/{pid}/cmdline"
    data = reader.read_many([path], max_bytes=4096)[path]
    argv = () if isinstance(data, Unreadable) else procfs.parse_cmdline(data)
    stat = host.brief(pid) if not argv else None
    return safe_line(" ".join(redact_argv(argv)) or (stat.name if stat else ""), MAX_COMMAND)
