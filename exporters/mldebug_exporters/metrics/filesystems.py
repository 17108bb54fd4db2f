"""Filesystems that jobs use: how full, how long they last, which do not answer; and all storage alarms."""

from collections.abc import Iterator

import msgspec

from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import Family, Importance, Sample

LABELS = ("mount", "device", "fstype")
SILENT = "for a filesystem that does not answer"
FULL = "for one that does not answer or is read-only"


def _gauge(name: str, help_: str, absent: str) -> Family:
    return Family(
        name=f"mldebug_filesystem_{name}",
        kind="gauge",
        help=help_,
        labels=LABELS,
        absent=absent,
        importance=Importance.DETAIL,
    )


MEASURED = (
    _gauge("stuck_seconds", "Since when a call there has not come back; 0 where it answers.", "never"),
    _gauge("read_only", "1 where nothing can be written.", SILENT),
    _gauge("size_bytes", "Size.", SILENT),
    _gauge("available_bytes", "Free for ordinary users, as the filesystem says.", SILENT),
    _gauge("usable_free_bytes", "Left before writes fail: less where a filesystem fails before it is full.", FULL),
    _gauge("used_ratio", "Used share of what can be used, 0 to 1.", FULL),
    _gauge("inodes", "Inodes.", "where they are not counted, " + FULL),
    _gauge("inodes_free", "Inodes that are left.", "where they are not counted, " + FULL),
    _gauge("full_seconds", "Until it is full, as it grows now.", "while it does not grow, or too little was seen"),
    _gauge("saves_left", "The save of this number does not fit any more; 1 is the next one.", "while no saves are known that stay"),
    _gauge("inodes_full_seconds", "Until no inode is left, as it grows now.", "while they do not grow"),
)  # fmt: skip
UNANSWERED = Family(
    name="mldebug_filesystem_unanswered",
    kind="gauge",
    help="Filesystems that could not be asked at the last look, and jobs whose open files may not be seen.",
    absent="before the first look",
)
QUOTA = Family(
    name="mldebug_quota_used_ratio",
    kind="gauge",
    help="Used share of a configured quota; above 1 within a grace period.",
    labels=("quota",),
    absent="where its tool could not be asked",
)
QUOTA_FAILED = Family(
    name="mldebug_quota_failed",
    kind="gauge",
    help="1 where the tool of a configured quota failed, hung, or printed what the pattern does not match.",
    labels=("quota",),
    absent="while no quota is configured",
)
_OWNER = ("mount", "device", "kind", "id")
KERNEL_QUOTA = Family(
    name="mldebug_filesystem_quota_used_ratio",
    kind="gauge",
    help="Used share of the bytes that the kernel's quota allows a user, group or project of a rank.",
    labels=_OWNER,
    absent="where no quota with a limit is kept",
)
KERNEL_QUOTA_INODES = Family(
    name="mldebug_filesystem_quota_inodes_used_ratio",
    kind="gauge",
    help="Used share of the inodes that the kernel's quota allows a user, group or project of a rank.",
    labels=_OWNER,
    absent="where no quota with a limit is kept",
)
CANARY_FAILED = Family(
    name="mldebug_filesystem_canary_failed",
    kind="gauge",
    help="1 where the last test write failed or has not come back.",
    labels=("path",),
    absent="without storage.canary",
)
CANARY_SECONDS = Family(
    name="mldebug_filesystem_canary_seconds",
    kind="gauge",
    help="How long the last test write took, or has not come back.",
    labels=("path",),
    absent="without storage.canary, and where the folder could not be opened",
)
ALARMS = Family(
    name="mldebug_storage_alarms",
    kind="gauge",
    help="Storage alarms that are on, by kind.",
    labels=("kind",),
    absent="while there is none of that kind",
)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class FilesystemMetrics:
    """What the storage desk measured."""

    families = (UNANSWERED, QUOTA, QUOTA_FAILED, KERNEL_QUOTA, KERNEL_QUOTA_INODES, CANARY_FAILED, CANARY_SECONDS, ALARMS, *MEASURED)  # fmt: skip

    def samples(self, snapshot: Snapshot) -> Iterator[Sample]:
        """Those of the last look."""
        if snapshot.storage is None:
            return
        known = {family.name: family for family in self.families}
        for one in snapshot.storage.measures:
            if one.metric in known:
                yield Sample(known[one.metric], one.labels, one.value)
        counts: dict[str, int] = {}
        for alarm in snapshot.storage.alarms:
            counts[alarm.kind] = counts.get(alarm.kind, 0) + 1
        for kind, count in counts.items():
            yield Sample(ALARMS, (kind,), count)


def create(options: Options) -> FilesystemMetrics:
    """Build the group."""
    return FilesystemMetrics()
