"""GPU errors from the kernel, the driver and full readings, as the faults that a capture carries.

Pure.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from mldebug.core.model import Fault
from mldebug.hardware.gpu.expected import GpuCount, KnownGpu
from mldebug.hardware.gpu.readings import GpuReading, LostGpu
from mldebug.hardware.health.new_errors import NewErrors
from mldebug.hardware.kernel_log.attribution import RankEvent, sentence
from mldebug.hardware.kernel_log.lines.reader import bus_id
from mldebug.hardware.kernel_log.model import KernelEventKind, Origin
from mldebug.hardware.kernel_log.xids import ACTION_WORDS, Tier, catalogue, most_drastic
from mldebug.hardware.ports.state import SETTLED, NodePorts

_KINDS = frozenset(
    {
        KernelEventKind.XID,
        KernelEventKind.SXID,
        KernelEventKind.GPU_LOST,
        KernelEventKind.GPU_INIT_FAILED,
        KernelEventKind.NIC_FATAL,
        KernelEventKind.OOM_KILL,
    }
)
_MANAGEMENT = frozenset({"igb", "igc", "e1000e", "tg3", "r8169"})
"""Drivers of ports of 1 and 2.5 Gb/s, by which a node is managed: their fault is the node's, and stops no collective."""

Ranks = Mapping[str, Sequence[int]]
"""uuid of a GPU -> the ranks of the run that work, or worked, on it."""


def gpus_by_address(gpus: Iterable[GpuReading | LostGpu]) -> dict[str, tuple[str, int]]:
    """(uuid, index) of each GPU, by its PCI address as the kernel prints it.

    GPUs without address or uuid are left out.
    """
    return {bus_id(gpu.bus_id): (gpu.uuid, gpu.index) for gpu in gpus if gpu.bus_id and gpu.uuid}


def faults_of_events(
    events: Iterable[RankEvent], run: str, gpus: Mapping[str, tuple[str, int]], node: str
) -> tuple[Fault, ...]:
    """The faults in these events that concern this run or the whole node: errors of GPUs, network adapters that are broken, and out-of-memory kills of the run's own processes.

    The oldest come first.

    `gpus`: PCI address -> (uuid, index).
    """
    found = [
        _of_event(event, gpus, node)
        for event in events
        if event.burst.root.kind in _KINDS and event.run in _whose(event, run)
    ]
    return tuple(sorted(found, key=lambda fault: fault.at))


def _whose(event: RankEvent, run: str) -> tuple[str, ...]:
    """The runs whose reports may tell of it: whose process was killed is told to nobody else."""
    return (run,) if event.burst.root.kind is KernelEventKind.OOM_KILL else (run, "")


def _of_event(event: RankEvent, gpus: Mapping[str, tuple[str, int]], node: str) -> Fault:
    """Dated by the worst of its lines, which is what must fit the stall; the words tell how it began."""
    root, burst, worst = event.burst.root, event.burst, event.burst.worst
    uuid, index = gpus.get(bus_id(root.device), (root.uuid, None))
    on_gpu = root.kind in (
        KernelEventKind.XID,
        KernelEventKind.GPU_LOST,
        KernelEventKind.GPU_INIT_FAILED,
    )
    return Fault(
        kind=root.kind.value,
        at=worst.at if worst else burst.first_at,
        words=sentence(RankEvent(burst=burst)),
        code=f"{root.kind.value}_{worst.xid}" if worst else root.kind.value,
        tier=_tier(event).value,
        catalogue=catalogue().version
        if burst.xids and root.kind is not KernelEventKind.SXID
        else "",
        node=node,
        rank=event.rank,
        by=event.by,
        gpu=index if on_gpu else None,
        uuid=uuid if on_gpu else "",
        bus_id=root.device if on_gpu else "",
        trusted=worst.trusted if worst else root.origin is not Origin.USER_SPACE,
        advice=_advice(event) if on_gpu else "",
    )


def _tier(event: RankEvent) -> Tier:
    """A GPU that does not start is told of at each look at it, for weeks: fatal only for the rank that needs it."""
    kind = event.burst.root.kind
    if event.burst.root.driver in _MANAGEMENT:
        return Tier.WARNING
    if kind is KernelEventKind.GPU_INIT_FAILED:
        return Tier.FATAL if event.rank is not None else Tier.WARNING
    return (
        Tier.FATAL
        if kind in (KernelEventKind.GPU_LOST, KernelEventKind.NIC_FATAL, KernelEventKind.OOM_KILL)
        else event.burst.tier
    )


def _advice(event: RankEvent) -> str:
    if event.burst.root.kind is KernelEventKind.GPU_INIT_FAILED:
        return ACTION_WORDS["check_hardware"]
    worst = event.burst.worst
    if worst is None:
        return ""
    fatal = worst.tier is Tier.FATAL
    return ACTION_WORDS[most_drastic(event.burst.actions) if fatal else worst.action]


def faults_of_ports(ports: NodePorts, node: str) -> tuple[Fault, ...]:
    """A fault for each RDMA port that jobs on this node may use, was up, and is down without anybody having switched it off.

    It is dated by the first reading in which the port was down. One that has flapped before is not `confirmed`: jobs may do without it.
    """
    return tuple(
        Fault(
            kind="port_down",
            at=ports.at - one.down_seconds,
            words=f"port {one.now.name} was up and is {one.now.state}",
            code="port_down",
            tier=Tier.FATAL.value,
            node=node,
            confirmed=one.down_reads >= SETTLED and one.flaps <= 1,  # this loss of the link counts
            advice=ACTION_WORDS["check_hardware"],
        )
        for one in ports.ports
        if one.used and one.once_up and one.down_reads and not one.now.off
        if one.now.link != "ethernet"
    )


def faults_of_count(count: GpuCount, ranks: Ranks, node: str) -> tuple[Fault, ...]:
    """A fault for each rank whose GPU is missing; one for the node where no rank used it.

    `ranks`: by GPU uuid.
    """
    return tuple(
        fault_of_missing(one.gpu, one.reason, one.since, node, rank)
        for one in count.missing
        for rank in (ranks.get(one.gpu.uuid) or (None,))
    )


def fault_of_missing(
    gpu: KnownGpu | LostGpu, reason: str, at: float, node: str, rank: int | None
) -> Fault:
    """A missing GPU as a fault of the rank that used it, or of the node where `rank` is None.

    `at`: unix time.
    """
    return Fault(
        kind="gpu_missing",
        at=at,
        words=f"GPU {gpu.index} ({gpu.bus_id or gpu.uuid}) is gone: {reason}",
        code="gpu_missing",
        tier=Tier.FATAL.value,
        node=node,
        rank=rank,
        by="gpu" if rank is not None else "node",
        gpu=gpu.index,
        uuid=gpu.uuid,
        bus_id=gpu.bus_id,
        advice=ACTION_WORDS["reboot_node"],
    )


def faults_of_memory(
    gpu: GpuReading, new: Iterable[NewErrors], ranks: Ranks, node: str
) -> Iterator[Fault]:
    """New uncorrectable memory errors of one GPU as faults of the ranks that use it, or of the node where none does.

    `ranks`: by GPU uuid.
    """
    for one in new:
        for rank in ranks.get(gpu.uuid) or (None,):
            yield Fault(
                kind="ecc",
                at=one.at,
                words=f"{one.many} uncorrectable memory errors (ECC) on GPU {gpu.index} ({gpu.bus_id or gpu.uuid})",
                code="ecc_uncorrected",
                tier=Tier.FATAL.value,
                node=node,
                rank=rank,
                by="gpu" if rank is not None else "node",
                gpu=gpu.index,
                uuid=gpu.uuid,
                bus_id=gpu.bus_id,
                confirmed=one.sure,
                advice=ACTION_WORDS["reset_gpu"],
            )


def as_sure(faults: Iterable[Fault], guessed: Collection[int]) -> tuple[Fault, ...]:
    """The faults, those of `guessed` ranks marked: that the rank uses this GPU is known only by a convention."""
    return tuple(
        msgspec.structs.replace(fault, by="environment")
        if fault.by == "gpu" and fault.rank in guessed
        else fault
        for fault in faults
    )
