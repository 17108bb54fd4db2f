"""Kernel events of lines, and bursts of events, all at once."""

from collections.abc import Iterable

from mldebug.hardware.kernel_log.bursts import Burst, Folding
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind
from mldebug.hardware.kernel_log.parse import parse_event
from mldebug.hardware.kernel_log.records import parse_printed, parse_record

OF_FABRIC_MANAGER = frozenset(kind for kind in KernelEventKind if kind.value.startswith("fabric_"))
"""What no line of the kernel tells, but the log of NVIDIA's Fabric Manager."""


def parse_line(line: str, boot_time: float = 0.0) -> KernelEvent | None:
    """The event in one line of /dev/kmsg, dmesg or `journalctl -k`; None for a line without one, as most are.

    `boot_time`: unix time of the boot, which is added where the line has only seconds since then.
    """
    record = parse_record(line) or parse_printed(line)
    return parse_event(record, record.unix(boot_time)) if record else None


def fold(events: Iterable[KernelEvent]) -> tuple[Burst, ...]:
    """All bursts of a finite series of events."""
    folding = Folding()
    for event in events:
        folding.add(event)
    return folding.bursts()
