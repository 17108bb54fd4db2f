"""Probes of collectives: the newest figure of each series, and whether it has shifted against its own history."""

from collections.abc import Iterator

import msgspec

from mldebug.probes.history import Judged, Standing
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import Family, Importance, Sample

LABELS = ("op", "bytes", "dtype", "ranks", "device", "nodes", "settings")


def _gauge(name: str, told: str, absent: str) -> Family:
    return Family(name=f"mldebug_probe_{name}", kind="gauge", help=told, labels=LABELS, absent=absent, importance=Importance.DETAIL)  # fmt: skip


NONE = "where nobody has probed, and while the history cannot be read"
BUSBW = _gauge("busbw_bytes_per_second", "Bus bandwidth of the last run, by nccl-tests' factors.", "for barrier, and where nobody has probed")  # fmt: skip
LAST = _gauge("last_run_timestamp_seconds", "Unix time of the last run.", NONE)
SHIFTED = _gauge("shifted", "1 where the last 3 runs are all slower than the series' own history allows, else 0.", "before 11 runs")  # fmt: skip


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class ProbeMetrics:
    """Of the history on this node; of series that differ only in versions the one that was measured last."""

    families = (BUSBW, LAST, SHIFTED)

    def samples(self, snapshot: Snapshot) -> Iterator[Sample]:
        """As of the last time that the file had changed."""
        for one in snapshot.probes or ():
            yield from _series(one)


def _series(one: Judged) -> Iterator[Sample]:
    series, last = one.series, one.last[-1]
    numbers = (series.op, str(series.bytes), series.dtype, str(series.ranks))
    key = (*numbers, series.device, series.nodes, series.settings)
    if last.busbw > 0:
        yield Sample(BUSBW, key, last.busbw)
    yield Sample(LAST, key, last.at)
    if one.standing is not Standing.FEW:
        yield Sample(SHIFTED, key, float(one.standing is Standing.SHIFTED))


def create(options: Options) -> ProbeMetrics:
    """Build the group."""
    return ProbeMetrics()
