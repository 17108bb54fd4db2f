"""The health rules of the node: number of GPUs, recent errors in the kernel's log and from the driver, lack of memory.

Kernel events are `RankEvent`s (mldebug.hardware.kernel_log.attribution), oldest first. Most count
only for the limit `event_window`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from mldebug.hardware.gpu.expected import GpuCount, MissingGpu
from mldebug.hardware.health import kernel_rules
from mldebug.hardware.health.model import (
    FINE,
    ComponentHealth,
    HealthState,
    RuleFinding,
    SuggestedAction,
    bad,
    combine,
    unread,
)
from mldebug.hardware.health.thresholds import Thresholds
from mldebug.hardware.kernel_log.attribution import RankEvent, sentence
from mldebug.hardware.kernel_log.bursts import Burst
from mldebug.hardware.kernel_log.model import KernelEventKind, is_gpu
from mldebug.hardware.kernel_log.xids import Tier

_OF_XID = {
    "none": SuggestedAction.NONE,
    "restart_job": SuggestedAction.CHECK_JOB,
    "check_job": SuggestedAction.CHECK_JOB,
    "reset_gpu": SuggestedAction.RESET,
    "reboot_node": SuggestedAction.REBOOT,
    "check_hardware": SuggestedAction.CHECK_HARDWARE,
    "update_driver": SuggestedAction.CHECK_SETTINGS,
    "collect_report": SuggestedAction.WATCH,
    "follow_driver": SuggestedAction.WATCH,
    "unknown": SuggestedAction.WATCH,
}
OTHER_GPUS = "gpu_errors"
_OF_THE_NODE = ("kernel", "memory", "network", "storage")
"""Components of which the kernel's log tells, each shown where the log can be read."""


def node_health(
    events: Sequence[RankEvent],
    at: float,
    limits: Thresholds,
    *,
    kernel_readable: bool,
    count: GpuCount | None = None,
    uuids: Mapping[str, tuple[str, int]] | None = None,
    recovered: Mapping[str, float] | None = None,
) -> tuple[ComponentHealth, ...]:
    """The node's own health at unix time `at`: number of GPUs, Xids by GPU, kernel log, memory, network, storage.

    `kernel_readable`: whether the kernel's log can be read. `uuids`: PCI address -> (uuid, index).
    `recovered`: PCI address -> unix time since which the driver asks for no reset any more.
    """
    bursts = [one.burst for one in _once(events) if not _cured(one.burst, recovered or {})]
    recent = [burst for burst in bursts if _counts(burst, bursts, at, limits)]
    nothing = () if kernel_readable else (unread("the kernel's log"),)
    findings = [*_xids(recent, uuids or {}, nothing), *_other_gpus(recent, uuids or {}, limits)]
    for component in _OF_THE_NODE:
        found = kernel_rules.findings(component, recent, limits)
        findings.append(combine(component, [*found, *_calm(kernel_readable), *nothing]))
    if count is not None:
        findings.append(combine("gpu_count", _count(count)))
    return tuple(findings)


def _cured(burst: Burst, recovered: Mapping[str, float]) -> bool:
    """Whether an error of a GPU came before the reset that the driver had asked for."""
    return is_gpu(burst.root.kind) and burst.last_at <= recovered.get(burst.root.device, 0.0)


def _counts(burst: Burst, bursts: Sequence[Burst], at: float, limits: Thresholds) -> bool:
    """Whether an event still counts. What the driver asks for stands until it takes it back."""
    if burst.recovery and not burst.over:
        return True
    return kernel_rules.still_counts(burst, bursts, at, limits)


def _once(events: Iterable[RankEvent]) -> Iterator[RankEvent]:
    """One event concerns several ranks, and is one all the same."""
    before: set[int] = set()
    for event in events:
        if id(event.burst) not in before:
            before.add(id(event.burst))
            yield event


def _calm(readable: bool) -> tuple[RuleFinding, ...]:
    return (FINE,) if readable else ()


def _count(count: GpuCount) -> Iterator[RuleFinding]:
    if not count.readable:
        yield unread("the GPUs")
        return
    for one in count.missing:
        reason = f"{_gpu(one)} is missing: {one.reason}"
        yield bad(HealthState.UNHEALTHY, "gpu_missing", reason, SuggestedAction.REBOOT)
    for one in count.silent:
        yield unread(f"{_gpu(one)} does not answer: {one.reason}")
    if count.silent:
        return
    if not count.missing and count.present < count.expected:
        reason = f"{count.present} of {count.expected} GPUs are there"
        yield bad(HealthState.UNHEALTHY, "gpu_missing", reason, SuggestedAction.REBOOT)
    yield FINE


def _gpu(one: MissingGpu) -> str:
    name = ", ".join(part for part in (one.gpu.bus_id, one.gpu.uuid) if part)
    return f"GPU {one.gpu.index} ({name})" if name else f"GPU {one.gpu.index}"


def _xids(
    recent: Iterable[Burst], uuids: Mapping[str, tuple[str, int]], nothing: tuple[RuleFinding, ...]
) -> Iterator[ComponentHealth]:
    """One for each GPU that something was said of, and one for the others."""
    by_gpu: dict[tuple[str, int | None], list[RuleFinding]] = {}
    for burst in recent:
        if is_gpu(burst.root.kind):
            uuid, index = uuids.get(burst.root.device, (burst.root.uuid, None))
            by_gpu.setdefault((uuid, index), []).append(_xid(burst))
    if not by_gpu:
        yield combine("gpu_xid", nothing or (FINE,))
    for (uuid, index), found in by_gpu.items():
        yield combine("gpu_xid", [*found, *(nothing or (FINE,))], uuid, index)


def _xid(burst: Burst) -> RuleFinding:
    """What the job is to blame for is no fault of the GPU; a number that nobody knows is one sign."""
    if burst.over:
        return FINE
    words = sentence(RankEvent(burst=burst))
    number = burst.root.xid
    code = f"xid_{number}" if number is not None else burst.root.kind.value
    if burst.root.kind is KernelEventKind.GPU_LOST:
        return bad(HealthState.UNHEALTHY, code, words, SuggestedAction.REBOOT, burst.last_at)
    if burst.root.kind is KernelEventKind.GPU_INIT_FAILED:
        check = SuggestedAction.CHECK_HARDWARE
        return bad(HealthState.UNHEALTHY, code, words, check, burst.last_at)
    action = max(
        (_OF_XID[action] for action in burst.actions),
        key=list(SuggestedAction).index,
        default=SuggestedAction.WATCH,
    )
    if burst.tier is Tier.FATAL:
        hard = max(action, SuggestedAction.RESET, key=list(SuggestedAction).index)
        return bad(HealthState.UNHEALTHY, code, words, hard, burst.last_at)
    if burst.tier is Tier.WARNING:
        soft = SuggestedAction.RESET_WHEN_IDLE if action is SuggestedAction.RESET else action
        return bad(HealthState.DEGRADED, code, words, soft, burst.last_at)
    return FINE


def _other_gpus(
    recent: Sequence[Burst], uuids: Mapping[str, tuple[str, int]], limits: Thresholds
) -> Iterator[ComponentHealth]:
    """One for each GPU that the kernel's log tells of without an Xid, and one for those whose name its line does not have."""
    by_gpu: dict[str, list[Burst]] = {}
    for burst in recent:
        rule = kernel_rules.KERNEL_RULES.get(burst.root.kind)
        if rule is not None and rule.component == OTHER_GPUS:
            by_gpu.setdefault(burst.root.device, []).append(burst)
    for address, bursts in by_gpu.items():
        found = tuple(kernel_rules.findings(OTHER_GPUS, bursts, limits))
        yield combine(OTHER_GPUS, found or (FINE,), *uuids.get(address, ("", None)))
