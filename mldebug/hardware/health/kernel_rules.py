"""What each kind of kernel event means for the health of the node: component, state, what to do, and what ends it.

Pure.

The table `KERNEL_RULES` has every kind but those of NVIDIA's GPUs, whose Xids have a catalogue of
their own.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from mldebug.hardware.health.model import HealthState, RuleFinding, SuggestedAction, bad
from mldebug.hardware.health.thresholds import Thresholds
from mldebug.hardware.kernel_log.attribution import PLAIN, RankEvent, sentence
from mldebug.hardware.kernel_log.bursts import Burst
from mldebug.hardware.kernel_log.model import KernelEvent, other_port, same_device
from mldebug.hardware.kernel_log.model import KernelEventKind as Kind

HEAT_PERIOD = 300.0  # seconds: the kernel tells of each processor's heat no more often


class KernelRule(msgspec.Struct, frozen=True, kw_only=True):
    """What one kind of kernel event means for the health of a component.

    Without `state` the event is no fault. `limit`: the name of a threshold; only more events than
    that within the event window are a fault. `per_device`: counted for each device. `once_in`: not lines are counted but
    the periods of so many seconds in which any came, as each processor of a socket tells of one and the same.
    """

    component: str
    state: HealthState | None = None
    action: SuggestedAction = SuggestedAction.NONE
    limit: str = ""
    per_device: bool = False
    once_in: float = 0.0
    lasting: bool = False  # it stands until it is told to be over, or the node is started anew; else for the event window
    ended_by: tuple[Kind, ...] = ()  # of the same device
    again: str = ""  # the name of a threshold; more events of one device than that within the event window are not ended


def _bad(component: str, action: SuggestedAction, *, lasting: bool = False, ended_by: tuple[Kind, ...] = (), again: str = "") -> KernelRule:  # fmt: skip
    return KernelRule(component=component, state=HealthState.UNHEALTHY, action=action, lasting=lasting, ended_by=ended_by, again=again)  # fmt: skip


def _poor(component: str, action: SuggestedAction, *, limit: str = "", per_device: bool = False, ended_by: tuple[Kind, ...] = (), again: str = "") -> KernelRule:  # fmt: skip
    return KernelRule(component=component, state=HealthState.DEGRADED, action=action, limit=limit, per_device=per_device, ended_by=ended_by, again=again)  # fmt: skip


def _plain(component: str) -> KernelRule:
    return KernelRule(component=component)


_A = SuggestedAction
_WORKS = (Kind.NIC_OK, Kind.LINK_UP)  # its driver has started it, or has brought its link up
KERNEL_RULES: dict[Kind, KernelRule] = {
    # the machine and the kernel itself
    Kind.HUNG_TASK: _poor("kernel", _A.WATCH),
    Kind.LOCKUP: _bad("kernel", _A.CHECK_HARDWARE),
    Kind.RCU_STALL: _poor("kernel", _A.WATCH),
    Kind.WORKQUEUE_STALL: _poor("kernel", _A.WATCH),
    Kind.KERNEL_OOPS: _bad("kernel", _A.REBOOT, lasting=True),
    Kind.KERNEL_PANIC: _bad("kernel", _A.REBOOT, lasting=True),
    Kind.MACHINE_CHECK: _poor("kernel", _A.CHECK_HARDWARE, limit="memory_corrected"),
    Kind.MACHINE_CHECK_CORRECTED: _poor("kernel", _A.CHECK_HARDWARE, limit="memory_corrected"),
    Kind.MACHINE_CHECK_DEFERRED: _poor("kernel", _A.CHECK_HARDWARE),
    Kind.MACHINE_CHECK_UNCORRECTED: _bad("kernel", _A.CHECK_HARDWARE),
    Kind.MEMORY_CORRECTED: _poor("kernel", _A.CHECK_HARDWARE, limit="memory_corrected"),
    Kind.MEMORY_UNCORRECTED: _bad("kernel", _A.CHECK_HARDWARE),
    Kind.PCIE_CORRECTED: _poor("kernel", _A.CHECK_HARDWARE, limit="pcie_corrected"),
    Kind.PCIE_NONFATAL: _poor("kernel", _A.WATCH),
    Kind.PCIE_FATAL: _bad("kernel", _A.CHECK_HARDWARE),
    Kind.PCIE_CONTAINED: _bad("kernel", _A.CHECK_HARDWARE),
    Kind.PCIE_LINK_DOWN: _poor("kernel", _A.WATCH),
    Kind.PCIE_ACS: _poor("kernel", _A.CHECK_SETTINGS),
    Kind.IOMMU_FAULT: _poor("kernel", _A.CHECK_SETTINGS, limit="iommu_faults"),
    Kind.IOMMU_FAILED: _bad("kernel", _A.REBOOT, lasting=True),
    Kind.CPU_THROTTLED: KernelRule(component="kernel", state=HealthState.DEGRADED, action=_A.CHECK_COOLING, limit="cpu_throttled", once_in=HEAT_PERIOD),
    Kind.PIDS_LIMIT: _poor("kernel", _A.CHECK_JOB),
    Kind.FILE_LIMIT: _poor("kernel", _A.CHECK_JOB),
    Kind.CRASH: _plain("kernel"),
    # memory
    Kind.OOM_KILL: _poor("memory", _A.CHECK_JOB),
    Kind.OOM_GROUP: _poor("memory", _A.CHECK_JOB),
    Kind.OOMD_KILL: _poor("memory", _A.CHECK_JOB),
    # network
    Kind.NIC_FATAL: _bad("network", _A.CHECK_HARDWARE, lasting=True, ended_by=_WORKS, again="link_flaps"),
    Kind.NIC_TIMEOUT: _poor("network", _A.CHECK_HARDWARE, ended_by=_WORKS, again="link_flaps"),
    Kind.NIC_TX_TIMEOUT: _poor("network", _A.CHECK_HARDWARE, ended_by=_WORKS, again="link_flaps"),
    Kind.NIC_HOT: _poor("network", _A.CHECK_COOLING),
    Kind.NIC_ERROR: _plain("network"),
    Kind.NIC_OK: _plain("network"),
    Kind.PORT_FAULT: _plain("network"),
    Kind.LINK_DOWN: _poor("network", _A.CHECK_HARDWARE, limit="link_flaps", per_device=True),
    Kind.LINK_UP: _plain("network"),
    # storage
    Kind.FILESYSTEM_ERROR: _poor("storage", _A.CHECK_HARDWARE, ended_by=(Kind.FILESYSTEM_OK,)),
    Kind.FILESYSTEM_READ_ONLY: _bad("storage", _A.CHECK_HARDWARE, lasting=True, ended_by=(Kind.FILESYSTEM_OK,)),
    Kind.FILESYSTEM_SHUTDOWN: _bad("storage", _A.CHECK_HARDWARE, lasting=True, ended_by=(Kind.FILESYSTEM_OK,)),
    Kind.FILESYSTEM_OK: _plain("storage"),
    Kind.POOL_FULL: _bad("storage", _A.CHECK_JOB, lasting=True, ended_by=(Kind.FILESYSTEM_OK,)),
    Kind.DISK_ERROR: _poor("storage", _A.CHECK_HARDWARE, limit="disk_errors", per_device=True),
    Kind.DISK_GONE: _bad("storage", _A.CHECK_HARDWARE, lasting=True, ended_by=(Kind.DISK_OK,)),
    Kind.DISK_OK: _plain("storage"),
    Kind.NFS_NOT_RESPONDING: _poor("storage", _A.WATCH, ended_by=(Kind.NFS_OK,)),
    Kind.NFS_OK: _plain("storage"),
    Kind.NFS_STATE_LOST: _poor("storage", _A.CHECK_JOB),
    Kind.LUSTRE_LOST: _poor("storage", _A.WATCH, ended_by=(Kind.LUSTRE_RESTORED,)),
    Kind.LUSTRE_RESTORED: _plain("storage"),
    Kind.LUSTRE_EVICTED: _poor("storage", _A.CHECK_JOB),
    Kind.LUSTRE_ERROR: _plain("storage"),
    Kind.CEPH_LOST: _poor("storage", _A.WATCH, ended_by=(Kind.CEPH_OK,)),
    Kind.CEPH_OK: _plain("storage"),
    Kind.CEPH_ERROR: _plain("storage"),
    Kind.WEKA_LOST: _poor("storage", _A.WATCH, ended_by=(Kind.WEKA_OK,)),
    Kind.WEKA_OK: _plain("storage"),
    Kind.BEEGFS_ERROR: _plain("storage"),
    Kind.SMB_ERROR: _plain("storage"),
    # GPUs, where the line has no Xid: those of AMD, and what NVIDIA's driver and Fabric Manager say of themselves
    Kind.GPU_RESET: _poor("gpu_errors", _A.WATCH, ended_by=(Kind.GPU_RESET_OK,)),
    Kind.GPU_RESET_OK: _plain("gpu_errors"),
    Kind.GPU_RESET_FAILED: _bad("gpu_errors", _A.REBOOT, lasting=True, ended_by=(Kind.GPU_RESET_OK,)),
    Kind.GPU_START_FAILED: _bad("gpu_errors", _A.CHECK_HARDWARE, lasting=True, ended_by=(Kind.GPU_RESET_OK,)),
    Kind.GPU_FIRMWARE_SILENT: _poor("gpu_errors", _A.RESET_WHEN_IDLE, ended_by=(Kind.GPU_RESET_OK,)),
    Kind.GPU_RING_TIMEOUT: _poor("gpu_errors", _A.RESET_WHEN_IDLE, ended_by=(Kind.GPU_RESET_OK,)),
    Kind.GPU_RESET_REQUIRED: _bad("gpu_errors", _A.RESET, ended_by=(Kind.GPU_RESET_OK,)),
    Kind.GPU_UNREACHABLE: _bad("gpu_errors", _A.REBOOT, ended_by=(Kind.GPU_RESET_OK,)),
    Kind.GPU_DRIVER_FAILED: _bad("gpu_errors", _A.REBOOT, lasting=True, ended_by=(Kind.GPU_DRIVER_OK,)),
    Kind.GPU_DRIVER_OK: _plain("gpu_errors"),
    Kind.FABRIC_INCOMPLETE: _bad("gpu_errors", _A.CHECK_HARDWARE, lasting=True, ended_by=(Kind.FABRIC_OK,)),
    Kind.FABRIC_MISMATCH: _bad("gpu_errors", _A.CHECK_SETTINGS, lasting=True, ended_by=(Kind.FABRIC_OK,)),
    Kind.FABRIC_MULTICAST: _poor("gpu_errors", _A.RESET_WHEN_IDLE, ended_by=(Kind.FABRIC_OK,)),
    Kind.FABRIC_LINK_ERROR: _poor("gpu_errors", _A.CHECK_HARDWARE),
    Kind.FABRIC_OK: _plain("gpu_errors"),
    Kind.GPU_PAGE_FAULT: _plain("gpu_errors"),
    Kind.GPU_BAD_PAGES: _poor("gpu_errors", _A.REPLACE),
    Kind.GPU_RAS_CORRECTED: _poor("gpu_errors", _A.WATCH, limit="gpu_ras_corrected", per_device=True),
    Kind.GPU_RAS_UNCORRECTED: _bad("gpu_errors", _A.RESET, ended_by=(Kind.GPU_RESET_OK,)),
}  # fmt: skip
"""One row for each kind. A row without a state: the event is shown, and no fault of the node by itself."""


_OUTLASTING = frozenset(kind for kind, rule in KERNEL_RULES.items() if rule.lasting).union(
    *(rule.ended_by for rule in KERNEL_RULES.values() if rule.lasting)
)


def outlasts(event: KernelEvent) -> bool:
    """Whether an event matters however old it is: it stands until something ends it, or is what ends such a one."""
    return bool(event.recovery) or event.kind in _OUTLASTING


def still_counts(burst: Burst, bursts: Iterable[Burst], at: float, limits: Thresholds) -> bool:
    """Whether an event still matters at unix time `at`: it is within the event window or lasts, and no later event of the same device ended it."""
    rule = KERNEL_RULES.get(burst.root.kind)
    if rule is None:
        return at - burst.last_at <= limits.event_window
    if not rule.lasting and at - burst.last_at > limits.event_window:
        return False
    if not rule.ended_by:
        return True
    bursts = tuple(bursts)
    ends = (one for one in bursts if _ends(burst, one, rule))
    if not any(_later(one, burst) for one in ends):
        return True
    return _comes_again(burst, bursts, at, limits)


def _later(one: Burst, other: Burst) -> bool:
    """Whether the last line of `one` came after that of `other`: by their order where it is known, as the clock may have been set between."""
    if one.place and other.place:
        return one.place >= other.place
    return one.last_at >= other.last_at


def _comes_again(burst: Burst, bursts: Iterable[Burst], at: float, limits: Thresholds) -> bool:
    """Whether a device that recovers each time has failed too often for that, and failed lately."""
    rule = KERNEL_RULES[burst.root.kind]
    limit: int | None = getattr(limits, rule.again) if rule.again else None
    if limit is None or at - burst.last_at > limits.event_window:
        return False
    kinds = {kind for kind, one in KERNEL_RULES.items() if one.again == rule.again}
    alike = (one for one in bursts if one.root.kind in kinds and same_device(one.root, burst.root))
    return sum(one.count for one in alike if at - one.last_at <= limits.event_window) > limit


def _ends(burst: Burst, one: Burst, rule: KernelRule) -> bool:
    """What NVIDIA's driver said of a GPU without its name is over as well where it takes back what it had asked for (Xid 154: None)."""
    reset = one.over and not burst.root.device and Kind.GPU_RESET_OK in rule.ended_by
    return reset or (one.last_kind in rule.ended_by and _of_one_device(burst, one))


def _of_one_device(burst: Burst, end: Burst) -> bool:
    """Old drivers do not say which GPU it was: then any that recovered ends it. A link that is up says nothing of another port."""
    if end.last_kind is Kind.LINK_UP and other_port(burst.root, end.root):
        return False
    return not burst.root.device or same_device(burst.root, end.root)


def findings(component: str, recent: Sequence[Burst], limits: Thresholds) -> Iterator[RuleFinding]:
    """Yield the findings for one component from `recent`, the kernel events that still matter (see `still_counts`)."""
    for burst in recent:
        rule = KERNEL_RULES.get(burst.root.kind)
        if rule is None or rule.component != component or rule.state is None or rule.limit:
            continue
        words = sentence(RankEvent(burst=burst))
        yield bad(rule.state, burst.root.kind.value, words, rule.action, burst.last_at)
    yield from _in_numbers(component, recent, limits)


def _in_numbers(component: str, recent: Sequence[Burst], limits: Thresholds) -> Iterator[RuleFinding]:  # fmt: skip
    """Errors of which a single one is no fault: each kind by itself, as several kinds may tell of one error."""
    counts: dict[tuple[Kind, str], int] = {}
    newest: dict[tuple[Kind, str], float] = {}
    periods: dict[Kind, set[int]] = {}
    for burst in recent:
        rule = KERNEL_RULES.get(burst.root.kind)
        if rule is not None and rule.component == component and rule.limit:
            key = (burst.root.kind, burst.root.device if rule.per_device else "")
            newest[key] = max(burst.last_at, newest.get(key, burst.last_at))
            if rule.once_in:
                first, last = (int(at // rule.once_in) for at in (burst.first_at, burst.last_at))
                periods.setdefault(burst.root.kind, set()).update(range(first, last + 1))
                counts[key] = len(periods[burst.root.kind])
            else:
                counts[key] = counts.get(key, 0) + burst.count
    for (kind, device), count in counts.items():
        rule = KERNEL_RULES[kind]
        limit = getattr(limits, rule.limit)
        if rule.state is not None and limit is not None and count > limit:
            words = (
                f"{count} times in the last hours: {PLAIN[kind]}{f' on {device}' if device else ''}"
            )
            yield bad(rule.state, kind.value, words, rule.action, newest[kind, device])
