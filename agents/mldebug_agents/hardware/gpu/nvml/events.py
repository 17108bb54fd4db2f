"""Events that the driver reports by itself (above all Xids, NVIDIA's error numbers), collected without waiting at every quick
reading.

An event names the GPU and the Xid; the process and the text are only in the kernel log.
"""

import contextlib
import ctypes
import time
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from mldebug.hardware.gpu.readings import GpuEvent
from mldebug_agents.hardware.gpu.nvml.calls import Device

MAX_EVENTS = 256  # of one read; more come with the next
XID = 0x8
KINDS = {
    XID: "xid",
    0x2: "double_bit_ecc",
    0x400: "dram_retirement",
    0x800: "dram_retirement_failure",
    0x1000: "nonfatal_poison",
    0x2000: "fatal_poison",
    0x4000: "gpu_unavailable",
    0x8000: "recovery_action",
}


class NvmlEvents:
    """Receives the driver's events (Xids, memory errors). Keep one object: it owns the event set. GPUs that report no events
    are left out.
    """

    def __init__(self, nvml: ModuleType) -> None:
        self._nvml = nvml
        self._set: Any = None
        self._members: dict[int, Device] = {}  # by address of the handle
        self._unwilling: set[str] = set()  # uuids

    def join(self, devices: Iterable[Device]) -> None:
        """Receive events of these GPUs, too, from now on."""
        for device in devices:
            member = self._members.get(_address(device.handle))
            if member is not device and device.uuid not in self._unwilling:
                self._register(device)

    def drain(self) -> tuple[GpuEvent, ...]:
        """Return the driver's events since the last call; never waits."""
        found: list[GpuEvent] = []
        while self._set is not None and len(found) < MAX_EVENTS:
            try:
                raw = self._nvml.nvmlEventSetWait_v2(self._set, 0)
            except (self._nvml.NVMLError, AttributeError):  # "timeout": there is no more
                break
            event = self._event(raw)
            if event is not None:
                found.append(event)
        return tuple(found)

    def close(self) -> None:
        """Free the event set; call it before the library is shut down."""
        if self._set is not None:
            # the driver is gone, and the set with it
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlEventSetFree(self._set)
        self._set = None
        self._members.clear()
        self._unwilling.clear()

    def _register(self, device: Device) -> None:
        try:
            self._set = self._set or self._nvml.nvmlEventSetCreate()
            able = self._nvml.nvmlDeviceGetSupportedEventTypes(device.handle)
            self._nvml.nvmlDeviceRegisterEvents(device.handle, able & sum(KINDS), self._set)
            self._members[_address(device.handle)] = device
        except (self._nvml.NVMLError, AttributeError):
            self._unwilling.add(device.uuid)

    def _event(self, data: Any) -> GpuEvent | None:
        device = self._members.get(_address(data.device))
        kind = KINDS.get(data.eventType)
        if device is None or kind is None:
            return None
        return GpuEvent(
            at=time.time(),
            uuid=device.uuid,
            index=device.index,
            bus_id=device.bus_id,
            kind=kind,
            xid=int(data.eventData) if data.eventType == XID and data.eventData < 2**16 else None,
        )


def _address(handle: Any) -> int:
    """Where a handle points: two objects of one handle compare by it."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
