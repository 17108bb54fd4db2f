"""From a record of the kernel's log to the event that it tells. Pure: never raises, linear in the line's length."""

import re
from functools import lru_cache

import msgspec

from mldebug.hardware.kernel_log.lines import (
    adapters,
    amdgpu,
    disks,
    filesystems,
    hardware,
    kernel_faults,
    network,
    nics,
    nvidia,
    processes,
    remote_filesystems,
)
from mldebug.hardware.kernel_log.lines.reader import MAX_LINE, KernelText
from mldebug.hardware.kernel_log.model import KernelEvent
from mldebug.hardware.kernel_log.records import (
    KERNEL_FACILITY,
    KernelRecord,
)

SIGNS = (
    *nvidia.SIGNS,
    *processes.SIGNS,
    *kernel_faults.SIGNS,
    *filesystems.SIGNS,
    *remote_filesystems.SIGNS,
    *disks.SIGNS,
    *hardware.SIGNS,
    *amdgpu.SIGNS,
    *adapters.SIGNS,
    *nics.SIGNS,
    *network.SIGNS,
)
_BY_NAME = re.compile(
    r"(?!INFO: task ).{1,15}?(?:\[\d{1,10}\][: ]| invoked oom-killer: |: page allocation )",
    re.DOTALL,
)
"""Lines that begin with what a user called a program, and may end with what he called its file."""
_ANY = re.compile("|".join(re.escape(sign.word) for sign in SIGNS))


def parse_event(record: KernelRecord, at: float | None = None) -> KernelEvent | None:
    """The event in a record of the kernel log; None for a record without one, as most are.

    `at`: unix time of the event; without it the event keeps the kernel's own time, seconds since boot.
    """
    text = record.text[:MAX_LINE]
    if _ANY.search(text) is None:
        return None
    found = _event_of(KernelText(text, record.facility == KERNEL_FACILITY))
    if found is None:
        return None
    at = record.seconds if at is None else at
    return msgspec.structs.replace(found, at=at, sequence=record.sequence)


@lru_cache(maxsize=128)
def _event_of(line: KernelText) -> KernelEvent | None:
    """What a text tells, whenever it is said: a storm repeats few texts many times."""
    if _BY_NAME.match(line.text):
        return processes.crash(line) or processes.oomd_kill(line)
    for sign in SIGNS:
        if sign.word in line.text and (found := sign.read(line)) is not None:
            return found
    return None
