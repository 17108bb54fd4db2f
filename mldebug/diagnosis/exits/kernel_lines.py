"""What the kernel says about processes that died: OOM kills and crashes, from lines of /dev/kmsg or dmesg.

Pure.

Lines that programs wrote into the log are ignored: only root can write there, but with some
settings journald does so for anybody.
"""

from collections.abc import Iterable

from mldebug.core.redact import safe_line
from mldebug.diagnosis.exits.model import KernelDeath
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind, Origin
from mldebug.hardware.kernel_log.parse import parse_event
from mldebug.hardware.kernel_log.records import parse_printed, parse_record

_DEATHS = {KernelEventKind.OOM_KILL: "out_of_memory", KernelEventKind.CRASH: "crash"}


def kernel_deaths(lines: Iterable[str]) -> tuple[KernelDeath, ...]:
    """The ends of processes in these kernel lines, in their order.

    Of several lines about one process and kind of end the last one is kept; of an OOM kill the last one that says how much memory the
    process had, if one does.
    """
    found: dict[tuple[int, str], KernelDeath] = {}
    with_memory: set[tuple[int, str]] = set()
    for line in lines:
        record = parse_record(line) or parse_printed(line)
        event = parse_event(record) if record else None
        death = kernel_death(event, event.at) if event else None
        if event is None or death is None:
            continue
        key = death.pid, death.kind
        if event.rss_bytes is not None:
            with_memory.add(key)
        if event.rss_bytes is not None or key not in with_memory:
            found[key] = death
    return tuple(found.values())


def kernel_death(event: KernelEvent, at: float) -> KernelDeath | None:
    """The end of a process that a kernel line reports; None for other lines, and for those that a program wrote.

    `at`: seconds of the kernel's clock.
    """
    kind = _DEATHS.get(event.kind)
    if kind is None or event.pid is None or event.origin is not Origin.KERNEL:
        return None
    return KernelDeath(pid=event.pid, kind=kind, text=safe_line(event.text, 300), at=at)
