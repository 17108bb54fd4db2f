"""Where a process is stuck: the file that its blocked system call waits for, and the source lines at
which its Python code is.
"""

from collections.abc import Callable

from mldebug.capture.frames import principal, site
from mldebug.capture.trace.line_format import is_source
from mldebug.core.model import OpenFile, ProcessState, SourceExcerpt, ThreadStack, ThreadState
from mldebug.core.redact import clean
from mldebug_agents.system.host import Host
from mldebug_agents.system.procfs import Mount
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.reader_answers import Unreadable

ON_DESCRIPTOR = {
    "read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "fsync", "fdatasync", "ftruncate",
    "fstat", "getdents64", "ioctl", "flock", "fcntl", "recvfrom", "sendto", "recvmsg", "sendmsg", "fallocate", "lseek",
    "fstatfs", "sync_file_range", "copy_file_range", "sendfile",
}  # fmt: skip
PATH_ARGUMENT = {
    "open": 0, "stat": 0, "lstat": 0, "access": 0, "statfs": 0, "mkdir": 0, "rmdir": 0, "unlink": 0, "rename": 0,
    "readlink": 0, "chdir": 0, "creat": 0, "truncate": 0, "execve": 0,
    "openat": 1, "openat2": 1, "newfstatat": 1, "statx": 1, "faccessat": 1, "faccessat2": 1, "mkdirat": 1,
    "unlinkat": 1, "renameat": 1, "renameat2": 1, "readlinkat": 1,
}  # fmt: skip
MAX_PATH = 512

ReadMemory = Callable[[int, int, int], bytes]
MountOf = Callable[[int, str], Mount | None]
LinkOf = Callable[[int, str], str]
IsLink = Callable[[int, str], bool | Unreadable]
AT_FDCWD = 0xFFFFFF9C  # of 32 bits


def blocked_on(
    state: ProcessState | None,
    read_memory: ReadMemory,
    mount_of: MountOf,
    link_of: LinkOf,
    is_link: IsLink,
    tid: int | None = None,
) -> OpenFile | None:
    """The file that the system call of thread `tid` (None: the main thread) waits for; None where
    that cannot be found out.

    `read_memory(pid, address, size)` returns what it could read; `mount_of(pid, path)` the mount;
    `link_of(pid, name)` the target of /proc/PID/NAME; `is_link(pid, path)` whether a path as the
    process sees it is a symbolic link. Where one lies on the way, the path may lead anywhere, so no
    mount is named.
    """
    thread = thread_of(state, tid) if state else None
    if state is None or thread is None or not thread.syscall_args:
        return None
    if thread.syscall in ON_DESCRIPTOR:
        return next((file for file in state.files if file.fd == thread.syscall_args[0]), None)
    if thread.syscall in PATH_ARGUMENT:
        found = _path(state.pid, thread, read_memory)
        if not found:
            return None
        whole = _whole(state.pid, thread, found, link_of)
        return _by_path(state.pid, whole, mount_of, is_link)
    return None


def thread_of(state: ProcessState, tid: int | None) -> ThreadState | None:
    """Return the thread with the id `tid`, or the main thread where the process has no such thread (a container's thread
    ids differ from the host's); None where neither was read.
    """
    return next((thread for thread in state.threads if thread.tid == tid), state.main)


def _path(pid: int, thread: ThreadState, read_memory: ReadMemory) -> str:
    """As the program gave it; "" where it cannot be read."""
    index = PATH_ARGUMENT[thread.syscall]
    address = thread.syscall_args[index] if index < len(thread.syscall_args) else 0
    raw = read_memory(pid, address, MAX_PATH) if address else b""
    return clean(raw.partition(b"\0")[0].decode(errors="replace"), MAX_PATH)


def _whole(pid: int, thread: ThreadState, path: str, link_of: LinkOf) -> str:
    """From the root: below the folder of the call, or the working directory. As it is, where that folder is not known."""
    if path.startswith("/") or ".." in path.split("/"):
        return path
    folder = thread.syscall_args[0] & 0xFFFFFFFF if PATH_ARGUMENT[thread.syscall] else AT_FDCWD
    base = link_of(pid, "cwd" if folder == AT_FDCWD else f"fd/{folder}")
    resolved = base.startswith("/") and not base.endswith(" (deleted)")
    return f"{base.rstrip('/')}/{path}" if resolved else path


def _straight(pid: int, path: str, point: str, is_link: IsLink) -> bool:
    """Does the path lead below the mount point? Above it no component is a link: the kernel tells where it really is.

    A question that hangs is the answer: what lies there does not answer us either.
    """
    so_far = point.rstrip("/")
    for name in filter(None, path[len(so_far) :].split("/")):
        so_far = f"{so_far}/{name}"
        answer = is_link(pid, so_far)
        if isinstance(answer, Unreadable):
            return answer.stuck
        if answer:
            return False
    return True


def _by_path(pid: int, path: str, mount_of: MountOf, is_link: IsLink) -> OpenFile:
    plain = path.startswith("/") and ".." not in path.split("/")
    mount = mount_of(pid, path) if plain else None
    if mount is None or not _straight(pid, path, mount.point, is_link):
        return OpenFile(fd=-1, target=path, kind="file")
    return OpenFile(
        fd=-1,
        target=path,
        kind="file",
        mount=mount.point,
        fstype=mount.fstype,
        source=mount.source,
        device=mount.device,
    )


def source_text(
    host: Host, reader: Reader, state: ProcessState | None, stacks: tuple[ThreadStack, ...]
) -> SourceExcerpt | None:
    """The innermost source line of the job's own code with those around it, read below the process's root with the rights of
    its user; None where it cannot be read. Its lines are as the file has them: the caller hides secrets.
    """
    stack = principal(stacks, state.pid) if state else None
    frame = site(stack.frames) if stack else None
    if state is None or frame is None or not frame.line or not is_source(frame.path):
        return None
    rights = host.rights.of_process(state.pid, state.start_ticks)
    found = reader.read_lines(f"{host.root_of(state.pid)}{frame.path}", frame.line, rights=rights)
    if isinstance(found, Unreadable):
        return None
    return SourceExcerpt(path=frame.path, line=frame.line, first=found.first, lines=found.lines)


def line_of(source: SourceExcerpt | None) -> str:
    """Return the source line at which the process stands, without its indent, from an excerpt; "" for None."""
    return source.lines[source.line - source.first].strip() if source else ""
