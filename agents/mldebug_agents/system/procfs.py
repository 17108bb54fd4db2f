"""Parsers of /proc texts. They are pure functions and never raise: a torn or odd text gives defaults.

Why not psutil: docs/dependencies.md.
"""

import re
import signal
from collections.abc import Iterable, Iterator

import msgspec

from mldebug.core.model import Io

FORKED = 0x40  # PF_FORKNOEXEC: a copy of its parent that never called exec
KERNEL_THREAD = 0x200000  # PF_KTHREAD
TICKS = 100  # USER_HZ: the unit of /proc times, on every machine we know

_OF_STAT = (1, 2, 3, 6, 11, 12, 17, 19, 20, 23, 25, 47, 49)
"""parent to system time, threads, start, size, start of code, stack and environment, exit status: all that is wanted."""
_ESCAPED = re.compile(r"\\([0-7]{3})")
_TORCH = re.compile(
    rb"/libtorch(?:_cpu|_cuda|_python|_hip|_xpu)?\.so|/jaxlib/(?:libjax_common|_jax|xla_extension)[\w.-]*\.so"
)
_PYTHON = re.compile(
    r"(?:^|[./-])(?:python|pypy)(?:[0-9][0-9.]*[a-z]{0,2})?(?:-dbg)?(?: \(deleted\))?$"
)
_DEVICE = re.compile(r"/dev/(?!shm/|hugepages/|mqueue/)")
_TTY = re.compile(r"/dev/(?:tty|pts/|console$|ptmx$)")
_GPU = re.compile(r"/dev/(?:nvidia|kfd$|dri/|accel|habanalabs|davinci|hl\d)")


class Stat(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of /proc/PID/stat or /proc/PID/task/TID/stat that are needed."""

    pid: int
    name: str = ""
    state: str = ""
    ppid: int = 0
    pgrp: int = 0
    session: int = 0
    flags: int = 0
    cpu_seconds: float = 0.0
    threads: int = 1
    start_ticks: int = 0
    size: int = 0  # bytes of address space: every library that is loaded adds to it
    exit_status: int = 0  # 0 also where we may not know
    image: tuple[int, ...] = ()  # addresses that every exec draws anew; zeros where we may not know


class ProcessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of /proc/PID/status that are needed."""

    uid: int = 0
    groups: tuple[int, ...] = ()
    uids: tuple[int, ...] = ()  # real, effective, saved, of the file system
    gids: tuple[int, ...] = ()
    capabilities: int = 0  # effective ones
    tracer_pid: int = 0
    pending_signals: int = 0
    caught_signals: int = 0
    rss_bytes: int = 0
    voluntary_switches: int = 0
    involuntary_switches: int = 0
    pids: tuple[int, ...] = ()  # NSpid: one for each nested pid namespace, ours first


class Mount(msgspec.Struct, frozen=True):
    """A line of /proc/PID/mountinfo."""

    id: int
    point: str
    fstype: str
    source: str = ""  # as mount(8) was told: nfs01:/data, /dev/sda1
    device: str = ""  # major:minor; the same for all mounts of one filesystem
    root: str = "/"  # the folder of the filesystem that is mounted
    options: str = ""  # of the filesystem, with commas: rw,memory


def parse_stat(text: str) -> Stat | None:
    """Parse the text of /proc/PID/stat; None for any other text. The process name may contain spaces, parentheses and
    newlines.
    """
    head, _, rest = text.rpartition(")")
    pid, _, name = head.partition("(")
    fields = rest.split()
    if len(fields) < 20 or not pid.strip().isdecimal():
        return None
    fields += ["0"] * (50 - len(fields))  # fields[n] is field n + 3 of proc(5)
    try:
        return _stat(int(pid), name, [int(fields[number]) for number in _OF_STAT], fields[0])
    except ValueError:
        return _stat(int(pid), name, [_integer(fields[number]) for number in _OF_STAT], fields[0])


def _stat(pid: int, name: str, numbers: list[int], state: str) -> Stat:
    ppid, pgrp, session, flags, user, system, threads, start, size, *image, exit_status = numbers
    return Stat(
        pid=pid,
        name=name,
        state=state,
        ppid=ppid,
        pgrp=pgrp,
        session=session,
        flags=flags,
        cpu_seconds=(user + system) / TICKS,
        threads=threads,
        start_ticks=start,
        size=size,
        exit_status=exit_status,
        image=(image[0], image[1], image[2]),
    )


def parse_status(text: str) -> ProcessStatus:
    """Parse /proc/PID/status: state, user ids, capabilities, signals and the like. Missing lines give defaults."""
    found = dict(line.partition(":")[::2] for line in _lines(text))
    values = {key: value.split() for key, value in found.items()}

    def number(key: str, base: int = 10) -> int:
        return _integer((values.get(key) or ["0"])[0], base)

    return ProcessStatus(
        uid=number("Uid"),
        groups=tuple(_integer(gid) for key in ("Gid", "Groups") for gid in values.get(key, ())),
        uids=tuple(_integer(uid) for uid in values.get("Uid", ())),
        gids=tuple(_integer(gid) for gid in values.get("Gid", ())),
        capabilities=number("CapEff", 16),
        tracer_pid=number("TracerPid"),
        pending_signals=number("SigPnd", 16) | number("ShdPnd", 16),
        caught_signals=number("SigCgt", 16),
        rss_bytes=number("VmRSS") * 1024,
        voluntary_switches=number("voluntary_ctxt_switches"),
        involuntary_switches=number("nonvoluntary_ctxt_switches"),
        pids=tuple(_integer(pid) for pid in values.get("NSpid", ())),
    )


def parse_schedstat(text: str) -> float:
    """Seconds that a thread has waited for a free CPU, from the text of
    /proc/PID/task/TID/schedstat; 0.0 for an empty text.
    """
    fields = text.split()
    return _integer(fields[1]) / 1e9 if len(fields) > 1 else 0.0


def parse_wants_cpu(text: str) -> float:
    """Seconds in which a thread has run or waited for a free CPU, from the text of /proc/PID/task/TID/schedstat; 0.0 for an empty text."""
    fields = text.split()
    return (_integer(fields[0]) + _integer(fields[1])) / 1e9 if len(fields) > 1 else 0.0


def parse_io(text: str) -> Io | None:
    """The counters in /proc/PID/io (bytes).

    None where the text has no `rchar`, as when it may not be read; other missing ones are 0.
    """
    values = {key: _integer(value) for key, _, value in _pairs(text)}
    if "rchar" not in values:
        return None
    return Io(
        read_chars=values["rchar"],
        written_chars=values.get("wchar", 0),
        read_bytes=values.get("read_bytes", 0),
        written_bytes=values.get("write_bytes", 0),
    )


def parse_syscall(text: str) -> tuple[int, tuple[int, ...]] | None:
    """Parse /proc/PID/syscall into (number, six arguments). None for a running thread or an unreadable text; number -1: it blocks outside a call."""
    words = text.split()
    if not words or words[0] == "running":
        return None
    arguments = words[1:7] if len(words) == 9 else []
    return _integer(words[0]), tuple(_integer(word, 16) for word in arguments)


def parse_kernel_stack(text: str) -> tuple[str, ...]:
    """The function names of /proc/PID/stack, innermost first: `pipe_read` for `[<0>] pipe_read+0x2f/0x40`."""
    lines = (line.split("] ", 1)[-1].strip() for line in text.splitlines())
    return tuple(line.partition("+")[0] for line in lines if line)


def parse_wchan(text: str) -> str:
    """Parse /proc/PID/wchan: the kernel function that a thread sleeps in; "" where it does not sleep."""
    name = text.strip()
    return "" if name == "0" else name


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """Parse /proc/PID/mountinfo: the mounts in the kernel's order; a later one may lie over an earlier one."""
    mounts = []
    for line in _lines(text):
        left, _, right = line.partition(" - ")
        fields, kind = left.split(" "), right.split(" ")
        if len(fields) >= 6 and kind[0]:
            source = _unescape(kind[1]) if len(kind) > 1 else ""
            point, root = _unescape(fields[4]), _unescape(fields[3])
            options = kind[2] if len(kind) > 2 else ""
            mounts.append(
                Mount(_integer(fields[0]), point, kind[0], source, fields[2], root, options)
            )
    return tuple(mounts)


def parse_cgroups(text: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """The (controllers, path) of each hierarchy in /proc/PID/cgroup. That of cgroup version 2 has no controllers."""
    for line in _lines(text):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers or number == "0":
            yield tuple(filter(None, controllers.split(","))), path


def mount_of(mounts: Iterable[Mount], path: str) -> Mount | None:
    """The mount that contains an absolute path: the one with the longest mount point, the last of
    equal ones; None without one.
    """
    best: Mount | None = None
    for mount in mounts:
        point = mount.point.rstrip("/")
        inside = path == point or path.startswith(f"{point}/")
        if inside and (best is None or len(point) >= len(best.point.rstrip("/"))):
            best = mount
    return best


def parse_fdinfo(text: str) -> tuple[str, int]:
    """Parse an fdinfo text into (mode, mount id): mode r, w, rw or "", mount id 0 where it is not known."""
    values = {key: value.strip() for key, _, value in _pairs(text)}
    flags = values.get("flags", "")
    mode = ("r", "w", "rw", "")[_integer(flags, 8) & 3] if flags else ""
    return mode, _integer(values.get("mnt_id", "0"))


def parse_inode(text: str) -> int:
    """The inode of an open file, from its fdinfo; 0 where the kernel (before 5.14) does not say it."""
    return next((_integer(value.strip()) for key, _, value in _pairs(text) if key == "ino"), 0)


_UNREAL = ("/proc/", "/sys/", "/memfd:", "/anon_hugepage", "/dmabuf:", "/[", "/SYSV")


def fd_kind(target: str) -> str:
    """The kind of an open file (pipe, socket, anon, tty, gpu, device, deleted, file), from the
    target of its link alone.

    A FIFO with a name looks like a file.
    """
    for prefix, kind in (("pipe:[", "pipe"), ("socket:[", "socket"), ("anon_inode:", "anon")):
        if target.startswith(prefix):
            return kind
    if target.startswith(("/memfd:", "/dmabuf:", "/[", "/SYSV", "mnt:[", "net:[", "pidfd:")):
        return "anon"
    if _DEVICE.match(target):
        return "tty" if _TTY.match(target) else "gpu" if _GPU.match(target) else "device"
    return "deleted" if target.endswith(" (deleted)") else "file"


def is_stored(target: str) -> bool:
    """Whether a link leads to a file that takes space on a filesystem. Below /dev only files in /dev/shm do."""
    if target.startswith("/dev/"):
        return target.startswith("/dev/shm/")  # noqa: S108 - only told apart
    return target.startswith("/") and not target.startswith(_UNREAL)


def parse_environ(data: bytes) -> dict[str, str]:
    """Parse /proc/PID/environ. Where a name comes twice the first value is returned, as getenv does."""
    found: dict[str, str] = {}
    for entry in data.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name:
            found.setdefault(name.decode(errors="replace"), value.decode(errors="replace"))
    return found


def parse_cmdline(data: bytes) -> tuple[str, ...]:
    """Parse /proc/PID/cmdline into words; a process that renamed itself gives one word with spaces."""
    text = data.rstrip(b"\0")
    return tuple(word.decode(errors="replace") for word in text.split(b"\0")) if text else ()


def is_python(program: str) -> bool:
    """Whether a file name, path or process name is that of a Python interpreter."""
    return _PYTHON.search(program) is not None


def maps_torch(maps: bytes) -> bool:
    """Whether the libraries of PyTorch or JAX are in this content of /proc/PID/maps."""
    return _TORCH.search(maps) is not None


def exit_reason(status: int | None) -> str:
    """A wait(2) status word in words: "exit code 1", "killed by signal 9 (SIGKILL)". None: the kernel did not report it."""
    if status is None:
        return "exit unknown"
    number = status & 0x7F
    if not number:
        return f"exit code {status >> 8 & 0xFF}"
    name = next((known.name for known in signal.Signals if known == number), "")
    return f"killed by signal {number}" + (f" ({name})" if name else "")


def _pairs(text: str) -> Iterable[tuple[str, str, str]]:
    return (line.partition(":") for line in _lines(text))


def _lines(text: str) -> list[str]:
    """Its lines as the kernel ends them. Names of programs, mounts and control groups have no "\n", but any other character that Python takes for
    a line's end too (vertical tab, U+2028): a user could begin a forged line with them.
    """
    return text.split("\n")


def _integer(text: str, base: int = 10) -> int:
    try:
        return int(text, base)
    except ValueError:
        return 0


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)
