"""Process states and wait channels of the kernel that name what a rank is blocked on, whatever its stack shows."""

import re

from mldebug.core.model import Classification, OpenFile, ProcessState, Role, ThreadState
from mldebug.core.redact import safe_line
from mldebug.diagnosis.classify.awaited.file_locks import waits_for_file_lock, with_holders
from mldebug.diagnosis.classify.process_facts import LITTLE_CPU, ProcessFacts, activity
from mldebug.diagnosis.classify.tables.kernel_waits import STORAGE_WAITS, WAIT_CHANNELS
from mldebug.diagnosis.classify.tables.python_calls import PYTHON
from mldebug.diagnosis.classify.tables.signs import NameSign

READ_CALLS = {"read", "readv", "pread64", "preadv", "preadv2"}
RECEIVE_CALLS = READ_CALLS | {"recvfrom", "recvmsg", "recvmmsg"}
KERNEL_LOCKS = re.compile(r"rwsem_down_\w+|percpu_rwsem_wait|__percpu_\w+")
"""Locks inside the kernel, of memory as well as of files: that a filesystem is behind them its name does not show."""
FREEZE_LOCKS = re.compile(r"percpu_rwsem_wait|__percpu_\w+")
PROFILERS = {"py-spy", "pystack", "austin", "mldebug"}  # they hold a process and let it go again
COMPILED = re.compile(
    r"\.(constprop|isra|part)\.\d+.*"
)  # how a compiler marks its copies of a function


def gone(process: ProcessFacts) -> Classification | None:
    state = process.capture.state
    if state is None or state.state not in ("Z", "X"):
        return None
    return Classification(
        name="exited", role=Role.EXITED, doing="has exited", direct=True, why=("state Z (zombie)",)
    )


def stopped(process: ProcessFacts) -> Classification | None:
    state = process.capture.state
    if state is not None and state.frozen_by:
        return _frozen(process, safe_line(state.frozen_by, 200))
    if state is None or state.state not in ("T", "t"):
        return None
    if held_by_profiler(state):
        return None
    if state.state == "t" or state.tracer_pid:
        doing = f"is held by {tracer_words(state)} in {process.at}"
        return inert(process, "traced", doing, f"state {state.state}, TracerPid {state.tracer_pid}")
    return inert(process, "stopped", f"is stopped by a signal in {process.at}", "state T (stopped)")


def _frozen(process: ProcessFacts, cgroup: str) -> Classification:
    doing = f"is frozen by its cgroup {cgroup} (its container is paused, or somebody froze it) in {process.at}"
    return inert(process, "stopped", doing, f"the freezer of cgroup {cgroup} says frozen")


def held_by_profiler(state: ProcessState) -> bool:
    """Whether a stack sampler such as ours stops the process for a moment; its stopped state then says nothing about the hang."""
    return state.state == "t" and state.tracer_name in PROFILERS


def tracer_words(state: ProcessState) -> str:
    """The debugger that is attached to a process, as text: `the tracer gdb (pid 77)`, or as much of that as could be read."""
    if not state.tracer_pid:
        return "a debugger or tracer"
    name = safe_line(state.tracer_name, 15)
    return f"{f'the tracer {name}' if name else 'a debugger or tracer'} (pid {state.tracer_pid})"


def storage_wait(process: ProcessFacts) -> Classification | None:
    thread = process.thread
    blocked = thread.state == "D" or STORAGE_WAITS.fullmatch(thread.wchan)
    if not blocked or not process.asleep:
        return None
    target = process.capture.blocked_on
    silent = target is not None and target.stuck_seconds > 0
    fact = f"state {thread.state}, wait channel {thread.wchan or 'unknown'}"
    if waits_for_file_lock(thread) and thread.state != "D" and not silent:
        return _lock_wait(process, fact)  # FUSE and NFS keep the answer until the lock is free
    storage = _in_filesystem(thread, target)
    name = "storage" if storage else "uninterruptible"
    doing = f"is blocked in {_call(thread)}{_on(target)} at {process.at}"
    return inert(process, name, doing, fact, target)


def _in_filesystem(thread: ThreadState, target: OpenFile | None) -> bool:
    """Whether the wait channel is a filesystem's, or the kernel's own lock below a function of one.

    Who calls into a file of a filesystem that is frozen (`fsfreeze`) waits at a lock over all processors, with no function of it on the stack.
    """
    if target is not None and FREEZE_LOCKS.fullmatch(thread.wchan):
        return True
    if not KERNEL_LOCKS.fullmatch(thread.wchan):
        return STORAGE_WAITS.fullmatch(thread.wchan) is not None
    inside = (name for name in thread.kernel_stack if not KERNEL_LOCKS.fullmatch(name))
    return any(STORAGE_WAITS.fullmatch(name) for name in inside)


def _lock_wait(process: ProcessFacts, fact: str) -> Classification:
    """It wants a lock on a file: with who holds that, and a victim where this is another rank of the job."""
    row = next(row for row in WAIT_CHANNELS if row.name == "flock")
    return with_holders(from_sign(process, row, fact, direct=True), process.capture)


def stdin_wait(process: ProcessFacts) -> Classification | None:
    thread = process.thread
    reading = thread.syscall in READ_CALLS and thread.syscall_args[:1] == (0,)
    if not reading or not process.asleep:
        return None
    if any(call.file.fullmatch(f.file) for f in process.region for call in PYTHON[:1]):
        return inert(
            process, "debugger", f"stands in a debugger in {process.at}", "reads standard input"
        )
    return inert(process, "stdin", f"waits for input on stdin in {process.at}", "read() on fd 0")


def by_wait_channel(process: ProcessFacts) -> Classification | None:
    """The class that the kernel's wait channel gives; None where no rule has it, or where samples show the thread in changing Python frames.

    A thread that woke up and slept again between samples is classified as polling; None where it
    also used CPU time or did I/O.
    """
    if process.movement and not process.movement.same_frames:
        return None
    wchan = wait_channel(process.thread)
    if waits_for_file_lock(process.thread) and process.asleep:
        return _lock_wait(process, f"wait channel {process.thread.wchan}")
    if _receives(process, wchan):
        wchan = "sk_wait_data"
    for row in WAIT_CHANNELS:
        if row.pattern.fullmatch(wchan):
            fact = f"wait channel {process.thread.wchan}"
            return (
                from_sign(process, row, fact, direct=True)
                if process.asleep
                else _polls(process, fact)
            )
    return None


def wait_channel(thread: ThreadState) -> str:
    """The kernel function in which the thread waits, without the compiler's suffixes (`.isra.0`)."""
    return COMPILED.sub("", thread.wchan)


def _receives(process: ProcessFacts, wchan: str) -> bool:
    """TCP waits in a function that terminals use as well: the system call and its file tell."""
    target = process.capture.blocked_on
    is_socket = target is not None and target.target.startswith("socket:")
    return wchan == "wait_woken" and process.thread.syscall in RECEIVE_CALLS and is_socket


def _polls(process: ProcessFacts, fact: str) -> Classification | None:
    """It waits again and again: for whom, nobody can tell; where I/O or CPU time go on meanwhile it works."""
    move = process.movement
    used = max(move.cpu_ratio, move.process_cpu_ratio) if move else 0.0
    if process.computes or process.transfers or used >= LITTLE_CPU:
        return None
    doing = f"polls (it sleeps, looks and sleeps again) in {process.at}"
    return Classification(
        name="poll", role=Role.INERT, doing=doing, site=process.at, why=(fact, *activity(process))
    )


def from_sign(process: ProcessFacts, row: NameSign, fact: str, *, direct: bool) -> Classification:
    target = process.capture.blocked_on
    return Classification(
        name=row.name,
        role=row.role,
        operation=row.operation,
        doing=row.phrase.format(
            op=row.operation or "a collective", site=process.at, on=_named(target)
        ),
        site=process.at,
        direct=direct,
        mount=target.mount if target else "",
        path=target.target if target else "",
        why=(fact, *activity(process)),
    )


def inert(
    process: ProcessFacts, name: str, doing: str, fact: str, target: OpenFile | None = None
) -> Classification:
    return Classification(
        name=name,
        role=Role.INERT,
        doing=doing,
        site=process.at,
        direct=True,
        mount=target.mount if target else "",
        path=target.target if target else "",
        why=(fact, *activity(process)),
    )


def _call(thread: ThreadState) -> str:
    return f"{thread.syscall}()" if re.fullmatch(r"[a-z]\w*", thread.syscall) else "the kernel"


def _named(target: OpenFile | None) -> str:
    """` (/data/settings.fifo)` where it has a path that a person can look up."""
    return f" ({target.target})" if target and target.target.startswith("/") else ""


def _on(target: OpenFile | None) -> str:
    return f" on {target.target}" if target and target.target else ""
