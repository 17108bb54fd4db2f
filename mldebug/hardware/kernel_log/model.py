"""What the kernel tells: one event per record, as typed values."""

from enum import StrEnum

from mldebug.core.model import Noun

MAX_TEXT = 400  # characters of a line that are kept


class KernelEventKind(StrEnum):
    """What a kernel event is about. A closed set, because it is a metric label."""

    XID = "xid"  # an NVIDIA driver error with a number
    GPU_LOST = "gpu_lost"  # "fallen off the bus", with or without an Xid
    GPU_INIT_FAILED = "gpu_init_failed"  # the driver cannot start a GPU: RmInitAdapter
    SXID = "sxid"  # an error of an NVSwitch
    OOM_KILL = "oom_kill"
    CRASH = "crash"  # a process: segfault, trap, poisoned memory
    HUNG_TASK = "hung_task"
    LOCKUP = "lockup"  # a CPU does not come out of the kernel
    LINK_DOWN = "link_down"
    LINK_UP = "link_up"
    PORT_FAULT = "port_fault"  # cable, power or heat of a network port
    NIC_FATAL = "nic_fatal"  # a network adapter says that it is broken
    PCIE_LINK_DOWN = "pcie_link_down"
    NFS_NOT_RESPONDING = "nfs_not_responding"
    NFS_OK = "nfs_ok"
    LUSTRE_LOST = "lustre_lost"
    LUSTRE_RESTORED = "lustre_restored"
    LUSTRE_EVICTED = "lustre_evicted"
    LUSTRE_ERROR = "lustre_error"
    FILESYSTEM_ERROR = "filesystem_error"
    FILESYSTEM_READ_ONLY = "filesystem_read_only"
    FILESYSTEM_SHUTDOWN = "filesystem_shutdown"
    DISK_ERROR = "disk_error"
    MACHINE_CHECK = "machine_check"  # its severity is not told
    MACHINE_CHECK_CORRECTED = "machine_check_corrected"
    MACHINE_CHECK_UNCORRECTED = "machine_check_uncorrected"
    MEMORY_CORRECTED = "memory_corrected"  # EDAC CE
    MEMORY_UNCORRECTED = "memory_uncorrected"  # EDAC UE
    PCIE_CORRECTED = "pcie_corrected"
    PCIE_NONFATAL = "pcie_nonfatal"
    PCIE_FATAL = "pcie_fatal"
    PCIE_CONTAINED = (
        "pcie_contained"  # downstream port containment: what is below the port is cut off
    )


class Origin(StrEnum):
    """Where an event comes from."""

    KERNEL = "kernel"  # the kernel itself, through its log
    USER_SPACE = "user_space"  # a program that wrote into the kernel's log: a drill, or a forgery
    NVML = "nvml"  # the driver, through an NVML event set


class KernelEvent(Noun, frozen=True, kw_only=True):
    """One event of the kernel or the driver. `text` is raw: it must be made safe before it is shown or stored."""

    kind: KernelEventKind
    at: float  # unix
    text: str = ""
    sequence: int = -1  # of the record in the kernel's log; -1: it has none
    origin: Origin = Origin.KERNEL
    device: str = ""  # PCI address 0000:3b:00.0, network interface, server, block device
    xid: int | None = None  # also of an SXid
    pid: int | None = None  # as the kernel counts: of the first pid namespace
    process: str = ""
    uuid: str = ""
    channel: str = ""
    link: int | None = None  # NVLink number
    severity: str = ""  # fatal, nonfatal: where the line itself says so
    recovery: str = ""  # Xid 154: what the driver wants now, "GPU Reset Required"
    scope: str = ""  # oom_kill: node, cgroup
    group: str = ""  # oom_kill: the memory cgroup whose limit was met
    rss_bytes: int | None = None  # oom_kill: anonymous, file and shared memory of the victim
    seconds: int | None = None  # hung_task, lockup: for how long
    number: int = 1  # how many errors the line stands for


def is_gpu(kind: KernelEventKind) -> bool:
    """Whether events of this kind come from a GPU or an NVSwitch."""
    return kind in (
        KernelEventKind.XID,
        KernelEventKind.GPU_LOST,
        KernelEventKind.GPU_INIT_FAILED,
        KernelEventKind.SXID,
    )
