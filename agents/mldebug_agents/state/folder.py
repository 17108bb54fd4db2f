"""The agent's state folder: making it, locking it for one agent at a time, and turning failures into errors.

Every call may hang with the disk, so only the state server process uses this.
"""

import contextlib
import errno
import fcntl
import logging
import os
import socket
import time
from pathlib import Path

from mldebug.core.errors import AccessError, MldebugError, UsageError
from mldebug_agents.state.messages import DeviceInode

log = logging.getLogger("mldebug")

MODE = 0o711  # everybody may pass through to the socket and to his own reports, and list nothing
WAY_OUT = "set agent.state_dir in the config to a folder on a local disk that this user may write"

# These will not go away by waiting; all others may: a full disk, one that was remounted read-only, a server that is away
_REASONS = {
    errno.ENOENT: "cannot be made: its file system takes no folders, or a part of its path is a dangling link",
    errno.ENOTDIR: "cannot be made: a part of its path is a file",
    errno.EEXIST: "is not a folder",
    errno.EISDIR: "holds a folder where its lock file should be",
    errno.ENAMETOOLONG: "has too long a name",
    errno.ELOOP: "is a loop of symbolic links",
    errno.EINVAL: "cannot be used",
}
DYING = 2.0  # seconds
_DENIED = (errno.EACCES, errno.EPERM)
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_GONE = (errno.ENOENT, errno.ENOTDIR)


class OccupiedError(UsageError):
    """Another agent uses the state dir, so this one has to end."""


class FolderLock:
    """A file lock (`agent.lock`) that keeps a second agent out of a state dir.

    The second agent's error names the pid of the first.
    """

    def __init__(self, state_dir: Path, pid: int, held: DeviceInode | None = None) -> None:
        """`pid` is the agent's, shown to others; `held`: the lock file that this agent had before."""
        self.state_dir = state_dir
        self.pid = pid
        self.path = state_dir / "agent.lock"
        self.held = held  # the last lock file that we had
        self._fd = -1
        self._name = f"{pid} {socket.gethostname()}"

    def take(self) -> str:
        """Make the state folder and lock it; does nothing while the lock is held on the file that the path shows.

        Returns "" or what happened to the folder that was held before. Raises OccupiedError where
        another agent holds it, MldebugError where it can never be used, and OSError otherwise.
        """
        if self._fd >= 0 and self._stands():
            return ""
        self.give_back()
        handle = self._open()
        try:
            self._lock(handle)
            self._try_rights()
            found = _place(os.fstat(handle))
            if found != self._shown():
                raise OSError(errno.EAGAIN, "was replaced at this moment")
            # a new file may have the number of one that is gone, but not our name in it
            lost = self.held is not None and (found != self.held or _text(handle) != self._name)
        except BaseException:
            os.close(handle)
            raise
        self._fd, self.held = handle, found
        self._sign()
        return "was removed or replaced" if lost else ""

    @property
    def gone(self) -> bool:
        """Whether the folder that was held is not at its path any more, and none was taken in its place. One that is there and
        cannot be taken now is not gone: its disk takes no writes, or a state process that is dying has the lock.
        """
        if self.held is None or self._fd >= 0:
            return False
        try:
            return self._shown() != self.held
        except OSError:  # nobody knows
            return False

    def give_back(self) -> None:
        """Release the lock, so that another agent may take the state dir."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _stands(self) -> bool:
        """Does the path still show the file that we hold? Where its file system was unmounted, what lies below may be closed to
        this user: it shows nothing then, and that file system is to be let go.
        """
        try:
            return _place(os.fstat(self._fd)) == self._shown()
        except PermissionError:
            return False

    def _shown(self) -> DeviceInode | None:
        try:
            return _place(os.stat(self.path))
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise

    def _open(self) -> int:
        try:
            self.state_dir.mkdir(mode=MODE, parents=True, exist_ok=True)
            return os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if refused := refusal(self.state_dir, error):
                raise refused from error
            raise

    def _try_rights(self) -> None:
        """A lock file of this user in a folder of another user could be locked, and then no report could be written."""
        for folder in (self.state_dir, self.state_dir / "reports"):
            probe = folder / f".probe-{self.pid}"
            try:
                os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
                os.unlink(probe)
            except OSError as error:
                if error.errno in _DENIED:
                    raise _denied(folder) from error

    def _lock(self, handle: int) -> None:
        """A killed agent's state server holds the lock until it has died too: that is waited for."""
        deadline = time.monotonic() + DYING
        while not self._try_lock(handle):
            pid, words = _holder(handle)
            ours = (
                pid == self.pid and self.held is not None
            )  # a state process of this agent that is dying
            if _lives(pid) and not ours:
                raise self._occupied(words)
            if time.monotonic() > deadline:
                raise OSError(errno.EAGAIN, f"still held by an agent ({words}) that has ended")
            time.sleep(0.02)

    def _occupied(self, words: str) -> OccupiedError:
        taken = f"another agent ({words}) already uses {self.state_dir}"
        if self.held is not None:
            taken = f"{taken}, which was removed or replaced while this agent held it"
        return OccupiedError(taken, "stop it, or set another agent.state_dir")

    def _try_lock(self, handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            log.warning(
                "%s: %s; a second agent here would not be noticed", self.path, error.strerror
            )
        return True

    def _sign(self) -> None:
        with contextlib.suppress(OSError):  # a full disk takes the lock, but not the name
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, self._name.encode(), 0)


def refusal(state_dir: Path, error: OSError) -> MldebugError | None:
    """The error to raise where the state dir can never be used; None where it may be usable later."""
    if error.errno in _DENIED:
        return _denied(state_dir)
    reason = _REASONS.get(error.errno or 0)
    return UsageError(f"the state dir {state_dir} {reason}", WAY_OUT) if reason else None


def _denied(folder: Path) -> AccessError:
    return AccessError(f"this user may not write the state dir {folder}", WAY_OUT)


def _place(facts: os.stat_result) -> DeviceInode:
    return facts.st_dev, facts.st_ino


def _text(handle: int) -> str:
    return os.pread(handle, 300, 0).decode(errors="replace")


def _holder(handle: int) -> tuple[int | None, str]:
    """(pid, `pid 12`), or (None, `pid 12 on node-b`): a home directory on a network is shared by nodes."""
    words = _text(handle).split()
    if not words or not words[0].isdecimal():
        return None, "pid unknown"
    if words[1:2] not in ([], [socket.gethostname()]):
        return None, f"pid {words[0]} on {words[1]}"
    return int(words[0]), f"pid {words[0]}"


def _lives(pid: int | None) -> bool:
    """Who cannot be looked at is taken to live."""
    return pid is None or os.path.exists(f"/proc/{pid}")
