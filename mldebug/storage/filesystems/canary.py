"""The result of writing, syncing and removing a small file: `df` may be half an hour late, and knows no quota. Pure."""

import errno

from mldebug.core.model import Noun
from mldebug.storage.filesystems.fullness import size_words

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


class CanaryWrite(Noun, frozen=True, kw_only=True):
    """One test write. `errno`: 0 where it went well; `available` and inodes: by the filesystem at the moment when it failed."""

    path: str
    errno: int = 0
    seconds: float = 0.0
    stuck: float = 0.0  # seconds for which it has not come back
    available: int = 0  # bytes
    inodes: int = 0  # 0: they are not counted
    inodes_free: int = 0

    @property
    def outcome(self) -> str:
        """How the test write ended: `ok`, `stuck`, or the kind of error (`read_only`, `full`, `quota`, `failed`)."""
        if self.stuck:
            return "stuck"
        return _OUTCOMES.get(self.errno, "failed") if self.errno else "ok"


def sentence(one: CanaryWrite, size: int) -> str:
    """The result of a test write as a sentence; `size`: bytes that were to be written."""
    if one.stuck:
        return f"{one.path}: a test write has not come back for {one.stuck:.0f} s"
    if not one.errno:
        return f"{one.path}: {size_words(size)} written and synced in {one.seconds * 1000:.0f} ms"
    return f"{one.path}: a test write failed: {_why(one, size)}"


def _why(one: CanaryWrite, size: int) -> str:
    if one.errno != errno.ENOSPC:
        return _WORDS.get(one.errno, errno.errorcode.get(one.errno, f"error {one.errno}"))
    if one.inodes and not one.inodes_free:
        return "no inode is left"
    if one.available > size:
        return f"no space is left, though the filesystem tells of {size_words(one.available)}"
    return "no space is left"
