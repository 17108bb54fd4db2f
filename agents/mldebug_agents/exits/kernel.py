"""The kernel's word about dead processes: /dev/kmsg, where we may read it, and the OOM counters of cgroups."""

import contextlib
import os
import re
from collections import deque

from mldebug.endings.facts import KernelDeath
from mldebug.endings.kernel import kernel_deaths
from mldebug_agents.host import Host

KEPT = 256
MOST = 100_000  # records read at once
_COUNT = re.compile(r"^oom_kill (?P<count>\d+)$", re.MULTILINE)
_SAFE = re.compile(r"/(?!.*(?:^|/)\.\.(?:/|$)).*")


class KernelLog:
    """Reads what the kernel says from now on; never waits. `readable` is False where we may not, or there is none."""

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self._deaths: deque[tuple[int, KernelDeath]] = deque(maxlen=KEPT)
        self._count = 0
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)
        except OSError:
            self._fd = -1

    @property
    def readable(self) -> bool:
        """May we read it?"""
        return self._fd >= 0

    def mark(self) -> int:
        """A place in the log: deaths that come later are `since` it."""
        self._read()
        return self._count

    def since(self, mark: int) -> tuple[KernelDeath, ...]:
        """The deaths after a mark: an older one may be of another process with the same number."""
        self._read()
        return tuple(death for number, death in self._deaths if number >= mark)

    def _read(self) -> None:
        lines = []
        for _ in range(MOST if self.readable else 0):
            try:
                record = os.read(self._fd, 8192)
            except BrokenPipeError:  # records were overwritten before we came
                continue
            except OSError:  # nothing new
                break
            lines.append(record.decode(errors="replace").partition("\n")[0])
        for death in kernel_deaths(lines):
            self._deaths.append((self._count, death))
            self._count += 1


def oom_counter(host: Host, pid: int) -> str:
    """The file that counts the OOM kills of a process's cgroup (version 1 or 2), "" where there is none."""
    for line in host.text(pid, "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not _SAFE.fullmatch(path):
            continue
        root = f"{host.root}/sys/fs/cgroup"
        if "memory" in controllers.split(","):
            return f"{root}/memory{path.rstrip('/')}/memory.oom_control"
        if number == "0" and os.path.exists(f"{root}{path.rstrip('/')}/memory.events"):
            return f"{root}{path.rstrip('/')}/memory.events"
    return ""


def oom_kills(path: str) -> int | None:
    """What that file counts now; None where it is gone or not for us."""
    with contextlib.suppress(OSError), open(path, encoding="ascii") as file:
        count = _COUNT.search(file.read(4096))
        return int(count["count"]) if count else None
    return None
