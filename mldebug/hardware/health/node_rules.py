"""The rules of the node: how many GPUs there are, what the kernel and the driver said lately, lack of memory.

Kernel events come as `RankEvent`s (mldebug.hardware.kernel_log.attribution), oldest first; those older than `event_window` say nothing.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from mldebug.hardware.gpu.expected import GpuCount, MissingGpu
from mldebug.hardware.health.model import (
    FINE,
    Action,
    Found,
    Health,
    State,
    bad,
    combine,
    unread,
)
from mldebug.hardware.health.thresholds import Thresholds
from mldebug.hardware.kernel_log.attribution import RankEvent, sentence
from mldebug.hardware.kernel_log.bursts import Burst
from mldebug.hardware.kernel_log.model import Kind, is_gpu
from mldebug.hardware.kernel_log.xids import Tier, xid_row

_OF_XID = {
    "none": Action.NONE,
    "restart_job": Action.CHECK_JOB,
    "check_job": Action.CHECK_JOB,
    "reset_gpu": Action.RESET,
    "reboot_node": Action.REBOOT,
    "check_hardware": Action.CHECK_HARDWARE,
    "update_driver": Action.CHECK_SETTINGS,
    "collect_report": Action.WATCH,
    "follow_driver": Action.WATCH,
    "unknown": Action.WATCH,
}
_FATAL = frozenset(
    {
        Kind.MACHINE_CHECK_UNCORRECTED,
        Kind.MEMORY_UNCORRECTED,
        Kind.PCIE_FATAL,
        Kind.PCIE_CONTAINED,
        Kind.NIC_FATAL,
        Kind.LOCKUP,
    }
)
_POOR = frozenset({Kind.HUNG_TASK, Kind.MACHINE_CHECK, Kind.PCIE_NONFATAL, Kind.PCIE_LINK_DOWN})
_CORRECTED = frozenset({Kind.MACHINE_CHECK_CORRECTED, Kind.MEMORY_CORRECTED})


def node_health(
    events: Sequence[RankEvent],
    at: float,
    limits: Thresholds,
    *,
    kernel_readable: bool,
    count: GpuCount | None = None,
    uuids: Mapping[str, tuple[str, int]] | None = None,
) -> tuple[Health, ...]:
    """Count of GPUs, Xids by GPU, kernel, memory. `uuids`: PCI address as the kernel writes it -> (uuid, index)."""
    recent = [one.burst for one in _once(events) if at - one.burst.last_at <= limits.event_window]
    nothing = () if kernel_readable else (unread("the kernel's log"),)
    told = [*_xids(recent, uuids or {}, nothing)]
    told.append(combine("kernel", [*_kernel(recent, limits), *_calm(kernel_readable), *nothing]))
    told.append(combine("memory", [*_memory(recent), *_calm(kernel_readable), *nothing]))
    if count is not None:
        told.append(combine("gpu_count", _count(count)))
    return tuple(told)


def _once(events: Iterable[RankEvent]) -> Iterator[RankEvent]:
    """One event concerns several ranks, and is one all the same."""
    seen: set[int] = set()
    for one in events:
        if id(one.burst) not in seen:
            seen.add(id(one.burst))
            yield one


def _calm(readable: bool) -> tuple[Found, ...]:
    return (FINE,) if readable else ()


def _count(count: GpuCount) -> Iterator[Found]:
    if not count.readable:
        yield unread("the GPUs")
        return
    for one in count.missing:
        told = f"{_gpu(one)} is missing: {one.reason}"
        yield bad(State.UNHEALTHY, "gpu_missing", told, Action.REBOOT)
    for one in count.silent:
        yield unread(f"{_gpu(one)} does not answer: {one.reason}")
    if count.silent:
        return
    if not count.missing and count.present < count.expected:
        told = f"{count.present} of {count.expected} GPUs are there"
        yield bad(State.UNHEALTHY, "gpu_missing", told, Action.REBOOT)
    yield FINE


def _gpu(one: MissingGpu) -> str:
    name = ", ".join(part for part in (one.gpu.bus_id, one.gpu.uuid) if part)
    return f"GPU {one.gpu.index} ({name})" if name else f"GPU {one.gpu.index}"


def _xids(
    recent: Iterable[Burst], uuids: Mapping[str, tuple[str, int]], nothing: tuple[Found, ...]
) -> Iterator[Health]:
    """One for each GPU that something was said of, and one for the others."""
    by_gpu: dict[tuple[str, int | None], list[Found]] = {}
    for burst in recent:
        if is_gpu(burst.root.kind):
            uuid, index = uuids.get(burst.root.device, (burst.root.uuid, None))
            by_gpu.setdefault((uuid, index), []).append(_xid(burst))
    if not by_gpu:
        yield combine("gpu_xid", nothing or (FINE,))
    for (uuid, index), found in by_gpu.items():
        yield combine("gpu_xid", [*found, *(nothing or (FINE,))], uuid, index)


def _xid(burst: Burst) -> Found:
    """What the job is to blame for is no fault of the GPU; a number that nobody knows is one sign."""
    words = sentence(RankEvent(burst=burst))
    number = burst.root.xid
    code = f"xid_{number}" if number is not None else burst.root.kind.value
    if burst.root.kind is Kind.GPU_LOST:
        return bad(State.UNHEALTHY, code, words, Action.REBOOT)
    if burst.root.kind is Kind.GPU_INIT_FAILED:
        return bad(State.UNHEALTHY, code, words, Action.CHECK_HARDWARE)
    action = max(
        (_OF_XID[xid_row(one).action] for one in burst.xids if one >= 0),
        key=list(Action).index,
        default=Action.WATCH,
    )
    if burst.tier is Tier.FATAL:
        return bad(State.UNHEALTHY, code, words, max(action, Action.RESET, key=list(Action).index))
    if burst.tier is Tier.WARNING:
        soft = Action.RESET_WHEN_IDLE if action is Action.RESET else action
        return bad(State.DEGRADED, code, words, soft)
    return FINE


def _kernel(recent: Sequence[Burst], limits: Thresholds) -> Iterator[Found]:
    for burst in recent:
        words, code = sentence(RankEvent(burst=burst)), burst.root.kind.value
        if burst.root.kind in _FATAL:
            yield bad(State.UNHEALTHY, code, words, Action.CHECK_HARDWARE)
        elif burst.root.kind in _POOR:
            yield bad(State.DEGRADED, code, words, Action.WATCH)
    corrected = sum(burst.count for burst in recent if burst.root.kind in _CORRECTED)
    if limits.memory_corrected is not None and corrected > limits.memory_corrected:
        told = f"{corrected} corrected errors of the host's memory or processors"
        yield bad(State.DEGRADED, "memory_corrected", told, Action.CHECK_HARDWARE)
    pcie = sum(burst.count for burst in recent if burst.root.kind is Kind.PCIE_CORRECTED)
    if limits.pcie_corrected is not None and pcie > limits.pcie_corrected:
        yield bad(
            State.DEGRADED, "pcie_corrected", f"{pcie} corrected PCIe errors", Action.CHECK_HARDWARE
        )


def _memory(recent: Sequence[Burst]) -> Iterator[Found]:
    kills = [burst for burst in recent if burst.root.kind is Kind.OOM_KILL]
    if kills:
        words = sentence(RankEvent(burst=kills[-1]))
        yield bad(State.DEGRADED, "oom_kill", words, Action.CHECK_JOB)
