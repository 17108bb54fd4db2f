"""Counters over the whole life of the agent: kernel events by kind, Xids by GPU, and records that were lost. Pure."""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from mldebug.core.model import Gap, MeasuredData
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind

MAX_KEYS = 512  # pairs of GPU and Xid that are counted apart
OTHER = "other"  # the GPU that all further pairs are counted for
RECENT = 600.0  # seconds for which a loss is told of


class XidCount(MeasuredData, frozen=True, kw_only=True):
    """How often one Xid came from one GPU."""

    device: str  # 0000:3b:00.0; "" where the driver did not say which
    xid: int  # 0: several, after too many different ones
    count: int
    last_at: float  # unix
    uuid: str = ""
    gpu: int | None = None  # index


class KindCount(MeasuredData, frozen=True, kw_only=True):
    """How often events of one kind came that are no Xids."""

    kind: KernelEventKind
    count: int
    last_at: float  # unix


class KernelCounts(MeasuredData, frozen=True, kw_only=True):
    """All counters of kernel events. They never fall while the agent runs."""

    xids: tuple[XidCount, ...] = ()  # sorted by GPU and Xid
    kinds: tuple[KindCount, ...] = ()  # sorted
    records: int = 0  # read
    overruns: int = 0  # times that the kernel overwrote records before they were read
    lost: int = 0  # records that were overwritten
    readable: bool = True  # False: the kernel's log may not be read, nothing is known


class GpuLabel(NamedTuple):
    """UUID and index of a GPU that kernel lines call by its PCI address."""

    uuid: str
    gpu: int | None = None  # index


class _Sum:
    __slots__ = ("count", "last_at")

    def __init__(self) -> None:
        self.count = 0
        self.last_at = 0.0

    def add(self, count: int, at: float) -> None:
        self.count += count
        self.last_at = max(self.last_at, at)


class KernelEventCounter:
    """Counts kernel events, and what the reader of the log has read and missed. For one thread."""

    def __init__(self) -> None:
        self.records = 0
        self.overruns = 0
        self.lost = 0
        self._xids: dict[tuple[str, int], _Sum] = {}
        self._kinds: dict[KernelEventKind, _Sum] = {}

    def add_record(self, lost: int) -> None:
        """Count a record that was read.

        `lost`: how many records were overwritten unread, in all so far.
        """
        self.records += 1
        self.lost = lost

    def add_overrun(self) -> None:
        """Count a read that found that records were overwritten before it."""
        self.overruns += 1

    def add(self, event: KernelEvent, errors: int) -> None:
        """Count an event that stands for `errors` new errors. 0 only updates the time of the last one."""
        if event.kind is KernelEventKind.XID and event.xid is not None:
            self._add_xid(event.device, event.xid, errors, event.at)
            return
        if event.kind is KernelEventKind.GPU_LOST and event.xid is not None:
            self._add_xid(
                event.device, event.xid, errors, event.at
            )  # 0 where an Xid line told of it
        self._kinds.setdefault(event.kind, _Sum()).add(
            event.number if event.kind is KernelEventKind.GPU_LOST else errors, event.at
        )

    def _add_xid(self, device: str, xid: int, errors: int, at: float) -> None:
        key = (device, xid)
        if key not in self._xids and len(self._xids) >= MAX_KEYS:
            key = (OTHER, xid)
            if key not in self._xids and len(self._xids) >= 2 * MAX_KEYS:
                key = (OTHER, 0)
        self._xids.setdefault(key, _Sum()).add(errors, at)

    def now(self, *, readable: bool = True) -> KernelCounts:
        """Return all counters as they are now. `readable`: whether the kernel log can be read."""
        return KernelCounts(
            xids=tuple(
                XidCount(device=device, xid=xid, count=one.count, last_at=one.last_at)
                for (device, xid), one in sorted(self._xids.items())
            ),
            kinds=tuple(
                KindCount(kind=kind, count=one.count, last_at=one.last_at)
                for kind, one in sorted(self._kinds.items())
                if one.count
            ),
            records=self.records,
            overruns=self.overruns,
            lost=self.lost,
            readable=readable,
        )


def named(counts: KernelCounts, gpus: Mapping[str, GpuLabel]) -> KernelCounts:
    """Add UUID and index to the counters of GPUs whose PCI address is known."""
    unknown = GpuLabel("")
    xids = (
        msgspec.structs.replace(
            xid, uuid=gpus.get(xid.device, unknown).uuid, gpu=gpus.get(xid.device, unknown).gpu
        )
        for xid in counts.xids
    )
    return msgspec.structs.replace(counts, xids=tuple(xids))


class LostRecords:
    """Counts records that were overwritten before the agent read them. Times are of a monotonic clock, in seconds."""

    def __init__(self) -> None:
        self.all = 0
        self._lately = 0
        self._at = 0.0

    def add(self, records: int, at: float) -> None:
        """Count `records` lost records; 0 is allowed."""
        if records > 0:
            self.all += records
            self._lately = records + (self._lately if self._recent(at) else 0)
            self._at = at

    def gap(self, now: float) -> Gap | None:
        """Return the gap "kernel records were overwritten before the agent read them" while the last such loss is recent; None
        otherwise. `now`: monotonic seconds.
        """
        if not self._recent(now):
            return None
        many = "record was" if self._lately == 1 else "records were"
        return Gap(
            what="lost kernel records",
            reason=f"{self._lately} {many} overwritten before the agent read them: an Xid or an OOM kill may be missing",
            way_out="see what floods the log: dmesg | tail -50; a larger one: log_buf_len=16M for the kernel",
        )

    def _recent(self, now: float) -> bool:
        return self._lately > 0 and now - self._at < RECENT
