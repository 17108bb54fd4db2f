"""Two probes never run at once on a node: a probe holds the lock file while it measures."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from mldebug.core.errors import MldebugError


class BusyError(MldebugError):
    """The node is in use, by a job or by another probe: no fault of the node."""


USUAL = "/tmp/mldebug-probe.lock"  # noqa: S108 - the one place that all users of a node share
# containers of one node share another place
LOCK = Path(os.environ.get("MLDEBUG_PROBE_LOCK") or USUAL)
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextlib.contextmanager
def only_probe(path: Path = LOCK) -> Iterator[None]:
    """Hold the lock of this node; raises BusyError where another probe has it. The kernel releases it when the process dies."""
    fd = _open(path)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        wait = "wait for it: two at once would measure each other"
        raise BusyError(f"another probe runs on this node (it holds {path})", wait) from None
    try:
        yield
    finally:
        os.close(fd)


def _open(path: Path) -> int:
    """Opened for reading, which locks as well, so that it may belong to any user."""
    try:
        with contextlib.suppress(FileExistsError):
            made = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o644)
            os.fchmod(made, 0o644)  # whatever our umask is: other users must be able to open it
            os.close(made)
        return os.open(path, _FLAGS)
    except OSError as error:
        there = os.path.lexists(path)
        way = (
            "remove it: it is no lock file"
            if there
            else "name a file in a folder that is there: MLDEBUG_PROBE_LOCK"
        )
        raise MldebugError(f"{path}: {error.strerror}", way) from None
