"""Xids that the driver told through NVML, as events beside those of the kernel's log."""

from mldebug.hardware.gpu.readings import GpuEvent
from mldebug.hardware.kernel_log.line_readers import bus_id
from mldebug.hardware.kernel_log.model import KernelEvent, Kind, Origin


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
