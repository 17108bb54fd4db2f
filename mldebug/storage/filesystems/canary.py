"""Results of test writes: a small file is written, synced and removed, as `df` may be half an hour late and knows no quota.

Pure.
"""

import errno

from mldebug.core.model import MeasuredData
from mldebug.core.units import size_words

_WORDS = {
    errno.EROFS: "it is read-only",
    errno.EDQUOT: "a quota is used up",
    errno.ENOENT: "the folder is not there",
    errno.EACCES: "the agent may not write there",
    errno.EPERM: "the agent may not write there",
    errno.EIO: "the disk or server reports an error",
    errno.ESTALE: "the server does not know the folder any more",
}
_OUTCOMES = {errno.EROFS: "read_only", errno.ENOSPC: "full", errno.EDQUOT: "quota"}


class CanaryResult(MeasuredData, frozen=True, kw_only=True):
    """The result of writing a small test file on a filesystem.

    `errno`: 0 where it was written, else the number of the error; then the fields of free bytes and inodes are what
    statvfs(2) told at that moment.

    `seconds`: how long the write took.
    """

    errno: int = 0
    seconds: float = 0.0
    available: int = 0  # bytes
    inodes: int = 0  # 0: this filesystem does not count them
    inodes_free: int = 0


class CanaryWrite(MeasuredData, frozen=True, kw_only=True):
    """One write of a small test file to a configured folder: its result, or for how many seconds it has not returned."""

    path: str
    stuck: float = 0.0
    result: CanaryResult = CanaryResult()

    @property
    def outcome(self) -> str:
        """How the test write ended: `ok`, `stuck`, or the kind of error (`read_only`, `full`, `quota`, `failed`)."""
        if self.stuck:
            return "stuck"
        number = self.result.errno
        return _OUTCOMES.get(number, "failed") if number else "ok"


def sentence(one: CanaryWrite, size: int) -> str:
    """The result of a test write as a sentence. `size`: bytes of the test file."""
    if one.stuck:
        return f"{one.path}: a test write has not come back for {one.stuck:.0f} s"
    if not one.result.errno:
        milliseconds = one.result.seconds * 1000
        return f"{one.path}: {size_words(size)} written and synced in {milliseconds:.0f} ms"
    return f"{one.path}: a test write failed: {_why(one.result, size)}"


def _why(one: CanaryResult, size: int) -> str:
    if one.errno != errno.ENOSPC:
        return _WORDS.get(one.errno, errno.errorcode.get(one.errno, f"error {one.errno}"))
    if one.inodes and not one.inodes_free:
        return "no inode is left"
    if one.available > size:
        return f"no space is left, though the filesystem tells of {size_words(one.available)}"
    return "no space is left"
