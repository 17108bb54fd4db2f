"""Collects how long operations take on the filesystems that jobs use, from counters of the kernel: NFS, Lustre, block devices; GPFS by its tool."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from mldebug.core.model import Gap, Job
from mldebug.core.units import percent
from mldebug.storage.filesystems.latency import FilesystemLatency, latency_alerts, latency_line
from mldebug.storage.filesystems.mmpmon import REQUESTS, mmpmon_counts
from mldebug.storage.filesystems.operation_counters import (
    MAX_TEXT,
    READ,
    WRITE,
    Counts,
    block_counts,
    lustre_counts,
    nfs_counts,
    pressure_seconds,
)
from mldebug.storage.filesystems.state import Measure, Row, StorageAlert
from mldebug.storage.filesystems.visibility import UIDS, uids_cell
from mldebug_agents.storage.filesystems.mounts import Key, UsedMount
from mldebug_agents.storage.filesystems.state import labels
from mldebug_agents.system.context import Context

INTERVAL = 15.0  # seconds
TIMEOUT = 5.0  # for all files together
GPFS = "mmpmon"  # stands for a file
C_LOCALE = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C", "LANG": "C"}
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
        self._pressure: Mapping[str, float] = {}
        self._waited: float | None = None
        self._gpfs_failed = ""

    @property
    def interval(self) -> float:
        """Seconds between two readings of the counters: `INTERVAL`, or less where `storage.interval` is less."""
        return min(INTERVAL, self._context.config.storage.interval)

    def look(self, now: float, jobs: Sequence[Job]) -> None:
        """Read the counters of all filesystems that jobs use. `now`: unix time."""
        pressure = f"{self._context.host.proc}/pressure/io"
        sources = {one.key: path for one in self._mounts() if (path := self._source(one))}
        used = {one.key: one for one in self._mounts() if one.key in sources}
        read = self._context.reader.read_many(
            sorted({pressure, *sources.values()}), max_bytes=MAX_TEXT, timeout=TIMEOUT
        )
        texts = {path: data.decode(errors="surrogateescape") for path, data in read.items() if isinstance(data, bytes)}  # fmt: skip
        of_nfs = {path: nfs_counts(text) for path, text in texts.items() if path.endswith("/mountstats")}  # fmt: skip
        of_gpfs = self._gpfs(used.values())
        self._note_pressure(now, texts.get(pressure, ""))
        self._at, self._used = now, used
        self._kept = {key: self._kept.get(key) or FilesystemLatency() for key in used}
        for key, one in used.items():
            if counts := _counts(one, sources[key], texts, of_nfs | of_gpfs):
                self._kept[key].add(now, counts)
        timed = (
            key[0] for key, one in self._kept.items() for kind in one.totals.values() if kind.timed
        )
        self._counted = frozenset(timed)

    def samples(self) -> Iterator[Measure]:
        """Operations that have ended, the seconds that they took together and the bytes that they moved, since each filesystem was mounted;
        and the seconds in which tasks of the node have waited for I/O.
        """
        for kind, seconds in self._pressure.items():
            yield Measure(metric="mldebug_io_pressure_seconds", labels=(kind,), value=seconds)
        by_labels = {labels(one): key for key, one in self._used.items()}
        for where, key in by_labels.items():
            for kind, count in self._kept[key].totals.items():
                figures = {"operations": float(count.operations)}
                figures |= {"operation_seconds": count.seconds} if count.timed else {}
                figures |= {"operation_bytes": count.bytes} if kind in (READ, WRITE) else {}
                for metric, value in figures.items():
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
        found = {"latency": rows} if rows else {}
        if self._waited is not None:
            words = f"tasks waited for I/O {percent(self._waited)} of the time"
            found["io_pressure"] = (
                {"title": "this node", "some_ratio": self._waited, "line": f"this node: {words}"},
            )
        return found

    @property
    def counted(self) -> frozenset[str]:
        """The device numbers of the filesystems whose operations the kernel counts. Safe from any thread."""
        return self._counted

    def _row(self, key: Key, one: UsedMount) -> Row:
        totals = self._kept[key].totals
        means = {f"{kind}_seconds": count.seconds / count.operations for kind, count in totals.items() if count.operations and count.timed}  # fmt: skip
        line = latency_line(one.title, totals, self._kept[key].last)
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
        """That GPFS could not be asked; that most filesystems have no such counters is no fault."""
        why = self._gpfs_failed
        return (
            (Gap(what="GPFS's counters", reason=why, way_out="check storage.mmpmon"),)
            if why
            else ()
        )

    def _note_pressure(self, now: float, text: str) -> None:
        before, self._pressure = self._pressure, pressure_seconds(text)
        seconds = now - self._at
        both = "some" in before and "some" in self._pressure and seconds > 0
        waited = self._pressure["some"] - before["some"] if both else 0.0
        self._waited = min(1.0, max(0.0, waited / seconds)) if both else None

    def _gpfs(self, used: Iterable[UsedMount]) -> dict[str, dict[str, Counts]]:
        """What GPFS counts, as `_counts` looks it up, by the site's own command; nothing where that fails or no job uses GPFS."""
        command = self._context.config.storage.mmpmon
        mounts = [one.mount for one in used if one.mount.fstype == "gpfs"]
        if not command or not mounts:
            return {}
        done = self._context.spawner.run(
            command, timeout=TIMEOUT, max_output=MAX_TEXT, env=C_LOCALE, stdin=REQUESTS
        )
        self._gpfs_failed = done.error or (
            f"it ended with {done.returncode}" if done.returncode else ""
        )
        counts = mmpmon_counts(done.stdout.decode(errors="replace"))
        return {GPFS: {one.point: counts.get(os.path.basename(one.source), {}) for one in mounts}}

    def _source(self, one: UsedMount) -> str:
        """The file with the counters of a mount; "" where it has none."""
        host = self._context.host
        if one.mount.fstype == "gpfs":
            return GPFS if self._context.config.storage.mmpmon else ""
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
