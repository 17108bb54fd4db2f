"""Several kernel lines about one error: where each comes from, which one adds something, which is the worst, which is only a consequence.

Pure.
"""

import msgspec

from mldebug.core.model import MeasuredData
from mldebug.core.redact import safe_line
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind, Origin
from mldebug.hardware.kernel_log.xids import NOTHING_ASKED, ORDER, Action, Tier, judge, xid_row


def follows(event: KernelEvent) -> bool:
    """Whether the line is an Xid that occurs only as a consequence of another error.

    Errors of NVSwitches (SXids) never are.
    """
    return (
        event.kind is KernelEventKind.XID and event.xid is not None and xid_row(event.xid).follows
    )


def made_safe(event: KernelEvent) -> KernelEvent:
    """The event with texts cleaned of control characters and secrets, and cut, so that they may be shown to anyone."""
    return msgspec.structs.replace(
        event,
        text=safe_line(event.text, 300),
        process=safe_line(event.process, 64),
        device=safe_line(event.device, 100),
        alias=safe_line(event.alias, 64),
        driver=safe_line(event.driver, 64),
        group=safe_line(event.group, 300),
    )


def source_of(event: KernelEvent) -> str:
    """Where an Xid comes from: `line` (the log, with its number), `lost` (the log, about a lost GPU), `nvml` or `fabric_manager`."""
    if event.origin in (Origin.NVML, Origin.FABRIC_MANAGER):
        return event.origin.value
    return "lost" if event.kind is KernelEventKind.GPU_LOST else "line"


def adds_to(event: KernelEvent, root: KernelEvent) -> bool:
    """Whether the line is about the same error as `root` and has something that `root` lacks: a pid, a GPU, or the details of an OOM kill."""
    if event.kind is KernelEventKind.OOM_KILL:
        return True
    if event.xid is None or event.xid != root.xid:
        return False
    named = root.pid is None and (event.pid is not None or root.origin is Origin.NVML)
    return named or (not root.uuid and bool(event.uuid))


def completed(one: KernelEvent, other: KernelEvent) -> KernelEvent:
    """Merge two reports of one error into one event.

    Of an OOM kill one line has the cgroup and the other the memory; an Xid from NVML lacks the
    process.
    """
    if one.kind is not KernelEventKind.OOM_KILL:
        fuller = one if one.pid is not None or other.origin is Origin.NVML else other
        return msgspec.structs.replace(fuller, at=one.at, uuid=one.uuid or other.uuid)
    return msgspec.structs.replace(
        one if one.rss_bytes is not None else other,
        at=one.at,
        sequence=one.sequence,
        group=one.group or other.group,
        scope=one.scope or other.scope,
        rss_bytes=one.rss_bytes if one.rss_bytes is not None else other.rss_bytes,
    )


class Worst(MeasuredData, frozen=True, kw_only=True):
    """The worst error of a burst of lines: the first one of the worst tier. `at`: its own unix time, not that of the burst's root."""

    xid: int
    tier: Tier
    at: float
    trusted: bool = True  # False: a program wrote it into the kernel's log
    action: Action = "none"
    in_words: bool = True  # False: only NVML reported it, by its number


def judged(event: KernelEvent, xid: int) -> Worst:
    """How bad one event is by itself. `xid`: the number under which it is counted."""
    tier, action = judge(event)
    return Worst(
        xid=xid,
        tier=tier,
        at=event.at,
        trusted=event.origin is not Origin.USER_SPACE,
        action=action,
        in_words=event.origin is not Origin.NVML,
    )


def worse(before: Worst, line: Worst) -> Worst:
    """The worse of two reports of one Xid (an error number of NVIDIA's driver).

    A line in the kernel's log is preferred to NVML, which gives only the number.

    Of two equally bad lines, one that the kernel wrote counts more than one that a program wrote.
    """
    if before.in_words is not line.in_words:
        fuller = before if before.in_words else line
        return msgspec.structs.replace(fuller, at=min(before.at, line.at))
    if weight(line) > weight(before):
        return line
    again = line.tier is before.tier and line.trusted is before.trusted and line.at < before.at
    return msgspec.structs.replace(before, at=line.at) if again else before


def weight(line: Worst) -> tuple[int, bool]:
    """The sort key by which errors are compared: the greatest is the worst."""
    return ORDER.index(line.tier), line.trusted


def ends_it(event: KernelEvent) -> bool:
    """Whether the kernel's line says that the driver asks for nothing any more: the GPU was reset, and earlier errors are over."""
    return event.recovery.lower() == NOTHING_ASKED and event.origin is Origin.KERNEL
