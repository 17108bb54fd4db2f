"""Filesystems that jobs use: how full, how long they last, which do not answer; and all storage alarms."""

from collections.abc import Iterator

from mldebug.core.plugins import NoOptions
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import (
    FamilyTable,
    Importance,
    MetricGroup,
    Sample,
    storage_measures,
)

SILENT = "for a filesystem that does not answer"
FULL = "for one that does not answer or is read-only"
UNCOUNTED = "for filesystems other than NFS, Lustre and those of block devices"
_OWNER = ("mount", "device", "kind", "id")
_NO_QUOTA = "where no quota with a limit is kept"

TABLE = FamilyTable()
TABLE.gauge(
    "filesystem_unanswered",
    "Filesystems that could not be asked at the last look, and jobs whose open files may not be seen.",
    absent="before the first look",
)
TABLE.gauge(
    "quota_used_ratio",
    "Used share of a configured quota; above 1 within a grace period.",
    "quota",
    absent="where its tool could not be asked",
)
TABLE.gauge(
    "quota_failed",
    "1 where the tool of a configured quota failed, hung, or printed what the pattern does not match.",
    "quota",
    absent="while no quota is configured",
)
TABLE.gauge(
    "filesystem_quota_used_ratio",
    "Used share of the bytes that the kernel's quota allows a user, group or project of a rank.",
    *_OWNER,
    absent=_NO_QUOTA,
)
TABLE.gauge(
    "filesystem_quota_inodes_used_ratio",
    "Used share of the inodes that the kernel's quota allows a user, group or project of a rank.",
    *_OWNER,
    absent=_NO_QUOTA,
)
TABLE.gauge(
    "filesystem_canary_failed",
    "1 where the last test write failed or has not come back.",
    "path",
    absent="without storage.canary",
)
TABLE.gauge(
    "filesystem_canary_seconds",
    "How long the last test write took, or has not come back.",
    "path",
    absent="without storage.canary, and where the folder could not be opened",
)
TABLE.counter(
    "io_pressure_seconds",
    "Time in which tasks of the node have waited for I/O since it was booted, by the kernel's pressure stall information: some of them, or all (full).",
    "kind",
    absent="where the kernel does not tell, and without a job",
)
ALARMS = TABLE.gauge(
    "storage_alarms",
    "Storage alarms that are on, by kind.",
    "kind",
    absent="while there is none of that kind",
)

MEASURED = FamilyTable("mount", "device", "fstype", absent=SILENT, importance=Importance.DETAIL)
MEASURED.gauge(
    "filesystem_stuck_seconds",
    "Since when a call there has not come back; 0 where it answers.",
    absent="never",
)
MEASURED.gauge("filesystem_read_only", "1 where nothing can be written.")
MEASURED.gauge("filesystem_size_bytes", "Size.")
MEASURED.gauge("filesystem_available_bytes", "Free for ordinary users, as the filesystem says.")
MEASURED.gauge(
    "filesystem_usable_free_bytes",
    "Left before writes fail: less where a filesystem fails before it is full.",
    absent=FULL,
)
MEASURED.gauge("filesystem_used_ratio", "Used share of what can be used, 0 to 1.", absent=FULL)
MEASURED.gauge("filesystem_inodes", "Inodes.", absent="where they are not counted, " + FULL)
MEASURED.gauge(
    "filesystem_inodes_free", "Inodes that are left.", absent="where they are not counted, " + FULL
)
MEASURED.gauge(
    "filesystem_full_seconds",
    "Until it is full, as it grows now.",
    absent="while it does not grow, or too little was seen",
)
MEASURED.gauge(
    "filesystem_saves_left",
    "The save of this number does not fit any more; 1 is the next one.",
    absent="while no saves are known that stay",
)
MEASURED.gauge(
    "filesystem_inodes_full_seconds",
    "Until no inode is left, as it grows now.",
    absent="while they do not grow",
)

OPERATIONS = MEASURED.labelled("operation", absent=UNCOUNTED)
OPERATIONS.counter(
    "filesystem_operations",
    "Reads, writes, opens and other operations that have ended, as the kernel counts them.",
)
OPERATIONS.counter(
    "filesystem_operation_seconds",
    "How long these took together, from the request to its end.",
)
OPERATIONS.counter(
    "filesystem_operation_bytes",
    "Bytes that reads and writes moved.",
)

CANARY_READS = MEASURED.labelled(
    "operation", absent="without storage.canary.reads, and where no file was read"
)
CANARY_READS.gauge(
    "filesystem_canary_read_seconds",
    "How long finding, opening and reading a block of a file took in the last test reads: the median of three.",
)

FAMILIES = (*TABLE.families, *MEASURED.families)


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """The values that the storage collectors read last, and the number of alerts by kind."""
    if snapshot.storage is None:
        return
    yield from storage_measures(FAMILIES, snapshot)
    counts: dict[str, int] = {}
    for alarm in snapshot.storage.alarms:
        counts[alarm.kind] = counts.get(alarm.kind, 0) + 1
    for kind, count in counts.items():
        yield Sample(ALARMS, (kind,), count)


def create(options: NoOptions) -> MetricGroup:
    """Build the metric group `filesystems`: filesystems that jobs use: how full, how long they last, which do not answer; and all storage alarms."""
    return MetricGroup(FAMILIES, samples)
