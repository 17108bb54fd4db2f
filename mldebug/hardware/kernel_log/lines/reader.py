"""What the readers of kernel lines share: how one is declared, and PCI addresses in one spelling."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from mldebug.hardware.kernel_log.model import MAX_TEXT, KernelEvent, KernelEventKind, Origin

MAX_NAME = 64  # characters of a device or process name
MAX_LINE = 4096  # characters of a record that are looked at

ADDRESS = r"[0-9a-fA-F]{1,8}:[0-9a-fA-F]{1,2}:[0-9a-fA-F]{1,2}\.[0-7]"

_ADDRESS = re.compile(
    r"(?:PCI:)?(?:(?P<domain>[0-9a-f]{1,8}):)?(?P<bus>[0-9a-f]{1,4}):(?P<slot>[0-9a-f]{1,2})(?:\.(?P<function>[0-7]))?"
    r"(?: .*)?",  # a MIG instance: "PCI:0000:47:00 GPU-I:05"
    re.IGNORECASE,
)


class KernelText(NamedTuple):
    """The text of a kernel record, and whether the kernel or a program wrote it."""

    text: str  # all lines, at most MAX_LINE characters
    by_kernel: bool  # not by a program that wrote into the log


Reader = Callable[[KernelText], KernelEvent | None]


class LineReader(NamedTuple):
    """A function that reads kernel lines of some kind.

    `word`: a text that each such line contains, so that others are skipped fast.
    """

    word: str
    read: Reader


def event(line: KernelText, kind: KernelEventKind, **more: Any) -> KernelEvent:
    """A kernel event without a time; the caller adds the time of the line's record."""
    return KernelEvent(
        kind=kind,
        at=0.0,
        text=line.text[:MAX_TEXT],
        origin=Origin.KERNEL if line.by_kernel else Origin.USER_SPACE,
        **more,
    )


@lru_cache(maxsize=256)
def bus_id(text: str) -> str:
    """Return a PCI address as lspci and sysfs write it, `0000:3b:00.0`; "" for a text that is not a PCI address.

    Understands `PCI:0000:3b:00`, `0000:3b:00`, `00000000:3B:00.0` (NVML), `3b:00`, `0002:00` (bus and slot, of 2012).
    """
    match = _ADDRESS.fullmatch(text.strip())
    if match is None:
        return ""
    bus, slot = int(match["bus"], 16), int(match["slot"], 16)
    if bus > 0xFF or slot > 0x1F:
        return ""
    domain = int(match["domain"] or "0", 16)
    return f"{domain:04x}:{bus:02x}:{slot:02x}.{match['function'] or '0'}"
