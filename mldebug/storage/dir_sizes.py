"""Sizes of configured directories, as the child process that counts them reports them, in sentences.

`bytes` are allocated ones (as `du`), `apparent_bytes` the lengths of files. A hard link counts
once; other filesystems below do not count (as `du -x`).
"""

from collections.abc import Iterator

from mldebug.core.model import MeasuredData
from mldebug.core.redact import clean
from mldebug.core.units import duration_words, size_words

COUNTING, WATCHED, PARTLY, RESCANNED, LOST, STUCK = (
    "counting",
    "watched",
    "partly_watched",
    "rescanned",
    "events_lost",
    "stuck",
)
HOWS = (COUNTING, WATCHED, PARTLY, RESCANNED, LOST, STUCK)


class DirSize(MeasuredData, frozen=True, kw_only=True):
    """The size of one configured directory. Figures are None until it was counted once."""

    path: str
    how: str = COUNTING
    why: str = ""  # the reason where it is not simply watched, or not counted at all
    inodes: int | None = None
    bytes: int | None = None
    apparent_bytes: int | None = None
    folders: int = 0
    at: float = 0.0  # unix: the figures are those of this moment
    unread: int = 0  # folders and names that could not be looked at: the figures are lower bounds
    mounts: int = 0  # other filesystems and second views below, which do not count
    overflows: int = 0  # times that the kernel dropped events
    rescans: int = 0  # times that everything was counted anew
    count_seconds: float = 0.0  # that the last whole count took
    since: float | None = None  # unix time since which it does not answer

    @property
    def lower_bound(self) -> bool:
        """Whether some entries could not be counted, so that the true size is larger."""
        return self.unread > 0


def dir_size_lines(trees: tuple[DirSize, ...], now: float) -> Iterator[tuple[str, bool]]:
    """(line, whether something is wrong) for each directory. `now`: unix time."""
    for tree in trees:
        yield f"{clean(tree.path, 120)}: {_words(tree, now)}", tree.how == STUCK or tree.lower_bound


def _words(tree: DirSize, now: float) -> str:
    if tree.how == STUCK:
        waited = duration_words(int(now - (tree.since or now)))
        return f"does not answer for {waited}: its size is not known"
    if tree.bytes is None:
        return (
            f"not counted: {clean(tree.why, 200)}" if tree.why else "is counted for the first time"
        )
    least = "at least " if tree.lower_bound else ""
    words = f"{least}{size_words(tree.bytes)} in {tree.inodes} inodes, {_how(tree, now)}"
    unread = f"; {tree.unread} of its entries could not be looked at" if tree.lower_bound else ""
    return f"{words}{unread}{f' ({clean(tree.why, 200)})' if tree.why else ''}"


def _how(tree: DirSize, now: float) -> str:
    ago = f"as of {duration_words(int(now - tree.at))} ago"
    words = {
        WATCHED: "kept fresh by events",
        PARTLY: "partly kept fresh by events, partly counted anew",
        RESCANNED: "counted anew from time to time",
        LOST: "events were lost and it is being counted anew",
    }
    return f"{words.get(tree.how, tree.how)}, {ago}"
