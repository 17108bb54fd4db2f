"""All that /proc tells of one process: its state, threads and open files, and whether its cgroup has frozen it (a paused container).

The kernel answers these files from memory. A process that the freezer of cgroup v2 or v1 holds shows state S (v2) or D (v1),
and no signal wakes it.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from mldebug.core.model import Io, OpenFile, ProcessState, ThreadState, shared_fields
from mldebug_agents.system import procfs
from mldebug_agents.system.process.proc_files import first_numbers, numbers_in, read_text
from mldebug_agents.system.process.rights import RankRights, RightsSource
from mldebug_agents.system.process.syscalls import syscall_name
from mldebug_agents.system.procfs import Mount, Stat, parse_cgroups

FREEZERS = frozenset(
    ("get_signal", "do_freezer_trap", "__refrigerator", "do_signal_stop", "cgroup_freezing", "")
)
"""Where a frozen thread may be found to wait; "" where that cannot be read."""
ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/freezer")
MAX_PATH = 4096

ReadText = Callable[[str], str]
T = TypeVar("T")


def may_be_frozen(thread: ThreadState | None) -> bool:
    """Whether the state of this thread allows that it is frozen. Only then its cgroup needs to be read."""
    if thread is None or thread.state == "R":
        return False
    return thread.state == "D" or thread.wchan in FREEZERS


def frozen_by(cgroups: str, read: ReadText) -> str:
    """The path of the cgroup that has frozen a process; "" where none has.

    `cgroups`: the text of its /proc/PID/cgroup; `read(path)` returns the text of a file below /sys,
    "" where there is none.
    """
    for path, unified in _freezers(cgroups):
        for root in ROOTS:
            if unified and "frozen 1" in read(f"{root}{path}/cgroup.events").splitlines():
                return path
            if not unified and read(f"{root}{path}/freezer.state").strip() == "FROZEN":
                return path
    return ""


def _freezers(cgroups: str) -> Iterator[tuple[str, bool]]:
    """(path, whether it is of cgroup v2) of the cgroups that may freeze it. The root of a hierarchy cannot."""
    for controllers, path in parse_cgroups(cgroups):
        outside = f"{path}/".startswith("/../")  # of the cgroup namespace: not to be read
        usable = path.startswith("/") and path != "/" and not outside and len(path) < MAX_PATH
        if usable and (not controllers or "freezer" in controllers):
            yield path, not controllers


MAX_FILES = 4096  # descriptors looked at per process
MAX_THREADS = 512  # looked at per process, its main thread first; as many stacks are kept
MOST_SECONDS = 0.25  # of CPU time for the threads of one process, and for its files: five times what as many take
MOST_NAMES = 1 << 18  # characters of the names of its files: each may have 4 KiB
MACHINE = os.uname().machine
ENDED = "ZX"  # states of a process or thread that has ended


class ProcessSource(RightsSource, Protocol):
    """The methods of `Host` that reading one process needs."""

    rights: RankRights

    def text(self, pid: int, name: str) -> str: ...


def read_process(
    host: ProcessSource, pid: int, with_threads: bool, with_files: bool, kernel_stacks: bool
) -> ProcessState | None:
    """State, threads and open files of a process; None where it is gone, or another process has its pid by now.

    Fields that this user may not read keep their defaults. Of a process that its own user may not look into, only what the
    kernel tells everybody is read.
    """
    stat = host.brief(pid)
    if stat is None:
        return None
    status = host.status(pid)
    if not status.uids:
        return None
    closed = host.rights.closed(pid, status)
    threads = _threads(host, pid, kernel_stacks) if with_threads else ()
    if closed:
        threads, with_files = tuple(map(_public, threads)), False
    state = ProcessState(
        **shared_fields(stat, ProcessState),
        **shared_fields(status, ProcessState),
        tracer_name=_name(host, status.tracer_pid),
        exit_status=exit_status(stat, status.uid),
        frozen_by=_frozen_by(host, pid, threads),
        io=None if closed else _io(host, pid),
        threads=threads,
        files=_files(host, pid, threads) if with_files else (),
    )
    after = host.brief(pid)
    same = after is not None and after.start_ticks == stat.start_ticks
    return state if same else None  # else parts of it may be of a new process with that pid


def exit_status(stat: Stat, uid: int) -> int | None:
    """The wait(2) status word of a zombie. None for a living process, and for a 0 that the kernel
    may show only because we may not see the status.

    `uid`: of the zombie.
    """
    if stat.state not in ENDED:
        return None
    is_known = stat.exit_status != 0 or os.geteuid() in (0, uid)
    return stat.exit_status if is_known else None


def _frozen_by(host: ProcessSource, pid: int, threads: tuple[ThreadState, ...]) -> str:
    main = next((thread for thread in threads if thread.tid == pid), None)
    if not may_be_frozen(main):
        return ""
    return frozen_by(host.text(pid, "cgroup"), lambda path: read_text(f"{host.root}{path}"))


def _name(host: ProcessSource, pid: int) -> str:
    stat = host.brief(pid) if pid else None
    return stat.name if stat else ""


def _io(host: ProcessSource, pid: int) -> Io | None:
    return procfs.parse_io(host.text(pid, "io"))


def _threads(host: ProcessSource, pid: int, kernel_stacks: bool) -> tuple[ThreadState, ...]:
    folder = f"{host.proc}/{pid}/task"
    tids = sorted(numbers_in(folder), key=lambda tid: (tid != pid, tid))[:MAX_THREADS]
    found = list(in_time(_thread(host, pid, tid, kernel_stacks) for tid in tids))
    if len(found) < len(tids):  # who stops a process has to know all of its threads
        return ()
    return tuple(thread for thread in found if thread is not None)


def in_time(found: Iterable[T]) -> Iterator[T]:
    """As many of these as come within `MOST_SECONDS` of this thread's CPU time."""
    until = time.thread_time() + MOST_SECONDS
    for one in found:
        yield one
        if time.thread_time() > until:
            return


def _thread(host: ProcessSource, pid: int, tid: int, kernel_stacks: bool) -> ThreadState | None:
    folder = f"{host.proc}/{pid}/task/{tid}"
    stat = procfs.parse_stat(read_text(f"{folder}/stat"))
    if stat is None or stat.state in ENDED:
        return None
    status = procfs.parse_status(host.text(pid, f"task/{tid}/status"))
    call = procfs.parse_syscall(read_text(f"{folder}/syscall"))
    stack = read_text(f"{folder}/stack") if kernel_stacks else ""
    return ThreadState(
        tid=stat.pid,
        name=stat.name,
        state=stat.state,
        wchan=procfs.parse_wchan(read_text(f"{folder}/wchan")),
        syscall=syscall_name(call[0], MACHINE) if call else "",
        syscall_args=call[1] if call else (),
        cpu_seconds=stat.cpu_seconds,
        voluntary_switches=status.voluntary_switches,
        involuntary_switches=status.involuntary_switches,
        kernel_stack=procfs.parse_kernel_stack(stack),
    )


def _public(thread: ThreadState) -> ThreadState:
    """What the kernel tells everybody of a thread, and nothing else."""
    return ThreadState(
        tid=thread.tid,
        name=thread.name,
        state=thread.state,
        cpu_seconds=thread.cpu_seconds,
        voluntary_switches=thread.voluntary_switches,
        involuntary_switches=thread.involuntary_switches,
    )


def _files(host: ProcessSource, pid: int, threads: tuple[ThreadState, ...]) -> tuple[OpenFile, ...]:
    """Links are read, never followed: a FIFO with a name is known by the thread that waits in it."""
    mounts = {mount.id: mount for mount in procfs.parse_mountinfo(host.text(pid, "mountinfo"))}
    piped = {
        thread.syscall_args[0]
        for thread in threads
        if "pipe_" in thread.wchan and thread.syscall_args
    }
    numbers = first_numbers(f"{host.proc}/{pid}/fd", MAX_FILES)
    found: list[OpenFile] = []
    left = MOST_NAMES
    for file in in_time(_file(host, pid, fd, mounts, fd in piped) for fd in numbers):
        left -= len(file.target) if file else 0
        if left < 0:
            break
        found += [file] if file else []
    return tuple(found)


def _file(
    host: ProcessSource, pid: int, fd: int, mounts: dict[int, Mount], in_pipe: bool
) -> OpenFile | None:
    target = host.link(pid, f"fd/{fd}")
    if not target:
        return None
    kind = procfs.fd_kind(target)
    info = (
        "" if kind == "anon" else host.text(pid, f"fdinfo/{fd}")
    )  # that of an epoll has a line for each file
    mode, mount_id = procfs.parse_fdinfo(info)
    mount = mounts.get(mount_id) if kind in ("file", "deleted") else None
    return OpenFile(
        fd=fd,
        target=target,
        kind="fifo" if in_pipe and kind == "file" else kind,
        mode=mode,
        mount=mount.point if mount else "",
        fstype=mount.fstype if mount else "",
        source=mount.source if mount else "",
        device=mount.device if mount else "",
    )
