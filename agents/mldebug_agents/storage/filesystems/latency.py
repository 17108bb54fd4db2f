"""Collects how long operations take on the filesystems that jobs use, from counters of the kernel: NFS, Lustre, block devices."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from mldebug.core.model import Gap, Job
from mldebug.storage.filesystems.latency import FilesystemLatency, latency_alerts, latency_line
from mldebug.storage.filesystems.operation_counters import (
    MAX_TEXT,
    Counts,
    block_counts,
    lustre_counts,
    nfs_counts,
)
from mldebug.storage.filesystems.state import Measure, Row, StorageAlert
from mldebug.storage.filesystems.visibility import UIDS, uids_cell
from mldebug_agents.storage.filesystems.mounts import Key, UsedMount
from mldebug_agents.storage.filesystems.state import labels
from mldebug_agents.system.context import Context

INTERVAL = 15.0  # seconds
TIMEOUT = 5.0  # for all files together
LUSTRE = ("sys/kernel/debug/lustre/llite", "proc/fs/lustre/llite")


class LatencyCollector:
    """Compares the times of operations with what is usual on each filesystem. Filesystems without counters (FUSE, object
    stores, overlays) are left out: `storage.canary.reads` measures those.
    """

    name = "latency"

    def __init__(self, context: Context, mounts: Callable[[], Sequence[UsedMount]]) -> None:
        """`mounts`: the filesystems that jobs use, as they were found last."""
        self._context, self._mounts = context, mounts
        self._kept: dict[Key, FilesystemLatency] = {}
        self._used: dict[Key, UsedMount] = {}
        self._counted = frozenset[str]()
        self._at = 0.0

    @property
    def interval(self) -> float:
        """Seconds between two readings of the counters: `INTERVAL`, or less where `storage.interval` is less."""
        return min(INTERVAL, self._context.config.storage.interval)

    def look(self, now: float, jobs: Sequence[Job]) -> None:
        """Read the counters of all filesystems that jobs use. `now`: unix time."""
        sources = {one.key: path for one in self._mounts() if (path := self._source(one))}
        used = {one.key: one for one in self._mounts() if one.key in sources}
        read = self._context.reader.read_many(
            sorted(set(sources.values())), max_bytes=MAX_TEXT, timeout=TIMEOUT
        )
        texts = {path: data.decode(errors="surrogateescape") for path, data in read.items() if isinstance(data, bytes)}  # fmt: skip
        of_nfs = {path: nfs_counts(text) for path, text in texts.items() if path.endswith("/mountstats")}  # fmt: skip
        self._at, self._used = now, used
        self._kept = {key: self._kept.get(key) or FilesystemLatency() for key in used}
        for key, one in used.items():
            if counts := _counts(one, sources[key], texts, of_nfs):
                self._kept[key].add(now, counts)
        self._counted = frozenset(key[0] for key, one in self._kept.items() if one.totals)

    def samples(self) -> Iterator[Measure]:
        """Operations that have ended, and the seconds that they took together, since each filesystem was mounted."""
        by_labels = {labels(one): key for key, one in self._used.items()}
        for where, key in by_labels.items():
            for kind, count in self._kept[key].totals.items():
                for metric, value in (("operations", count.operations), ("operation_seconds", count.seconds)):  # fmt: skip
                    yield Measure(
                        metric=f"mldebug_filesystem_{metric}",
                        labels=(*where, kind),
                        value=float(value),
                        uids=self._used[key].uids,
                    )

    def status(self) -> dict[str, tuple[Row, ...]]:
        """The table "latency" of `mldebug status --storage`: a row for each filesystem with counters."""
        rows = tuple(
            self._row(key, one) for key, one in self._used.items() if self._kept[key].totals
        )
        return {"latency": rows} if rows else {}

    @property
    def counted(self) -> frozenset[str]:
        """The device numbers of the filesystems whose operations the kernel counts. Safe from any thread."""
        return self._counted

    def _row(self, key: Key, one: UsedMount) -> Row:
        totals = self._kept[key].totals
        means = {f"{kind}_seconds": count.seconds / count.operations for kind, count in totals.items() if count.operations}  # fmt: skip
        line = latency_line(one.title, totals)
        return {
            "title": one.title,
            "mount": one.name,
            **means,
            UIDS: uids_cell(one.uids),
            "line": line,
        }

    def alarms(self) -> Iterator[StorageAlert]:
        """An alert for each kind of operations that takes much longer than usual."""
        for key, one in self._used.items():
            for alert in latency_alerts(one.title, self._kept[key].slow(self._at)):
                yield msgspec.structs.replace(alert, uids=one.uids, device=one.mount.device)

    def gaps(self) -> Sequence[Gap]:
        """Always empty: most filesystems have no such counters, and a missing figure is no fault."""
        return ()

    def _source(self, one: UsedMount) -> str:
        """The file with the counters of a mount; "" where it has none."""
        host = self._context.host
        if one.mount.fstype.startswith("nfs"):
            return f"{host.proc}/{min(one.ranks) if one.ranks else 'self'}/mountstats"
        if one.mount.fstype == "lustre":
            return _lustre_stats(host.root, one.mount.source)
        stat = f"{host.root}/sys/dev/block/{one.mount.device}/stat"
        return stat if os.path.lexists(os.path.dirname(stat)) else ""


def _lustre_stats(root: str, source: str) -> str:
    """`10.0.0.1@tcp:/scratch` is counted in the folder `scratch-ffff9a…`."""
    name = source.rpartition(":/")[2].partition("/")[0]
    for folder in LUSTRE:
        try:
            found = sorted(os.listdir(f"{root}/{folder}"))
        except OSError:  # another version of Lustre, or no right to look
            continue
        for one in found:
            if name and one.rpartition("-")[0] == name:
                return f"{root}/{folder}/{one}/stats"
    return ""


def _counts(
    one: UsedMount, path: str, texts: Mapping[str, str], of_nfs: Mapping[str, Mapping[str, Counts]]
) -> Counts:
    if path in of_nfs:
        return of_nfs[path].get(one.mount.point, {})
    text = texts.get(path, "")
    return lustre_counts(text) if one.mount.fstype == "lustre" else block_counts(text)
