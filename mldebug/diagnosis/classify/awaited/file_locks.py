"""A process that waits for a file lock: which process holds it, and whether that makes the rank a victim of another rank."""

from collections.abc import Iterable, Iterator

import msgspec

from mldebug.core.model import (
    Classification,
    ClassifiedRank,
    FileLock,
    LockHolder,
    ProcessCapture,
    Role,
    ThreadState,
)
from mldebug.core.redact import safe_line
from mldebug.diagnosis.classify.tables.kernel_waits import WAIT_CHANNELS

WAIT_COMMANDS = {7, 38}  # of fcntl: F_SETLKW, F_OFD_SETLKW, on all machines
MAX_NAMED = 4
HELD = "held_lock"
"""The class of a rank that wants a lock which another rank of its job holds: only that rank can end the wait."""


def waits_for_file_lock(thread: ThreadState) -> bool:
    """Whether a thread waits for a file lock, judged by its system call, or by its wait channel where the call is not known."""
    if thread.state not in ("S", "D"):
        return False
    if thread.syscall == "fcntl":
        return len(thread.syscall_args) > 1 and thread.syscall_args[1] in WAIT_COMMANDS
    pattern = next(row.pattern for row in WAIT_CHANNELS if row.name == "flock")
    return (
        thread.syscall == "flock" or pattern.fullmatch(thread.wchan.partition(".")[0]) is not None
    )


def with_holders(found: Classification, capture: ProcessCapture) -> Classification:
    """Add to the class of a process that waits for a file lock: the file's path, and the processes that hold the lock."""
    lock = capture.lock
    if lock is None:
        return found
    path = lock.path or found.path
    file = f" ({safe_line(path, 200)})" if path.startswith("/") else ""
    doing = f"{found.doing.replace('a file lock', f'a file lock{file}', 1)}, {_held_by(lock)}"
    return msgspec.structs.replace(found, doing=doing, path=path, holders=_ranks(lock.holders))


def as_victim(found: Classification, rank: int) -> Classification:
    """The class of a rank, changed to a victim's ("waits for a lock of another rank") where the file lock that it or a worker of it wants is held by other ranks alone."""
    if not found.holders or rank in found.holders:
        return found
    return msgspec.structs.replace(
        found, name="held_lock", role=Role.WAITING, worker_pid=None, worker_class=""
    )


def lock_circle(ranks: Iterable[ClassifiedRank]) -> tuple[ClassifiedRank, ...]:
    """Of these ranks, those that hold a file lock that another rank waits for.

    Called where all ranks of a job wait.
    """
    ranks = tuple(ranks)
    wanted = {holder for rank in ranks for holder in rank.is_.holders if rank.is_.name == HELD}
    return tuple(rank for rank in ranks if rank.rank in wanted)


def holding_children(capture: ProcessCapture) -> tuple[LockHolder, ...]:
    """The holders of the lock that a process waits for, where all of them are child processes of the job's ranks; else empty."""
    holders = capture.lock.holders if capture.lock else ()
    return holders if all(one.child for one in holders) else ()


def _ranks(holders: Iterable[LockHolder]) -> tuple[int, ...]:
    """The ranks that hold it themselves, where nobody but ranks does."""
    holders = tuple(holders)
    if any(one.rank is None or one.child for one in holders):
        return ()
    return tuple(sorted({one.rank for one in holders if one.rank is not None}))


def _held_by(lock: FileLock) -> str:
    if not lock.holders:
        return "whose holder is not to be seen from this node"
    words = list(dict.fromkeys(_names(lock.holders)))
    more = f" and {len(words) - MAX_NAMED} more" if len(words) > MAX_NAMED else ""
    return f"held by {', '.join(words[:MAX_NAMED])}{more}"


def _names(holders: Iterable[LockHolder]) -> Iterator[str]:
    for one in holders:
        command = f" ({safe_line(one.command, 120)})" if one.command else ""
        if one.pid is None:
            yield "a process of another user"
        elif one.rank is None:
            yield f"process {one.pid}{command}, which is no part of the job"
        elif one.child:
            yield f"process {one.pid} of rank {one.rank}{command}"
        else:
            yield f"rank {one.rank}"
