"""What the kernel tells: one event per record, as typed values."""

from enum import StrEnum

from mldebug.core.model import MeasuredData

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
    RCU_STALL = "rcu_stall"  # a CPU or a task keeps the kernel's read-copy-update from going on
    WORKQUEUE_STALL = "workqueue_stall"  # work that the kernel put off does not get on
    KERNEL_OOPS = "kernel_oops"  # the kernel itself ran into an error and went on
    KERNEL_PANIC = "kernel_panic"
    OOM_GROUP = "oom_group"  # all of a cgroup is killed together: memory.oom.group
    OOMD_KILL = "oomd_kill"  # systemd-oomd killed a cgroup
    PIDS_LIMIT = "pids_limit"  # no more processes or threads in a cgroup
    FILE_LIMIT = "file_limit"  # no more open files on the node
    LINK_DOWN = "link_down"
    LINK_UP = "link_up"
    PORT_FAULT = "port_fault"  # cable, power or heat of a network port
    NIC_FATAL = "nic_fatal"  # a network adapter says that it is broken, or its firmware is silent
    NIC_TIMEOUT = "nic_timeout"  # a network adapter did not answer a command of its driver
    NIC_TX_TIMEOUT = "nic_tx_timeout"  # a network adapter sends nothing any more
    NIC_HOT = "nic_hot"  # a network adapter itself says that it is too hot
    NIC_ERROR = "nic_error"  # a network adapter refused a command, or completed one with an error
    NIC_OK = "nic_ok"  # it has recovered
    PCIE_LINK_DOWN = "pcie_link_down"
    NFS_NOT_RESPONDING = "nfs_not_responding"
    NFS_OK = "nfs_ok"
    LUSTRE_LOST = "lustre_lost"
    LUSTRE_RESTORED = "lustre_restored"
    LUSTRE_EVICTED = "lustre_evicted"
    LUSTRE_ERROR = "lustre_error"
    NFS_STATE_LOST = "nfs_state_lost"  # locks or open files of NFS 4 could not be reclaimed
    CEPH_LOST = "ceph_lost"  # no monitor, or a metadata server that hangs
    CEPH_OK = "ceph_ok"
    CEPH_ERROR = "ceph_error"  # a connection of libceph, CephFS or rbd had an error
    WEKA_LOST = "weka_lost"  # the frontends of Weka on this node do not run
    WEKA_OK = "weka_ok"
    BEEGFS_ERROR = "beegfs_error"  # a server of BeeGFS could not be reached
    SMB_ERROR = "smb_error"  # a server of SMB (CIFS) did not answer
    FILESYSTEM_ERROR = "filesystem_error"
    FILESYSTEM_READ_ONLY = "filesystem_read_only"
    FILESYSTEM_SHUTDOWN = "filesystem_shutdown"
    FILESYSTEM_OK = "filesystem_ok"  # mounted anew, or unmounted; a pool that takes writes again
    POOL_FULL = "pool_full"  # a thin pool of the device mapper has no space left
    DISK_ERROR = "disk_error"
    DISK_GONE = "disk_gone"  # a disk does not answer any more, or the kernel gave it up
    DISK_OK = "disk_ok"
    MACHINE_CHECK = "machine_check"  # its severity is not told
    MACHINE_CHECK_CORRECTED = "machine_check_corrected"
    MACHINE_CHECK_DEFERRED = "machine_check_deferred"  # AMD: broken data that nothing has used yet
    MACHINE_CHECK_UNCORRECTED = "machine_check_uncorrected"
    MEMORY_CORRECTED = "memory_corrected"  # EDAC CE
    MEMORY_UNCORRECTED = "memory_uncorrected"  # EDAC UE
    PCIE_CORRECTED = "pcie_corrected"
    PCIE_NONFATAL = "pcie_nonfatal"
    PCIE_FATAL = "pcie_fatal"
    PCIE_CONTAINED = (
        "pcie_contained"  # downstream port containment: what is below the port is cut off
    )
    PCIE_ACS = "pcie_acs"  # access control refused a transfer between two devices
    IOMMU_FAULT = "iommu_fault"  # a device wanted memory that is not its own
    IOMMU_FAILED = "iommu_failed"  # the IOMMU itself has stopped working
    CPU_THROTTLED = "cpu_throttled"  # a processor is too hot
    GPU_RESET = "gpu_reset"  # amdgpu resets a GPU
    GPU_RESET_OK = "gpu_reset_ok"
    GPU_RESET_FAILED = "gpu_reset_failed"
    GPU_START_FAILED = "gpu_start_failed"  # amdgpu cannot start a GPU
    GPU_FIRMWARE_SILENT = "gpu_firmware_silent"  # its firmware (SMU; GSP of NVIDIA) does not answer
    GPU_RING_TIMEOUT = "gpu_ring_timeout"  # a GPU did not do its work in time
    GPU_RESET_REQUIRED = (
        "gpu_reset_required"  # NVIDIA's driver refuses to use a GPU before it is reset
    )
    GPU_UNREACHABLE = (
        "gpu_unreachable"  # NVIDIA's driver: a GPU has left the bus, which one it does not say
    )
    GPU_DRIVER_FAILED = (
        "gpu_driver_failed"  # NVIDIA's driver: its memory manager (UVM) has failed for all GPUs
    )
    GPU_DRIVER_OK = "gpu_driver_ok"
    FABRIC_INCOMPLETE = (
        "fabric_incomplete"  # the Fabric Manager found too few NVSwitches, and gave up
    )
    FABRIC_MISMATCH = "fabric_mismatch"  # it does not fit the driver's version, and gave up
    FABRIC_MULTICAST = "fabric_multicast"  # it does not know a GPU that shall share memory (NVLS)
    FABRIC_LINK_ERROR = "fabric_link_error"  # it was told of a fatal error of a GPU's NVLink
    FABRIC_OK = "fabric_ok"  # it has set up all NVSwitches
    GPU_PAGE_FAULT = "gpu_page_fault"  # amdgpu: a program used an address that is not its own
    GPU_BAD_PAGES = (
        "gpu_bad_pages"  # amdgpu: so much memory was taken out that the GPU is to be replaced
    )
    GPU_RAS_CORRECTED = "gpu_ras_corrected"  # amdgpu: memory or logic errors, corrected or deferred
    GPU_RAS_UNCORRECTED = "gpu_ras_uncorrected"


class Origin(StrEnum):
    """Who reported an event: the kernel, a program that wrote into its log, NVML, or the log of the Fabric Manager."""

    KERNEL = "kernel"  # the kernel itself, through its log
    USER_SPACE = "user_space"  # a program that wrote into the kernel's log: a drill, or a forgery
    NVML = "nvml"  # the driver, through an NVML event set
    FABRIC_MANAGER = "fabric_manager"  # NVIDIA's daemon for NVSwitches, in a log of its own


class KernelEvent(MeasuredData, frozen=True, kw_only=True):
    """One event of the kernel or the driver. `text` is raw: it must be made safe before it is shown or stored."""

    kind: KernelEventKind
    at: float  # unix
    text: str = ""
    sequence: int = -1  # of the record in the kernel's log; -1: it has none
    origin: Origin = Origin.KERNEL
    device: str = ""  # PCI address 0000:3b:00.0, network interface, server, block device
    alias: str = ""  # the other name of the same device: the interface beside the PCI address
    driver: str = ""  # of a network adapter, where the line names it: bnxt_en
    xid: int | None = None  # also of an SXid
    pid: int | None = None  # as the kernel counts: of the first pid namespace
    process: str = ""
    uuid: str = ""
    channel: str = ""
    link: int | None = None  # NVLink number
    severity: str = ""  # fatal, nonfatal: where the line itself says so
    recovery: str = ""  # Xid 154: what the driver wants now, "GPU Reset Required"
    cause: int | None = None  # Xid 45: the Xid before it that the driver names as its cause
    unit: str = ""  # Xids 144 to 150: the part of the link, "RLW_RXPIPE"
    info: int | None = (
        None  # the same: the first number in brackets, by which the catalogue is read
    )
    status: int | None = None  # the same: the second number
    scope: str = ""  # oom_kill: node, cgroup
    group: str = ""  # oom_kill: the memory cgroup whose limit was met
    rss_bytes: int | None = None  # oom_kill: anonymous, file and shared memory of the victim
    seconds: int | None = None  # hung_task, lockup: for how long
    number: int = 1  # how many errors the line stands for


def same_device(one: KernelEvent, other: KernelEvent) -> bool:
    """Whether two events are about one device, by either of its names; events without a device are not."""
    return not {one.device, one.alias}.isdisjoint({other.device, other.alias} - {""})


def other_port(one: KernelEvent, other: KernelEvent) -> bool:
    """Whether two events name two interfaces: ports that share one PCI address (cxgb4, mana), or what stands for a virtual function."""
    mine, its = ({name for name in (e.device, e.alias) if name and ":" not in name} for e in (one, other))  # fmt: skip
    return bool(mine and its) and mine.isdisjoint(its)


def is_gpu(kind: KernelEventKind) -> bool:
    """Whether events of this kind come from a GPU or an NVSwitch."""
    return kind in (
        KernelEventKind.XID,
        KernelEventKind.GPU_LOST,
        KernelEventKind.GPU_INIT_FAILED,
        KernelEventKind.SXID,
    )
