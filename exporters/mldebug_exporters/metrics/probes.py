"""Probes of collectives: the newest figure of each series, and whether it has shifted against its own history."""

from collections.abc import Iterator

from mldebug.core.plugins import NoOptions
from mldebug.probes.history import JudgedSeries, SeriesTrend
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import FamilyTable, Importance, MetricGroup, Sample

NONE = "where nobody has probed, and while the history cannot be read"

TABLE = FamilyTable(
    "op", "bytes", "dtype", "ranks", "device", "nodes", "settings", importance=Importance.DETAIL
)
BUSBW = TABLE.gauge(
    "probe_busbw_bytes_per_second",
    "Bus bandwidth of the last run, by nccl-tests' factors.",
    absent="for barrier, and where nobody has probed",
)
LAST = TABLE.gauge("probe_last_run_timestamp_seconds", "Unix time of the last run.", absent=NONE)
SHIFTED = TABLE.gauge(
    "probe_shifted",
    "1 where the last 3 runs are all slower than the series' own history allows, else 0.",
    absent="before 11 runs",
)


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """The last run of each series in the probe history."""
    for probe in snapshot.probes or ():
        yield from _series(probe)


def _series(one: JudgedSeries) -> Iterator[Sample]:
    series, last = one.series, one.last[-1]
    numbers = (series.op, str(series.bytes), series.dtype, str(series.ranks))
    key = (*numbers, series.device, series.nodes, series.settings)
    if last.busbw > 0:
        yield Sample(BUSBW, key, last.busbw)
    yield Sample(LAST, key, last.at)
    if one.standing is not SeriesTrend.FEW:
        yield Sample(SHIFTED, key, float(one.standing is SeriesTrend.SHIFTED))


def create(options: NoOptions) -> MetricGroup:
    """Build the metric group `probes`: probes of collectives: the newest figure of each series, and whether it has shifted against its own history."""
    return MetricGroup(TABLE.families, samples)
