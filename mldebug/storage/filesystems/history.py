"""Earlier readings of filesystems, stored so that forecasts survive a restart of the agent. Pure."""

import collections
from collections.abc import Iterable

import msgspec

from mldebug.storage.filesystems.forecast import Point

KEPT = 1440  # readings that are remembered: 12 h at the usual interval
RECENT = 120  # of these all are stored, of the older ones every fourth
EVERY = 4
LONGEST = 86400.0  # seconds: older readings do not count
MOST_STORED = 32  # filesystems, those first that change most


class StoredHistory(msgspec.Struct):
    """The stored history of one filesystem.

    `source`: its device or server, to notice that another filesystem got the device number after a
    restart.
    """

    device: str
    root: str
    source: str
    looks: list[tuple[float, int, int]]  # unix seconds, bytes left, inodes left


class FilesystemHistory(msgspec.Struct):
    """Bytes and inodes left over time, stored negative so that filling rises.

    What is left is kept, and not what is used, because a pool's size may change.
    """

    source: str = ""
    left: "collections.deque[Point]" = msgspec.field(
        default_factory=lambda: collections.deque(maxlen=KEPT)
    )
    inodes: "collections.deque[Point]" = msgspec.field(
        default_factory=lambda: collections.deque(maxlen=KEPT)
    )
    writable: bool = False  # it was once seen to be writable

    def turns_read_only(self, is_read_only: bool) -> bool:
        """Whether the filesystem, if read-only now, was writable at an earlier reading."""
        self.writable = self.writable or not is_read_only
        return self.writable and is_read_only

    def add(self, at: float, left: float, inodes_left: float) -> None:
        """Add a reading at unix time `at`: the bytes and the inodes that are left. If the clock was set back, earlier
        readings are dropped.
        """
        if self.left and at <= self.left[-1].at:
            self.left.clear()
            self.inodes.clear()
        self.left.append(Point(at, -left))
        self.inodes.append(Point(at, -inodes_left))

    def recall(self, now: float, stored: StoredHistory) -> None:
        """Put those readings of the last day that an earlier agent stored before this agent's own.

        `now`: unix time.
        """
        first = self.left[0].at if self.left else now
        for at, left, inodes in sorted(stored.looks, reverse=True)[: KEPT - len(self.left)]:
            if now - LONGEST <= at < first:
                self.left.appendleft(Point(at, -float(left)))
                self.inodes.appendleft(Point(at, -float(inodes)))

    def thinned(self) -> list[tuple[float, int, int]]:
        """At most 450 readings for storing: all recent ones, and every fourth of the older ones."""
        looks = list(zip(self.left, self.inodes, strict=True))
        some = looks[:-RECENT][::EVERY] + looks[-RECENT:]
        return [(round(a.at, 1), round(-a.used), round(-b.used)) for a, b in some]

    @property
    def span(self) -> float:
        """The largest minus the smallest free space in the history, in bytes."""
        used = [one.used for one in self.left]
        return max(used) - min(used) if used else 0.0


def encode_histories(
    pasts: Iterable[tuple[tuple[str, str], FilesystemHistory]], others: Iterable[StoredHistory] = ()
) -> bytes:
    """Histories as JSON, at most `MOST_STORED`, those that changed most first.

    `pasts`: by (device, root). `others`: stored ones of filesystems that were not found yet.
    """
    most = sorted(pasts, key=lambda one: -one[1].span)
    rows = [StoredHistory(*key, past.source, past.thinned()) for key, past in most if past.left]
    rows = [*rows, *others][:MOST_STORED]
    return msgspec.json.encode(rows) if rows else b""


def decode_histories(data: bytes) -> dict[tuple[str, str, str], StoredHistory]:
    """Stored histories by (device, root, source); empty where the JSON cannot be read."""
    try:
        rows = msgspec.json.decode(data or b"[]", type=list[StoredHistory])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    return {(row.device, row.root, row.source): row for row in rows}
