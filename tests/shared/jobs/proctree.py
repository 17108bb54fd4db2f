"""A /proc that never was: processes as data, written below a temporary root."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mldebug_agents.system.procfs import FORKED, KERNEL_THREAD
from mldebug_agents.system.reader import Unreadable

BOOT = 1_700_000_000
TORCH = "7f0000000000-7f0000001000 r-xp 00000000 fe:00 1 /opt/env/lib/torch/lib/libtorch_cpu.so\n"


class DirectPaths:
    """Reads at once, as a `Reader` would through its child; counts what was asked."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        self.answers: dict[str, Unreadable] = {}

    def read_many(
        self, paths: Sequence[str], *, max_bytes: int, timeout: float = 2.0
    ) -> dict[str, bytes | Unreadable]:
        """Every path has an entry."""
        self.requests += paths
        return {path: self.answers.get(path) or _read(path, max_bytes) for path in paths}


def _read(path: str, max_bytes: int) -> bytes | Unreadable:
    try:
        return Path(path).read_bytes()[:max_bytes]
    except OSError as error:
        return Unreadable(os.strerror(error.errno or 0), errno=error.errno)


class Tree:
    """A node whose processes are files; `root` is for `Host`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "etc").mkdir()
        (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nbob:x:1001:1001::/:/bin/sh\n")
        (root / "proc").mkdir()
        (root / "proc/stat").write_text(f"cpu  1 2 3\nbtime {BOOT}\n")
        self.add(1, 0, "init", exe="/sbin/init")

    def add(
        self,
        pid: int,
        ppid: int,
        name: str = "python3",
        *,
        environ: Mapping[str, object] | None = None,
        argv: Sequence[str] = ("python3", "train.py"),
        exe: str = "/usr/bin/python3.11",
        state: str = "S",
        start: int | None = None,
        group: int | None = None,
        forked_from: int | None = None,
        kernel: bool = False,
        program: int = 0,
        exit_status: int = 0,
        torch: bool = True,
        uid: int = 0,
        network: str = "net:[1]",
        pids: Sequence[int] = (),
        size: int = 0,
        cgroup: str = "0::/user.slice\n",
    ) -> int:
        """Write one process. `program` tells one exec of it from the next; `forked_from`: it has that one's image."""
        folder = self.root / "proc" / str(pid)
        (folder / "ns").mkdir(parents=True, exist_ok=True)
        flags = (FORKED if forked_from else 0) | (KERNEL_THREAD if kernel else 0)
        image = (forked_from or pid) * 1000 + program + 1
        fields = ["0"] * 49  # from field 4 of proc(5)
        places: dict[int, int] = {
            4: ppid, 5: group or pid, 6: group or pid, 9: flags, 20: 1, 22: start if start is not None else pid, 23: size,
            26: image, 28: image + 1, 50: image + 2, 52: exit_status,
        }  # fmt: skip
        for number, value in places.items():
            fields[number - 4] = str(value)
        (folder / "stat").write_text(f"{pid} ({name}) {state} {' '.join(fields)}\n")
        numbers = " ".join(map(str, pids or (pid,)))
        (folder / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\nNSpid:\t{numbers}\n")
        variables = "".join(f"{key}={value}\0" for key, value in (environ or {}).items())
        (folder / "environ").write_text(variables)
        (folder / "cmdline").write_text("".join(f"{word}\0" for word in argv))
        (folder / "maps").write_text(TORCH if torch else "")
        (folder / "cgroup").write_text(cgroup)
        for link, target in {"exe": exe, "ns/net": network, "ns/pid": "pid:[1]"}.items():
            (folder / link).unlink(missing_ok=True)
            if target:
                (folder / link).symlink_to(target)
        return pid

    def end(self, pid: int, exit_status: int | None = None) -> None:
        """Let a process go away, or (with a status) become a zombie; its children go to process 1."""
        folder = self.root / "proc" / str(pid)
        for other in (self.root / "proc").iterdir():
            if other.is_dir() and other != folder:
                self._reparent(other / "stat", pid)
        if exit_status is None:
            for entry in sorted(folder.rglob("*"), reverse=True):
                entry.rmdir() if entry.is_dir() else entry.unlink()
            folder.rmdir()
        else:
            head, _, rest = (folder / "stat").read_text().rpartition(") ")
            fields = rest.split()
            fields[0], fields[49] = "Z", str(exit_status)
            (folder / "stat").write_text(f"{head}) {' '.join(fields)}\n")
            (folder / "environ").write_text("")

    def _reparent(self, stat: Path, gone: int) -> None:
        head, _, rest = stat.read_text().rpartition(") ")
        fields = rest.split()
        if fields[1] == str(gone):
            fields[1] = "1"
            stat.write_text(f"{head}) {' '.join(fields)}\n")


def as_nobody(look: Callable[[], str]) -> str:
    """Run `look` in a forked child that has given up root."""
    receive, send = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os.write(send, look().encode())
        finally:
            os._exit(0)
    os.close(send)
    with open(receive) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return text
