"""Xids that the driver told through NVML, as events beside those of the kernel's log."""

from mldebug.gpus.readings import GpuEvent
from mldebug.kernellog.facts import KernelEvent, Kind, Origin
from mldebug.kernellog.reading import bus_id


def xid_of_nvml(told: GpuEvent) -> KernelEvent | None:
    """The event, None where it is no Xid. Its time is that of the read that found it: NVML tells no other."""
    if told.kind != "xid" or told.xid is None:
        return None
    return KernelEvent(
        kind=Kind.XID,
        at=told.at,
        origin=Origin.NVML,
        device=bus_id(told.bus_id),
        uuid=told.uuid,
        xid=told.xid,
    )
