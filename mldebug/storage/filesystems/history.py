"""What earlier looks saw of one filesystem, kept so that a restart of the agent does not forget it. Pure."""

import collections
from collections.abc import Iterable

import msgspec

from mldebug.storage.filesystems.forecast import Point

KEPT = 1440  # looks that are remembered: 12 h at the usual pace
RECENT = 120  # of these all are stored, of the older ones every fourth
EVERY = 4
LONGEST = 86400.0  # seconds: what is older tells nothing of today
MOST_STORED = 32  # filesystems, those first that change most


class StoredHistory(msgspec.Struct):
    """One filesystem as a restart finds it again: the device number alone may be another one's by then."""

    device: str
    root: str
    source: str
    looks: list[tuple[float, int, int]]  # unix seconds, bytes left, inodes left


class FilesystemHistory(msgspec.Struct):
    """Bytes and inodes left, with a minus sign: of a pool the size may shrink, so what is left counts. In order of time."""

    source: str = ""
    left: "collections.deque[Point]" = msgspec.field(
        default_factory=lambda: collections.deque(maxlen=KEPT)
    )
    inodes: "collections.deque[Point]" = msgspec.field(
        default_factory=lambda: collections.deque(maxlen=KEPT)
    )
    writable: bool = False  # it was, once

    def add(self, at: float, left: float, inodes_left: float) -> None:
        """Take one look. Where the clock was set back, all that was seen before is of no use."""
        if self.left and at <= self.left[-1].at:
            self.left.clear()
            self.inodes.clear()
        self.left.append(Point(at, -left))
        self.inodes.append(Point(at, -inodes_left))

    def recall(self, now: float, stored: StoredHistory) -> None:
        """What an earlier agent saw in the last day comes before what this one has seen."""
        first = self.left[0].at if self.left else now
        for at, left, inodes in sorted(stored.looks, reverse=True)[: KEPT - len(self.left)]:
            if now - LONGEST <= at < first:
                self.left.appendleft(Point(at, -float(left)))
                self.inodes.appendleft(Point(at, -float(inodes)))

    def thinned(self) -> list[tuple[float, int, int]]:
        """At most 450 looks, as they are stored."""
        looks = list(zip(self.left, self.inodes, strict=True))
        some = looks[:-RECENT][::EVERY] + looks[-RECENT:]
        return [(round(a.at, 1), round(-a.used), round(-b.used)) for a, b in some]

    @property
    def span(self) -> float:
        """Bytes between the least and the most that was left."""
        used = [one.used for one in self.left]
        return max(used) - min(used) if used else 0.0


def encode_histories(
    pasts: Iterable[tuple[tuple[str, str], FilesystemHistory]], others: Iterable[StoredHistory] = ()
) -> bytes:
    """As JSON: by (device, root). `others` are of the agent before this one, and not found again yet."""
    most = sorted(pasts, key=lambda one: -one[1].span)
    rows = [StoredHistory(*key, past.source, past.thinned()) for key, past in most if past.left]
    rows = [*rows, *others][:MOST_STORED]
    return msgspec.json.encode(rows) if rows else b""


def decode_histories(data: bytes) -> dict[tuple[str, str, str], StoredHistory]:
    """By (device, root, source); nothing where it cannot be read."""
    try:
        rows = msgspec.json.decode(data or b"[]", type=list[StoredHistory])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return {}
    return {(one.device, one.root, one.source): one for one in rows}
