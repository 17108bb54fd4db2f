"""What the kernel's log says: Xids by GPU, other kernel events by kind, and whether the log can be read."""

from collections.abc import Iterator

from mldebug.core.plugins import NoOptions
from mldebug.hardware.kernel_log.counts import KernelCounts, XidCount
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import FamilyTable, Importance, MetricGroup, Sample

NONE_YET = "before the first one"
SINCE = "since the agent's start and in the hours before it that it reads back"

TABLE = FamilyTable(absent=NONE_YET)
XIDS = TABLE.counter(
    "gpu_xid",
    f"Xid errors of a GPU {SINCE}; what the kernel's log and NVML both tell counts once. `gpu` is the PCI address"
    " where no index is known.",
    "uuid",
    "gpu",
    "xid",
    importance=Importance.RUN,
)
XID_LAST = TABLE.gauge(
    "gpu_xid_last_timestamp_seconds",
    "Unix time of the last such Xid: `increase()` does not see the first one of a series, this does.",
    "uuid",
    "gpu",
    "xid",
    importance=Importance.RUN,
)
EVENTS = TABLE.counter(
    "kernel_events", f"Events in the kernel's log that are no Xids {SINCE}.", "kind"
)
EVENT_LAST = TABLE.gauge(
    "kernel_event_last_timestamp_seconds", "Unix time of the last event of that kind.", "kind"
)
READABLE = TABLE.gauge(
    "kernel_log_readable",
    "1 where the kernel's log can be read; `mldebug doctor` says what is missing.",
    absent="before the first look",
)
OVERRUNS = TABLE.counter(
    "kernel_log_overruns",
    "Times that the kernel overwrote records before the agent had read them.",
    absent="before the first look",
)
LOST = TABLE.counter(
    "kernel_log_lost_records",
    "Records of the kernel's log that were overwritten before the agent had read them.",
    absent="before the first look",
)


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """The counts of kernel log events; none where the log cannot be read."""
    if snapshot.kernel is not None:
        yield from _samples(snapshot.kernel)


def _samples(counts: KernelCounts) -> Iterator[Sample]:
    for xid in counts.xids:
        labels = _labels(xid)
        yield Sample(XIDS, labels, xid.count)
        yield Sample(XID_LAST, labels, xid.last_at)
    for kind in counts.kinds:
        yield Sample(EVENTS, (kind.kind.value,), kind.count)
        yield Sample(EVENT_LAST, (kind.kind.value,), kind.last_at)
    yield Sample(READABLE, (), int(counts.readable))
    yield Sample(OVERRUNS, (), counts.overruns)
    yield Sample(LOST, (), counts.lost)


def _labels(one: XidCount) -> tuple[str, str, str]:
    return (one.uuid, one.device if one.gpu is None else str(one.gpu), str(one.xid))


def create(options: NoOptions) -> MetricGroup:
    """Build the metric group `kernellog`: what the kernel's log says: Xids by GPU, other kernel events by kind, and whether the log can be read."""
    return MetricGroup(TABLE.families, samples)
