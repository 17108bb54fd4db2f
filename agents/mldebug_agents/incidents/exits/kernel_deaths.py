"""What the kernel reports about processes that it ended: the kernel log (/dev/kmsg), and the OOM counters of cgroups."""

import contextlib
import os
import re
import stat
from collections import deque

from mldebug.diagnosis.exits.kernel_lines import kernel_deaths
from mldebug.diagnosis.exits.model import KernelDeath
from mldebug_agents.system.host import Host
from mldebug_agents.system.procfs import parse_cgroups

KEPT = 256
DEVICE = os.makedev(1, 11)
MOST = 100_000  # records read at once
_COUNT = re.compile(r"^oom_kill (?P<count>\d+)$", re.MULTILINE)
_SAFE = re.compile(r"/(?!.*(?:^|/)\.\.(?:/|$)).*")


class KernelDeathLog:
    """The ends of processes that the kernel logs from now on (OOM kills, segfaults).

    Methods never wait; the newest `KEPT` are kept.
    """

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self._deaths: deque[tuple[int, KernelDeath]] = deque(maxlen=KEPT)
        self._count = 0
        self._torn = -1  # the number of the last thing that we have not, or no longer, read
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:
            self._fd = -1
            return
        found = os.fstat(self._fd)
        if stat.S_ISCHR(found.st_mode) and found.st_rdev != DEVICE:  # some containers: /dev/null
            os.close(self._fd)
            self._fd = -1

    @property
    def readable(self) -> bool:
        """Whether the kernel log can be read; False without the right to, or where a container has no such device."""
        return self._fd >= 0

    def mark(self) -> int:
        """A mark for the present end of the log, to pass to `since` and `whole` later."""
        self._read()
        return self._count

    def since(self, mark: int) -> tuple[KernelDeath, ...]:
        """The ends that were logged after this mark. Earlier ones may be of other processes that had the same pid."""
        self._read()
        return tuple(death for number, death in self._deaths if number >= mark)

    def whole(self, mark: int) -> bool:
        """Whether `since(mark)` returns every kill that the kernel has logged after the mark.

        False where records were overwritten before they were read, too many came, or the log cannot
        be read.
        """
        self._read()
        return self.readable and self._torn < mark

    def _read(self) -> None:
        lines = []
        for _ in range(MOST if self.readable else 0):
            try:
                record = os.read(self._fd, 8192)
            except BrokenPipeError:  # records were overwritten before we came
                self._torn = self._count
                self._count += 1
                continue
            except OSError:  # nothing new
                break
            if not record:  # a file in place of the device
                break
            lines.append(record.decode(errors="replace").partition("\n")[0])
        for death in kernel_deaths(lines):
            if len(self._deaths) == KEPT:
                self._torn = max(self._torn, self._deaths[0][0])
            self._deaths.append((self._count, death))
            self._count += 1


def log_doubt(log: KernelDeathLog, mark: int, *, kernel_pids: bool) -> str:
    """Why an OOM kill may be missing in the kernel log since this mark, as a sentence with the way
    out; "" where none can be missing.

    `kernel_pids`: the pids that the agent sees are those that the kernel logs, not a container's.
    """
    if not log.readable:
        return "the kernel log may not be read, so an OOM kill is not seen: give CAP_SYSLOG"
    if not kernel_pids:
        return (
            "the kernel log has other numbers for processes than this container, so an OOM kill is not seen: run the"
            " agent in the node's pid namespace"
        )
    if not log.whole(mark):
        return "records of the kernel log were overwritten before they were read: an OOM kill may be missing"
    return ""


def oom_counter(host: Host, pid: int) -> str:
    """The path of the file that counts OOM kills in a process's cgroup (version 1 or 2); "" where there is none."""
    for controllers, path in parse_cgroups(host.text(pid, "cgroup")):
        if not _SAFE.fullmatch(path):
            continue
        root = f"{host.root}/sys/fs/cgroup"
        if "memory" in controllers:
            return f"{root}/memory{path.rstrip('/')}/memory.oom_control"
        if not controllers and os.path.exists(f"{root}{path.rstrip('/')}/memory.events"):
            return f"{root}{path.rstrip('/')}/memory.events"
    return ""


def oom_kills(path: str) -> int | None:
    """The number of OOM kills in that file; None where it cannot be read or does not name one."""
    with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
        count = _COUNT.search(file.read(4096))
        return int(count["count"]) if count else None
    return None
