"""Parses the kernel's counters of finished operations on filesystems: how many, how long they took together, how many bytes.

Pure. NFS: /proc/PID/mountstats (`nfs_iostat` in the kernel's sources); block devices: Documentation/block/stat.rst; Lustre: `llite.*.stats`.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

READ, WRITE, OPEN, METADATA = "read", "write", "open", "metadata"
SECTOR = 512  # bytes: what block devices count in, whatever their sectors are
MAX_TEXT = 1 << 20  # bytes of one file

_NFS = {
    "READ": READ, "READ_PLUS": READ, "WRITE": WRITE,
    "OPEN": OPEN, "OPEN_NOATTR": OPEN, "CREATE": OPEN,
} | dict.fromkeys(("LOOKUP", "GETATTR", "SETATTR", "ACCESS", "READDIR", "READDIRPLUS", "REMOVE", "RENAME", "MKDIR", "RMDIR", "COMMIT", "CLOSE", "STATFS", "FSSTAT"), METADATA)  # fmt: skip
_LUSTRE = {"read": READ, "write": WRITE, "open": OPEN} | dict.fromkeys(
    ("getattr", "setattr", "readdir", "unlink", "mkdir", "rename", "create", "fsync", "statfs", "close", "mknod"),
    METADATA,
)  # fmt: skip
_DEVICE = re.compile(r"^device (?P<source>.+) mounted on (?P<point>.+) with fstype (?P<fstype>\S+)", re.ASCII)  # fmt: skip
_NFS_OPERATION = re.compile(r"^\s+([A-Z_]{1,24}): ((?:\d{1,20} ){7,8}\d{1,20})$", re.ASCII)
_LUSTRE_LINE = re.compile(
    r"^(\w{1,24})\s+(\d{1,20}) samples \[(usecs?|bytes|regs|reqs)\](?: (\d{1,20}) (\d{1,20}) (\d{1,24}))?", re.ASCII
)  # fmt: skip


class OperationCount(NamedTuple):
    """Operations of one kind that have ended since the filesystem was mounted. `seconds`: of all of them together, if `timed`."""

    operations: int = 0
    seconds: float = 0.0
    bytes: int = 0
    timed: bool = True

    def plus(self, operations: int, seconds: float, bytes_: int = 0) -> "OperationCount":
        """Return the count with these operations, their seconds and their bytes added."""
        return OperationCount(
            self.operations + operations, self.seconds + seconds, self.bytes + bytes_
        )


Counts = Mapping[str, OperationCount]
"""By kind: read, write, open, metadata. A kind that the source does not count is absent."""


def nfs_counts(text: str) -> dict[str, Counts]:
    """Return the counts of each NFS mount in the text of a mountstats file, by mount point as the file writes it.

    Where several mounts lie over each other at one mount point, the counts are those of the last. Times run from the
    request to the end of its answer, the time in the client's queue included.
    """
    found: dict[str, Counts] = {}
    counts: dict[str, OperationCount] = {}
    for line in text[:MAX_TEXT].splitlines():
        if line.startswith("device "):
            counts = {}
            head = _DEVICE.match(line)
            if head and head["fstype"].startswith("nfs"):
                found[_unescaped(head["point"])] = counts
        elif (operation := _NFS_OPERATION.match(line)) and operation[1] in _NFS:
            kind = _NFS[operation[1]]
            figures = [int(one) for one in operation[2].split()]
            sent, received, milliseconds = figures[3], figures[4], figures[7]
            moved = received if kind == READ else sent if kind == WRITE else 0
            counts[kind] = counts.get(kind, OperationCount()).plus(figures[0], milliseconds / 1000, moved)  # fmt: skip
    return found


def _unescaped(path: str) -> str:
    """The kernel writes blanks, tabs, newlines and backslashes of a path as `\\040`."""
    change: Callable[[re.Match[str]], str] = lambda match: chr(int(match[1], 8))
    return re.sub(r"\\(040|011|012|134)", change, path)


def block_counts(text: str) -> Counts:
    """Return the counts of a block device from the text of its `stat` file; empty for any other text.

    Times run from when a request was queued until it was done.
    """
    figures = text[:MAX_TEXT].split()
    if len(figures) < 8 or not all(
        len(one) <= 20 and one.isascii() and one.isdigit() for one in figures[:8]
    ):
        return {}
    reads, _, read_sectors, read_ms, writes, _, written_sectors, write_ms = map(int, figures[:8])
    return {
        READ: OperationCount(reads, read_ms / 1000, read_sectors * SECTOR),
        WRITE: OperationCount(writes, write_ms / 1000, written_sectors * SECTOR),
    }


def lustre_counts(text: str) -> Counts:
    """The counts of a Lustre client from its `stats` file. Lustre before 2.13 counts operations and bytes, and no times: not `timed` then."""
    timed: dict[str, OperationCount] = {}
    untimed: dict[str, OperationCount] = {}
    moved: dict[str, OperationCount] = {}
    for line in text[:MAX_TEXT].splitlines():
        found = _LUSTRE_LINE.match(line)
        if found is None:
            continue
        name, number, total = found[1], int(found[2]), int(found[6] or 0)
        kind = _LUSTRE.get(name.removesuffix("_bytes"), "")
        if found[3] == "bytes" and kind in (READ, WRITE):
            moved[kind] = OperationCount(number, 0.0, total, timed=False)
        elif kind and found[3].startswith("usec") and found[6]:
            timed[kind] = timed.get(kind, OperationCount()).plus(number, total / 1e6)
        elif kind and found[3] in ("regs", "reqs"):
            before = untimed.get(kind, OperationCount())
            untimed[kind] = OperationCount(before.operations + number, timed=False)
    with_bytes = {kind: one._replace(bytes=moved[kind].bytes) if kind in moved else one for kind, one in timed.items()}  # fmt: skip
    return untimed | moved | with_bytes


def pressure_seconds(text: str) -> dict[str, float]:
    """Seconds since boot in which tasks have waited for I/O, from the text of /proc/pressure/io: `some` of them, and all that wanted to
    run (`full`). Empty for any other text.
    """
    found = re.findall(
        r"^(some|full) avg10=.{0,80} total=(\d{1,20})$", text[:4096], re.MULTILINE | re.ASCII
    )
    return {kind: int(total) / 1e6 for kind, total in found}
