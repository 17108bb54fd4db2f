"""What the kernel's log says: Xids by GPU, other kernel events by kind, and whether the log can be read."""

from collections.abc import Iterator

import msgspec

from mldebug.hardware.kernel_log.counts import KernelCounts, XidCount
from mldebug.status.snapshot import Snapshot
from mldebug_exporters.exposition.families import Family, Importance, Sample

NONE_YET = "before the first one"
SINCE = "since the agent's start and in the hours before it that it reads back"

XIDS = Family(
    name="mldebug_gpu_xid",
    kind="counter",
    help=f"Xid errors of a GPU {SINCE}; what the kernel's log and NVML both tell counts once. `gpu` is the PCI address"
    " where no index is known.",
    labels=("uuid", "gpu", "xid"),
    absent=NONE_YET,
    importance=Importance.RUN,
)
XID_LAST = Family(
    name="mldebug_gpu_xid_last_timestamp_seconds",
    kind="gauge",
    help="Unix time of the last such Xid: `increase()` does not see the first one of a series, this does.",
    labels=("uuid", "gpu", "xid"),
    absent=NONE_YET,
    importance=Importance.RUN,
)
EVENTS = Family(
    name="mldebug_kernel_events",
    kind="counter",
    help=f"Events in the kernel's log that are no Xids {SINCE}.",
    labels=("kind",),
    absent=NONE_YET,
)
EVENT_LAST = Family(
    name="mldebug_kernel_event_last_timestamp_seconds",
    kind="gauge",
    help="Unix time of the last event of that kind.",
    labels=("kind",),
    absent=NONE_YET,
)
READABLE = Family(
    name="mldebug_kernel_log_readable",
    kind="gauge",
    help="1 where the kernel's log can be read; `mldebug doctor` says what is missing.",
    absent="before the first look",
)
OVERRUNS = Family(
    name="mldebug_kernel_log_overruns",
    kind="counter",
    help="Times that the kernel overwrote records before the agent had read them.",
    absent="before the first look",
)
LOST = Family(
    name="mldebug_kernel_log_lost_records",
    kind="counter",
    help="Records of the kernel's log that were overwritten before the agent had read them.",
    absent="before the first look",
)


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class KernelMetrics:
    """Counters of the kernel's log."""

    families = (XIDS, XID_LAST, EVENTS, EVENT_LAST, READABLE, OVERRUNS, LOST)

    def samples(self, snapshot: Snapshot) -> Iterator[Sample]:
        """What is known of the kernel's log."""
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


def create(options: Options) -> KernelMetrics:
    """Build the group."""
    return KernelMetrics()
