"""The agent's log lines about a state dir that fails, and that works again, written for an operator at night.

Pure functions.
"""

import errno
import os
import shlex
from pathlib import Path

from mldebug.core.errors import MldebugError

_LOOKS = {
    errno.ENOSPC: "df -h {0}; df -i {0}",
    errno.EDQUOT: "quota -s; df -h {0}",
    errno.EROFS: "findmnt -T {0}; dmesg -T | tail",
    errno.EACCES: "ls -ld {0}; id",
    errno.EPERM: "ls -ld {0}; lsattr -d {0}",
}
_LOOK = "findmnt -T {0}; dmesg -T | tail"
_AILING = (errno.EROFS, errno.EIO)
_MOUNT_ANEW = (
    " To repair and mount it anew while the agent runs: umount -l, wait until the agent tells here that the state dir was removed or"
    " replaced, or is not there any more, then fsck and mount. Until then the agent's open files keep the ailing file system, and a new mount would show it again;"
    " where no such line comes within a minute, stop the agent first"
)


def why(error: Exception) -> str:
    """The error as a phrase for the log: `No space left on device (ENOSPC)`, with its details where
    it has any; an MldebugError's own message.
    """
    if isinstance(error, MldebugError):
        return error.message
    if isinstance(error, OSError) and error.errno:
        words, given = os.strerror(error.errno), error.strerror or ""
        name = errno.errorcode.get(error.errno, str(error.errno))
        more = f": {given}" if given and not given.startswith(words) else ""
        return f"{words} ({name}){more}"
    return f"{type(error).__name__}: {error}"


def number(error: Exception) -> int:
    """The errno of an OSError (EIO where it has none), 0 for other errors.

    Errors with one number are logged once, however they are worded.
    """
    return (error.errno or errno.EIO) if isinstance(error, OSError) else 0


def failing(place: Path, reason: str, kind: int, most_waiting: int) -> str:
    """The log line for a state dir (`place`) that cannot be written, with a command to find out more.

    `kind`: the errno; `most_waiting`: how many reports are kept in memory meanwhile.
    """
    look = _LOOKS.get(kind, _LOOK).format(shlex.quote(str(place)))
    return (
        f"the state dir {place} cannot be written: {reason}. Jobs are watched and metrics served as before;"
        f" reports wait in memory (the newest {most_waiting}) and are lost if the agent ends now."
        f" They are written as soon as it works again.{_MOUNT_ANEW + '.' if kind in _AILING else ''} Look: {look}"
    )


def working(place: Path, lost: int) -> str:
    """The log line for a state dir that can be written again.

    `lost`: how many reports and values were dropped meanwhile.
    """
    what = f"; {_reports(lost)} had to be dropped meanwhile" if lost else ""
    return f"the state dir {place} can be written again: what waited in memory goes there now{what}"


def begun_anew(place: Path, how: str) -> str:
    """The log line for a state dir that was removed or replaced, or lost its database (`how`), while the agent ran, and was made anew."""
    return (
        f"the state dir {place} {how} while the agent ran: it was made and locked anew, and what is known of the runs"
        " and of open incidents is written there again. Earlier reports are there only where the folder still has them"
    )


def gone(place: Path) -> str:
    """The log line for a state dir that is not there any more while nothing can be made in its place."""
    return (
        f"the state dir {place} is not there any more, and what its path shows now cannot be used: nothing of it is held open,"
        " its socket is closed. It is opened again as soon as it is back"
    )


def undone(place: Path, count: int, reason: str) -> str:
    """The log line for an agent that ends with `count` reports unwritten."""
    return f"{_reports(count)} could not be written to {place} and {'is' if count == 1 else 'are'} lost: {reason}"


def _reports(count: int) -> str:
    return f"{count} {'report' if count == 1 else 'reports'}"
