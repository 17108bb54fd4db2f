"""What works on this node for this user, what each missing thing costs, and how to get it: the rows of `mldebug doctor`."""

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import msgspec

from mldebug import DISTRIBUTION
from mldebug.core.errors import MldebugError
from mldebug.core.units import format_size
from mldebug_agents.support.doctor import rights, rows, trials
from mldebug_agents.support.doctor.clock import ClockState, clock_state
from mldebug_agents.support.doctor.rows import DoctorCheck
from mldebug_agents.system.child.programs import ProgramStarter
from mldebug_agents.system.process.proc_files import read_link
from mldebug_agents.system.reader import Reader, Unreadable

COMMAND = "mldebug.cli.main:main"  # the entry point of this program
OWN_DUMP = "stacks of own processes"
MAX_TEXT = 1 << 20
CANDIDATES = 16
UNIT = "run as root, or give the agent the capability"


class CheckEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """What the checks of `mldebug doctor` look at: paths, programs and clocks, which tests replace."""

    reader: Reader
    starter: ProgramStarter
    py_spy: str
    state_dir: Path
    asleep: int  # pid of a process of this user that sleeps in the kernel
    proc: str = "/proc"
    kmsg: str = "/dev/kmsg"
    uid: int = msgspec.field(default_factory=os.geteuid)
    clock: Callable[[], float] = time.time
    kernel_clock: Callable[[], ClockState] = clock_state


def examine(world: CheckEnvironment) -> Iterator[DoctorCheck]:
    """All checks of `mldebug doctor`, the most important first. A check never raises: its error becomes its result."""
    status = _text(world, "self/status") or ""
    held = rights.held_capabilities(status)
    if other := namesake():
        yield other
    yield py_spy(world)
    yield own_dump(world)
    yield native_stacks(world)
    yield rows.yama(rights.ptrace_scope(_text(world, "sys/kernel/yama/ptrace_scope")), held)
    yield rows.capabilities(held)
    yield other_users(world, held)
    yield rows.hidden_processes(
        rights.hidepid(_text(world, "self/mountinfo") or "", world.proc), held
    )
    yield rows.container(read_link(f"{world.proc}/self/ns/pid"))
    yield kernel_log(world.kmsg)
    yield kernel_stacks(world)
    yield waiting_channel(world)
    yield pystack(world)
    yield rows.clock(world.clock(), world.kernel_clock())
    yield state_dir(world)


def namesake(
    find: Callable[[str], metadata.Distribution] = metadata.distribution,
) -> DoctorCheck | None:
    """Checks what else is installed here as `mldebug`: None where nothing is, or only this program from before it was called mldebug-agent."""
    try:
        found = find("mldebug")
    except metadata.PackageNotFoundError:
        return None
    if all(one.value != COMMAND for one in found.entry_points):
        return rows.namesake(found.version)
    try:
        find(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None
    return rows.installed_twice(found.version)


def py_spy(world: CheckEnvironment) -> DoctorCheck:
    """Checks whether the py-spy binary starts."""
    try:
        version = trials.pyspy_version(world.starter, world.py_spy)
    except MldebugError as error:
        return DoctorCheck(
            name="py-spy",
            state="missing",
            meaning=f"no Python stacks: {error.message}",
            way_out=error.way_out,
        )
    return DoctorCheck(name="py-spy", state="ok", meaning=f"version {version} at {world.py_spy}")


def own_dump(world: CheckEnvironment) -> DoctorCheck:
    """Checks whether py-spy can read the stack of a process of this user without stopping it."""
    dump = trials.try_dump(world.starter, world.py_spy, "--nonblocking")
    if dump.failure:
        way_out = dump.way_out or "check seccomp and ptrace_scope; in a container add SYS_PTRACE"
        return DoctorCheck(
            name=OWN_DUMP,
            state="missing",
            meaning=f"does not work: {dump.failure}",
            way_out=way_out,
        )
    return DoctorCheck(name=OWN_DUMP, state="ok", meaning="the stack of a trial process was read")


def native_stacks(world: CheckEnvironment) -> DoctorCheck:
    """Checks whether py-spy can read C frames."""
    dump = trials.try_dump(world.starter, world.py_spy, "--native")
    if not dump.failure and any(frame.native for stack in dump.stacks for frame in stack.frames):
        return DoctorCheck(
            name="native stacks", state="ok", meaning="C frames of a trial process were read"
        )
    reason = dump.failure or "py-spy gave Python frames only"
    meaning = f"waiters inside C look alike: {reason}"
    return DoctorCheck(
        name="native stacks",
        state="limited",
        meaning=meaning,
        way_out="needs ptrace, and py-spy for x86_64 or aarch64",
    )


def other_users(world: CheckEnvironment, held: frozenset[str]) -> DoctorCheck:
    """Checks whether ranks of other users can be found (a rank is recognised by its environment)."""
    name, needed = "other users' jobs", {"CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"}
    answers = world.reader.read_many(_strangers(world), max_bytes=64)
    if any(isinstance(answer, bytes) and answer for answer in answers.values()):
        return DoctorCheck(
            name=name, state="ok", meaning="their environment is readable, so their ranks are found"
        )
    denied = any(isinstance(answer, Unreadable) for answer in answers.values())
    if not denied and needed <= held:
        return DoctorCheck(
            name=name, state="ok", meaning="nobody else is here; the capabilities for it are held"
        )
    meaning = "their ranks are not found" if denied else "nobody else is here to try it on"
    way_out = f"run as the job's user, as root, or with {' and '.join(sorted(needed))}"
    return DoctorCheck(name=name, state="limited", meaning=meaning, way_out=way_out)


def kernel_log(path: str) -> DoctorCheck:
    """Checks whether the kernel log can be read (GPU errors, out-of-memory kills). It is opened without blocking."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            with contextlib.suppress(
                BlockingIOError, BrokenPipeError
            ):  # empty, or overwritten meanwhile
                os.read(handle, 8192)
        finally:
            os.close(handle)
    except OSError as error:
        meaning = f"GPU and out-of-memory lines are not seen: {error.strerror}"
        return DoctorCheck(
            name="kernel log", state="limited", meaning=meaning, way_out=f"{UNIT} CAP_SYSLOG"
        )
    return DoctorCheck(name="kernel log", state="ok", meaning=f"{path} is readable")


def kernel_stacks(world: CheckEnvironment) -> DoctorCheck:
    """Checks /proc/PID/stack, which shows the kernel functions that a process in state D is in."""
    if _text(world, "self/stack"):
        return DoctorCheck(name="kernel stacks", state="ok", meaning="/proc/PID/stack is readable")
    meaning = "a process in state D shows its wchan only, not its kernel stack"
    return DoctorCheck(
        name="kernel stacks", state="limited", meaning=meaning, way_out=f"{UNIT} CAP_SYS_ADMIN"
    )


def waiting_channel(world: CheckEnvironment) -> DoctorCheck:
    """Checks /proc/PID/wchan, which names the kernel function that a process sleeps in, using a process that always sleeps."""
    channels = [_text(world, f"{world.asleep}/wchan") for _ in range(5)]
    if any(text and text != "0" for text in channels):
        return DoctorCheck(
            name="wchan", state="ok", meaning="what a process sleeps on is named by the kernel"
        )
    way_out = "a kernel with CONFIG_KALLSYMS, and the right to ptrace"
    return DoctorCheck(
        name="wchan",
        state="limited",
        meaning="sleeps, pipes and hung mounts look alike",
        way_out=way_out,
    )


def pystack(world: CheckEnvironment) -> DoctorCheck:
    """Checks whether pystack starts, which is used where py-spy cannot read a process."""
    beside = Path(sys.executable).parent / "pystack"
    binary = str(beside) if os.access(beside, os.X_OK) else shutil.which("pystack") or "pystack"
    try:
        version = trials.pystack_version(world.starter, binary)
    except MldebugError as error:
        meaning = "no second opinion where py-spy fails (optional)"
        return DoctorCheck(name="pystack", state="limited", meaning=meaning, way_out=error.way_out)
    return DoctorCheck(name="pystack", state="ok", meaning=version)


def state_dir(world: CheckEnvironment) -> DoctorCheck:
    """Checks whether reports can be stored."""
    name, way_out = "state directory", "set agent.state_dir, or make it writable for this user"
    try:
        found = trials.try_state_dir(world.starter, world.state_dir)
    except MldebugError as error:
        return DoctorCheck(name=name, state="missing", meaning=error.message, way_out=error.way_out)
    if found.obstacle:
        meaning = f"{found.obstacle} is not a folder: reports are not kept, and no agent starts"
        return DoctorCheck(name=name, state="missing", meaning=meaning, way_out=way_out)
    if not found.writable:
        return DoctorCheck(
            name=name,
            state="missing",
            meaning=f"{found.place} is not writable: reports are not kept",
            way_out=way_out,
        )
    free = format_size(found.free >> 20 << 20)
    if found.free < trials.LOW_SPACE:
        return DoctorCheck(
            name=name,
            state="limited",
            meaning=f"{world.state_dir}: only {free} free",
            way_out="free some space",
        )
    made = "" if found.place == str(world.state_dir) else ", made when needed"
    return DoctorCheck(
        name=name,
        state="ok",
        meaning=f"{world.state_dir} ({found.free / 2**30:.0f} GiB free{made})",
    )


def _strangers(world: CheckEnvironment) -> list[str]:
    """Environment paths of a few programs of other users; kernel threads have no command line."""
    with contextlib.suppress(OSError):
        pids = [name for name in os.listdir(world.proc) if name.isdigit()]
        statuses = world.reader.read_many(
            [f"{world.proc}/{pid}/status" for pid in pids], max_bytes=4096
        )
        others = [path for path, text in statuses.items() if _owner(text) not in (None, world.uid)]
        lines = [path.replace("/status", "/cmdline") for path in others]
        programs = [
            path
            for path, text in world.reader.read_many(lines, max_bytes=16).items()
            if text and isinstance(text, bytes)
        ]
        return [path.replace("/cmdline", "/environ") for path in programs[:CANDIDATES]]
    return []


def _owner(status: bytes | Unreadable) -> int | None:
    return rights.owner(status.decode(errors="replace")) if isinstance(status, bytes) else None


def _text(world: CheckEnvironment, name: str) -> str | None:
    path = f"{world.proc}/{name}"
    answer = world.reader.read_many([path], max_bytes=MAX_TEXT)[path]
    return answer.decode(errors="replace").strip() if isinstance(answer, bytes) else None
