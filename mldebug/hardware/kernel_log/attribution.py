"""Which ranks a kernel event concerns: those of the process that its lines name, else those that use the GPU.

The kernel logs pids of the first pid namespace. An agent in another namespace must not compare them
with the pids that it sees, and joins by GPU alone. A pid that was reused since is recognized by the
process's start time.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from mldebug.core.model import Job, MeasuredData
from mldebug.hardware.gpu.rank_join import RankGpuMap
from mldebug.hardware.kernel_log.bursts import OTHER, Burst
from mldebug.hardware.kernel_log.lines.reader import bus_id
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind, Origin
from mldebug.hardware.kernel_log.xids import xid_row

SLACK = 2.0  # seconds by which the two clocks may disagree about what came first
MOST_NAMED = 6  # Xids that a sentence counts

Evidence = Literal["process", "child", "gpu", "environment", "node"]
"""How the rank is known.

process: the lines name its pid; child: that of a child of it; gpu: it works on that GPU, as the driver or its open device
says; environment: it should work on that GPU, as its environment says; node: nobody is named.
"""

PLAIN: dict[KernelEventKind, str] = {
    KernelEventKind.GPU_INIT_FAILED: "the driver's start failed",
    KernelEventKind.OOM_KILL: "the kernel killed a process for memory",
    KernelEventKind.CRASH: "a process crashed",
    KernelEventKind.HUNG_TASK: "a process hangs in the kernel",
    KernelEventKind.LOCKUP: "a CPU is locked up",
    KernelEventKind.RCU_STALL: "a CPU or a task blocks the kernel (RCU stall)",
    KernelEventKind.WORKQUEUE_STALL: "work of the kernel does not get on (workqueue lockup)",
    KernelEventKind.KERNEL_OOPS: "the kernel ran into an error of its own (oops)",
    KernelEventKind.KERNEL_PANIC: "the kernel panicked",
    KernelEventKind.OOM_GROUP: "the kernel killed a whole cgroup for memory (memory.oom.group)",
    KernelEventKind.OOMD_KILL: "systemd-oomd killed a cgroup for memory",
    KernelEventKind.PIDS_LIMIT: "a cgroup has reached its limit of processes and threads",
    KernelEventKind.FILE_LIMIT: "the node has reached its limit of open files",
    KernelEventKind.LINK_DOWN: "the network link went down",
    KernelEventKind.LINK_UP: "the network link came up",
    KernelEventKind.PORT_FAULT: "a network port has a fault",
    KernelEventKind.NIC_FATAL: "a network adapter has a fatal error",
    KernelEventKind.NIC_TIMEOUT: "a network adapter did not answer its driver",
    KernelEventKind.NIC_TX_TIMEOUT: "a network adapter does not send any more",
    KernelEventKind.NIC_HOT: "a network adapter is too hot",
    KernelEventKind.NIC_ERROR: "a network adapter reports an error",
    KernelEventKind.NIC_OK: "a network adapter has recovered",
    KernelEventKind.PCIE_LINK_DOWN: "a PCIe link went down",
    KernelEventKind.NFS_NOT_RESPONDING: "an NFS server does not respond",
    KernelEventKind.NFS_OK: "an NFS server responds again",
    KernelEventKind.LUSTRE_LOST: "the connection to a Lustre target was lost",
    KernelEventKind.LUSTRE_RESTORED: "the connection to a Lustre target is back",
    KernelEventKind.LUSTRE_EVICTED: "a Lustre target evicted this node",
    KernelEventKind.WEKA_LOST: "Weka does not run on this node",
    KernelEventKind.WEKA_OK: "Weka runs on this node again",
    KernelEventKind.LUSTRE_ERROR: "Lustre reports an error",
    KernelEventKind.NFS_STATE_LOST: "locks or open files of NFS were lost",
    KernelEventKind.CEPH_LOST: "Ceph does not answer",
    KernelEventKind.CEPH_OK: "Ceph answers again",
    KernelEventKind.CEPH_ERROR: "Ceph reports an error",
    KernelEventKind.BEEGFS_ERROR: "a server of BeeGFS was not reached",
    KernelEventKind.SMB_ERROR: "an SMB server did not answer",
    KernelEventKind.FILESYSTEM_ERROR: "a filesystem is damaged",
    KernelEventKind.FILESYSTEM_READ_ONLY: "a filesystem became read-only",
    KernelEventKind.FILESYSTEM_SHUTDOWN: "a filesystem was shut down",
    KernelEventKind.FILESYSTEM_OK: "a filesystem was mounted anew or unmounted",
    KernelEventKind.POOL_FULL: "a pool of disks has no space left (dm-thin)",
    KernelEventKind.DISK_ERROR: "a disk has I/O errors",
    KernelEventKind.DISK_GONE: "a disk is gone",
    KernelEventKind.DISK_OK: "a disk answers again",
    KernelEventKind.MACHINE_CHECK: "machine check",
    KernelEventKind.MACHINE_CHECK_CORRECTED: "corrected machine check",
    KernelEventKind.MACHINE_CHECK_DEFERRED: "machine check of broken data that nothing has used yet",
    KernelEventKind.MACHINE_CHECK_UNCORRECTED: "uncorrected machine check",
    KernelEventKind.MEMORY_CORRECTED: "corrected error of the host's memory",
    KernelEventKind.MEMORY_UNCORRECTED: "uncorrected error of the host's memory",
    KernelEventKind.PCIE_CORRECTED: "corrected PCIe error",
    KernelEventKind.PCIE_NONFATAL: "uncorrected PCIe error",
    KernelEventKind.PCIE_FATAL: "fatal PCIe error",
    KernelEventKind.PCIE_CONTAINED: "a PCIe port cut off the devices below it (DPC)",
    KernelEventKind.PCIE_ACS: "access control refused a transfer between PCIe devices (ACS)",
    KernelEventKind.IOMMU_FAULT: "the IOMMU refused an access of a device",
    KernelEventKind.IOMMU_FAILED: "the IOMMU itself failed",
    KernelEventKind.CPU_THROTTLED: "a processor is too hot and was throttled",
    KernelEventKind.GPU_RESET: "the driver resets a GPU (amdgpu)",
    KernelEventKind.GPU_RESET_OK: "a GPU was reset (amdgpu)",
    KernelEventKind.GPU_START_FAILED: "a GPU could not be started (amdgpu)",
    KernelEventKind.GPU_RESET_FAILED: "a GPU could not be reset (amdgpu)",
    KernelEventKind.GPU_FIRMWARE_SILENT: "the firmware of a GPU does not answer its driver",
    KernelEventKind.GPU_RING_TIMEOUT: "a GPU did not end its work in time",
    KernelEventKind.GPU_RESET_REQUIRED: "the driver does not use a GPU before it is reset",
    KernelEventKind.GPU_UNREACHABLE: "the driver does not reach a GPU any more",
    KernelEventKind.GPU_DRIVER_FAILED: "the driver's memory manager failed for all GPUs (UVM)",
    KernelEventKind.GPU_DRIVER_OK: "the driver's memory manager was loaded anew (UVM)",
    KernelEventKind.FABRIC_INCOMPLETE: "the Fabric Manager did not find all NVSwitches and gave up",
    KernelEventKind.FABRIC_MISMATCH: "the Fabric Manager does not fit the driver's version and gave up",
    KernelEventKind.FABRIC_MULTICAST: "the Fabric Manager did not find a GPU that shall share memory (NVLS)",
    KernelEventKind.FABRIC_LINK_ERROR: "the Fabric Manager was told of a fatal error of a GPU's NVLink",
    KernelEventKind.FABRIC_OK: "the Fabric Manager has set up the NVSwitches",
    KernelEventKind.GPU_PAGE_FAULT: "a program used a wrong address on a GPU (amdgpu)",
    KernelEventKind.GPU_BAD_PAGES: "so much memory of a GPU is broken that it is to be replaced (amdgpu)",
    KernelEventKind.GPU_RAS_CORRECTED: "corrected or deferred errors of a GPU (amdgpu)",
    KernelEventKind.GPU_RAS_UNCORRECTED: "uncorrected errors of a GPU (amdgpu)",
}
"""What an event of each kind but Xids is called."""

_OVER = {
    KernelEventKind.LINK_UP: "up again",
    KernelEventKind.NFS_OK: "responds again",
    KernelEventKind.LUSTRE_RESTORED: "is back",
    KernelEventKind.CEPH_OK: "answers again",
    KernelEventKind.NIC_OK: "has recovered",
    KernelEventKind.GPU_RESET_OK: "was reset",
    KernelEventKind.WEKA_OK: "runs again",
}


class RankOwner(MeasuredData, frozen=True, kw_only=True):
    """The run and the rank that a process or a GPU belongs to."""

    run: str  # id
    rank: int
    started_at: float = 0.0  # unix, of the process; 0.0: not known
    child: bool = False  # the process is a child of the rank
    by: Evidence = "gpu"  # of a GPU: how sure that is


class RankEvent(MeasuredData, frozen=True, kw_only=True):
    """A burst of kernel events and one rank that it concerns; `rank` is None where it concerns the node.

    `by`: the evidence for that.
    """

    burst: Burst
    run: str = ""
    rank: int | None = None
    by: Evidence = "node"


def join(
    bursts: Iterable[Burst],
    pids: Mapping[int, RankOwner],
    devices: Mapping[str, Sequence[RankOwner]],
    *,
    first_namespace: bool = True,
) -> tuple[RankEvent, ...]:
    """The ranks that each burst concerns, in the bursts' order.

    Each burst occurs at least once, if need be without a rank.

    `pids`: owner of each process of a rank, lost ones included. `devices`: PCI address -> the ranks
    on that GPU. `first_namespace`: whether the agent sees pids as the kernel counts them.
    """
    return tuple(
        event
        for burst in bursts
        for event in (
            _by_process(burst, pids if first_namespace else {}) or _by_gpu(burst, devices)
        )
    )


def _by_process(burst: Burst, pids: Mapping[int, RankOwner]) -> tuple[RankEvent, ...]:
    found: dict[tuple[str, int], RankEvent] = {}
    for pid in burst.pids:
        owner = pids.get(pid)
        if owner is not None and owner.started_at <= burst.last_at + SLACK:
            by: Evidence = "child" if owner.child else "process"
            event = RankEvent(burst=burst, run=owner.run, rank=owner.rank, by=by)
            found.setdefault((owner.run, owner.rank), event)
    return tuple(found.values())


def _by_gpu(burst: Burst, devices: Mapping[str, Sequence[RankOwner]]) -> tuple[RankEvent, ...]:
    owners = devices.get(burst.root.device, ()) if burst.root.device else ()
    found = tuple(
        RankEvent(burst=burst, run=owner.run, rank=owner.rank, by=owner.by)
        for owner in owners
        if owner.started_at <= burst.last_at + SLACK
    )
    return found or (RankEvent(burst=burst),)


def sentence(event: RankEvent, stalled_at: float | None = None, frame: str = "") -> str:
    """A kernel event in words: `Xid 79 (GPU has fallen off the bus) on GPU 0000:3b:00.0, rank 3, 14 s before the stall`.
    `stalled_at`: unix time of the stall's begin; `frame`: the rank's last Python frame. Both are left out where not
    given.
    """
    burst = event.burst
    parts = [f"{_what(burst)}{_where(burst.root)}", _who(event)]
    if burst.count > 1 or _over(burst):
        parts.append(_over(burst) or _how_often(burst))
    if frame:
        parts.append(f"last Python frame {frame}")
    if burst.root.origin is Origin.USER_SPACE:
        parts.append("written by a program and not by the kernel")
    if burst.recovery and burst.root.recovery != burst.recovery:
        parts.append(f"the driver asks for: {burst.recovery}")
    if burst.over:
        parts.append("over: the driver asks for nothing any more")
    if stalled_at is not None:
        parts.append(_when(burst.first_at - stalled_at))
    return ", ".join(part for part in parts if part)


def _what(burst: Burst) -> str:
    root = burst.root
    if root.kind is KernelEventKind.SXID:
        return f"SXid {root.xid} ({root.severity} error of an NVSwitch)"
    if root.xid is not None:
        meaning = root.recovery or xid_row(root.xid).meaning
        if root.cause is not None:
            meaning += f", because of Xid {root.cause}: {xid_row(root.cause).meaning}"
        return f"Xid {root.xid} ({meaning})" + _after(burst, root.xid)
    words = PLAIN[root.kind]
    if root.kind is KernelEventKind.OOM_KILL and root.rss_bytes is not None:
        words += f" ({_size(root.rss_bytes)} resident{', at the limit of its cgroup' if root.scope == 'cgroup' else ''})"
    if root.seconds is not None:
        words += f" (for {root.seconds} s)"
    return words


def _after(burst: Burst, first: int) -> str:
    others = [number for number in burst.xids if number != first]
    named = [str(number) if number != OTHER else "others" for number in others[:MOST_NAMED]]
    more = " …" if len(others) > MOST_NAMED else ""
    return f" followed by Xid {', '.join(named)}{more}" if named else ""


def _where(root: KernelEvent) -> str:
    if not root.device:
        return ""
    what = {
        KernelEventKind.XID: "GPU ",
        KernelEventKind.GPU_LOST: "GPU ",
        KernelEventKind.GPU_INIT_FAILED: "GPU ",
        KernelEventKind.SXID: "switch ",
        KernelEventKind.NFS_NOT_RESPONDING: "server ",
        **{kind: "GPU " for kind in KernelEventKind if kind.value.startswith("gpu_r")},
    }
    return f" on {what.get(root.kind, '')}{root.device}"


def _who(event: RankEvent) -> str:
    root = event.burst.root
    if event.rank is None:
        return f"pid {root.pid} {root.process}".rstrip() if root.pid is not None else ""
    return rank_words(event.rank, event.by)


def rank_words(rank: int, by: str) -> str:
    """A rank in words, by the evidence `by` for it: `rank 3`, `a child of rank 3`, `probably rank 3`."""
    beginning = {"child": "a child of ", "environment": "probably "}
    return f"{beginning.get(by, '')}rank {rank}"


def _over(burst: Burst) -> str:
    """In words that the newest line takes back what the first said; "" where it does not."""
    return _OVER.get(burst.last_kind, "") if burst.root.kind is not burst.last_kind else ""


def _how_often(burst: Burst) -> str:
    lasted = burst.last_at - burst.first_at
    return f"{burst.count} errors" + (f" within {lasted:.0f} s" if lasted >= 1 else "")


def _when(after: float) -> str:
    """Where it stands beside the stall."""
    seconds = round(abs(after))
    if seconds == 0:
        return "as the stall began"
    unit = f"{seconds} s" if seconds < 120 else f"{round(seconds / 60)} min"
    return f"{unit} {'after the stall began' if after > 0 else 'before the stall'}"


def _size(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count >> 10} KiB"


def process_owners(
    jobs: Iterable[Job], children: Mapping[int, Iterable[int]]
) -> dict[int, RankOwner]:
    """Return by pid the rank that a process belongs to: the processes of all ranks, of ranks that have ended if their pid is
    known, and their child processes.

    `children`: the pids of all descendants, by the pid of the rank.
    """
    return {pid: owner for job in jobs for pid, owner in _processes(job, children)}


def _processes(job: Job, children: Mapping[int, Iterable[int]]) -> Iterator[tuple[int, RankOwner]]:
    """When a lost rank or a child started is not known: not before its job, or its parent."""
    began = _began(job)
    for one in job.lost:
        if one.pid is not None:
            yield one.pid, RankOwner(run=job.id, rank=one.rank, started_at=began)
        for pid in one.leftovers:
            yield pid, RankOwner(run=job.id, rank=one.rank, started_at=began, child=True)
    for rank in job.ranks:
        owner = RankOwner(run=job.id, rank=rank.rank, started_at=rank.started_at)
        for pid in children.get(rank.pid, ()):
            yield pid, msgspec.structs.replace(owner, child=True)
        yield rank.pid, owner


def _began(job: Job) -> float:
    """The earliest time that is known of it; 0.0 where none is."""
    return min(
        (one for one in (job.started_at, *(r.started_at for r in job.ranks)) if one), default=0.0
    )


def gpu_owners(joined: Iterable[tuple[Job, RankGpuMap]]) -> dict[str, tuple[RankOwner, ...]]:
    """PCI address -> the ranks that use this GPU, of all jobs."""
    found: dict[str, tuple[RankOwner, ...]] = {}
    for job, ranks in joined:
        started = {one.rank: one.started_at for one in job.ranks}
        for rank in ranks.ranks:
            if address := bus_id(rank.bus_id):
                owner = RankOwner(
                    run=job.id,
                    rank=rank.rank,
                    started_at=started.get(rank.rank, _began(job)),
                    by="gpu" if rank.sure else "environment",
                )
                found[address] = (*found.get(address, ()), owner)
    return found
