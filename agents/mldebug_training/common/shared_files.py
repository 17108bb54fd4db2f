"""Our files in shared memory: each is made locked and with all its space allocated, and removed after its process has gone.

Their names begin with `mldebug-PID-START`, see `mldebug_training.hook.record`. If another process gets the lock (flock(2)) of a
file, and its process does not exist, the file is abandoned.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import fcntl
import os
import time

from mldebug_training.common.interrupted import pass_on
from mldebug_training.common.signals import shielded

FOLDER = "/dev/shm"  # noqa: S108 - created exclusively, never followed
PREFIX = "mldebug-"
OOM = ".oom"  # of a file that is read after its process has ended: who held the memory when it ran out
REQUEST = (
    ".request"  # of a file in which somebody asks for something; see `hook.on_request.requests`
)
TRACE, TRACE_FILE = (
    ".trace-",
    "trace.json",
)  # in the name of a folder for one file, which PyTorch writes
MAX_STALE = 1024  # files of dead processes that are looked at
KEPT = 3600.0  # seconds for which such a file stays
MOST_KEPT = 32  # of them, the newest
PAUSES = (0.001, 0.01, 0.1)  # seconds, for a neighbour that sweeps to be done


def reserve(path: str, size: int) -> int:
    """Create a new file with all its space allocated, so that a full /dev/shm fails here and not later by SIGBUS."""
    fd = _locked(path)
    try:
        shielded(
            _signal.SIGXFSZ, os.posix_fallocate, fd, 0, size
        )  # the job's limit of a file's size
    except OSError:
        remove(path)
        os.close(fd)
        raise
    return fd


def sweep(folder: str = FOLDER) -> None:
    """Remove files that killed processes of this user left in the folder. Never raises."""
    try:
        names = [name for name in os.listdir(folder) if name.startswith(PREFIX)][:MAX_STALE]
    except OSError as error:
        pass_on(error)
        return
    kept = _kept(folder, [name for name in names if name.endswith(OOM)])
    for name in names:
        if name not in kept:
            does = _sweep_trace if TRACE in name else _sweep
            does(os.path.join(folder, name))


def _kept(folder: str, names: list[str]) -> set[str]:
    """Those that somebody may still want to read."""
    ages = {}
    for name in names:
        try:
            ages[name] = time.time() - os.lstat(os.path.join(folder, name)).st_mtime
        except OSError as error:
            pass_on(error)
    return {
        name for name in sorted(ages, key=lambda one: ages[one])[:MOST_KEPT] if ages[name] < KEPT
    }


def start_ticks() -> int:
    """When this process started, in clock ticks since boot, from /proc."""
    return int(_stat("self")[19])


def _locked(path: str) -> int:
    """A new file with its lock. A neighbour that sweeps may have had the lock first, and takes the file away."""
    for pause in PAUSES:
        try:
            return _locked_at_once(path)
        except (FileExistsError, BlockingIOError):
            time.sleep(pause)
    return _locked_at_once(path)


def _locked_at_once(path: str) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.fstat(fd).st_nlink:
            raise BlockingIOError(f"{path} was swept away")
    except (
        BlockingIOError
    ):  # who has the lock removes the file, nobody else: the name may be a newer one's by then
        os.close(fd)
        raise
    except OSError:
        remove(path)
        os.close(fd)
        raise
    return fd


def _sweep(path: str) -> None:
    if _lives(os.path.basename(path)):  # it may have no lock: not yet, or no longer
        return
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:  # another user's
        pass_on(error)
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(fd)
        if found.st_uid == os.getuid() and found.st_nlink:  # without a name it is swept already
            remove(path)
    except OSError as error:  # it lives, where /proc does not show it
        pass_on(error)
    finally:
        os.close(fd)


def _sweep_trace(path: str) -> None:
    """The folder of a process that was killed while PyTorch wrote a trace of it, which may take all of shared memory."""
    if _lives(os.path.basename(path)):
        return
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:  # another user's, or no folder
        pass_on(error)
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(fd).st_uid == os.getuid():
            if TRACE_FILE in os.listdir(fd):
                os.unlink(TRACE_FILE, dir_fd=fd)
            os.rmdir(path)
    except OSError as error:  # it lives, where /proc does not show it
        pass_on(error)
    finally:
        os.close(fd)


def _lives(name: str) -> bool:
    """Is there another process of this pid and start here? One of another pid namespace is not seen.

    What has our own name and is not ours is of before an exec, which keeps pid and start.
    """
    pid, _, rest = name[len(PREFIX) :].partition("-")
    if not pid.isdigit() or pid == str(os.getpid()):
        return False
    try:
        fields = _stat(pid)
        return fields[0] not in (b"Z", b"X") and fields[19] == rest.partition(".")[0].encode()
    except (FileNotFoundError, ProcessLookupError, IndexError):  # the most usual: it is gone
        return False
    except OSError as error:
        pass_on(error)
        return False


def _stat(pid: str) -> list[bytes]:
    """/proc/PID/stat from the third field on."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()


def remove(path: str) -> None:
    """Remove a file if it exists. Never raises OSError."""
    try:
        os.unlink(path)
    except OSError as error:
        pass_on(error)
