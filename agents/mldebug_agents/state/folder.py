"""The agent's own folder: made, held by one agent at a time, and what it means where that fails.

All of it may hang with the disk, so only the state keeper (`keeping`) comes here.
"""

import contextlib
import errno
import fcntl
import logging
import os
import socket
import time
from pathlib import Path

from mldebug.errors import AccessError, MldebugError, UsageError

log = logging.getLogger("mldebug")

MODE = 0o711  # everybody may pass through to the socket and to his own reports, and list nothing
WAY_OUT = "set agent.state_dir in the config to a folder on a local disk that this user may write"

# These will not go away by waiting; all other errors (a full disk, a server that is away) may
_REASONS = {
    errno.EROFS: "lies on a read-only file system",
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


class Hold:
    """Holds a state dir against a second agent, which is refused with the pid of the first."""

    def __init__(self, state_dir: Path, pid: int) -> None:
        """`pid` is the agent's, which others are told."""
        self.state_dir = state_dir
        self.pid = pid
        self.path = state_dir / "agent.lock"
        self._fd = -1

    def take(self) -> None:
        """Make the folder and lock it. `MldebugError` where that can never work, OSError where it may later."""
        if self._fd >= 0:
            return
        try:
            self.state_dir.mkdir(mode=MODE, parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if refused := refusal(self.state_dir, error):
                raise refused from error
            raise
        try:
            self._lock(handle)
        except BaseException:
            os.close(handle)
            raise
        self._fd = handle
        self._sign()

    def give_back(self) -> None:
        """Let another agent have it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _lock(self, handle: int) -> None:
        """A killed agent's keeper holds the lock until it has died too: that is waited for."""
        deadline = time.monotonic() + DYING
        while not self._try_lock(handle):
            pid, words = _holder(handle)
            if _lives(pid):
                raise UsageError(
                    f"another agent ({words}) already uses {self.state_dir}",
                    "stop it, or set another agent.state_dir",
                )
            if time.monotonic() > deadline:
                raise OSError(errno.EAGAIN, f"still held by an agent ({words}) that has ended")
            time.sleep(0.02)

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
            os.pwrite(self._fd, f"{self.pid} {socket.gethostname()}".encode(), 0)


def refusal(state_dir: Path, error: OSError) -> MldebugError | None:
    """What to tell where waiting is no use, None where it may be."""
    if error.errno in _DENIED:
        return AccessError(f"this user may not write the state dir {state_dir}", WAY_OUT)
    reason = _REASONS.get(error.errno or 0)
    return UsageError(f"the state dir {state_dir} {reason}", WAY_OUT) if reason else None


def _holder(handle: int) -> tuple[int | None, str]:
    """(pid, `pid 12`), or (None, `pid 12 on node-b`): a home directory on a network is shared by nodes."""
    words = os.pread(handle, 300, 0).decode(errors="replace").split()
    if not words or not words[0].isdecimal():
        return None, "pid unknown"
    if words[1:2] not in ([], [socket.gethostname()]):
        return None, f"pid {words[0]} on {words[1]}"
    return int(words[0]), f"pid {words[0]}"


def _lives(pid: int | None) -> bool:
    """Who cannot be looked at is taken to live."""
    return pid is None or os.path.exists(f"/proc/{pid}")
