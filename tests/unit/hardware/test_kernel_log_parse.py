"""What lines of the kernel tell: every kind of event, Xids in all spellings, and forgeries that are none."""

from pathlib import Path
from typing import Any

import pytest

from mldebug.hardware.kernel_log.lines.nics import DRIVERS
from mldebug.hardware.kernel_log.lines.nvidia import gpu_named
from mldebug.hardware.kernel_log.lines.reader import bus_id
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind, Origin
from mldebug.hardware.kernel_log.parse import SIGNS, parse_event
from mldebug.hardware.kernel_log.records import parse_record
from shared.hardware.kernellines import OF_FABRIC_MANAGER, fold, parse_line

FIXTURES = Path(__file__).parents[2] / "fixtures/kernellog"
K = KernelEventKind

EXPECTED: dict[int, tuple[KernelEventKind, dict[str, Any]]] = {
    2: (K.GPU_LOST, {"device": "0000:3b:00.0", "xid": 79}),
    3: (K.GPU_LOST, {"device": "0000:86:00.0", "xid": 79}),
    4: (K.GPU_LOST, {"device": "0000:04:00.0", "xid": 79}),
    5: (K.SXID, {"device": "0000:c1:00.0", "xid": 28006, "severity": "nonfatal", "link": 46}),
    7: (K.SXID, {"device": "0000:a9:00.0", "xid": 24007, "severity": "fatal", "link": 44}),
    8: (K.OOM_KILL, {"pid": 16601, "process": "python3", "scope": "cgroup", "rss_bytes": (67072 + 6348 + 4) * 1024}),
    9: (K.OOM_KILL, {"pid": 16602, "process": "pt_data_worker", "scope": "cgroup", "group": "/slurm/uid_1000/job_77"}),
    10: (K.OOM_KILL, {"pid": 16603, "process": "python", "scope": "node", "group": ""}),
    11: (K.OOM_KILL, {"pid": 4711, "process": "python", "scope": "node", "rss_bytes": None}),
    12: (K.OOM_KILL, {"pid": 16604, "process": "a, b) c", "scope": "node", "rss_bytes": 4096}),
    13: (K.CRASH, {"pid": 10346, "process": "sf"}),
    14: (K.CRASH, {"pid": 12, "process": "python"}),
    15: (K.CRASH, {"pid": 4242, "process": "python"}),
    16: (K.HUNG_TASK, {"pid": 12345, "process": "python3", "seconds": 120}),
    17: (K.HUNG_TASK, {"pid": 917, "process": "kworker/u8:2", "seconds": 245}),
    18: (K.LOCKUP, {"pid": 1234, "process": "python", "seconds": 22, "device": "CPU 3"}),
    19: (K.LOCKUP, {"pid": None, "seconds": None, "device": "CPU 7"}),
    20: (K.LINK_DOWN, {"device": "ens1f0np0"}),
    21: (K.LINK_UP, {"device": "ens1f0np0"}),
    22: (K.PORT_FAULT, {"device": "0000:1a:00.0"}),
    24: (K.PORT_FAULT, {"device": "0000:1b:00.0"}),
    25: (K.LINK_DOWN, {"device": "eno1"}),
    26: (K.LINK_UP, {"device": "eno2"}),
    27: (K.LINK_DOWN, {"device": "0000:5e:00.1"}),
    28: (K.LINK_DOWN, {"device": "ens1f1"}),
    29: (K.LINK_UP, {"device": "ib0"}),
    30: (K.PCIE_LINK_DOWN, {"device": "0000:5d:02.0"}),
    31: (K.NFS_NOT_RESPONDING, {"device": "10.20.0.5"}),
    32: (K.NFS_OK, {"device": "10.20.0.5"}),
    33: (K.LUSTRE_LOST, {"device": "scratch-OST0007"}),
    34: (K.LUSTRE_RESTORED, {"device": "scratch-OST0007"}),
    35: (K.LUSTRE_EVICTED, {"device": "scratch-OST0002"}),
    36: (K.LUSTRE_ERROR, {"device": "scratch-OST0002"}),
    37: (K.FILESYSTEM_ERROR, {"device": "nvme0n1p1"}),
    38: (K.FILESYSTEM_READ_ONLY, {"device": "nvme0n1p1"}),
    39: (K.FILESYSTEM_OK, {"device": "loop0"}),
    40: (K.FILESYSTEM_SHUTDOWN, {"device": "sdb1"}),
    41: (K.FILESYSTEM_ERROR, {"device": "sdb1"}),
    42: (K.DISK_ERROR, {"device": "sda"}),
    43: (K.DISK_ERROR, {"device": "nvme2n1"}),
    44: (K.DISK_ERROR, {"device": "nvme1"}),
    45: (K.MACHINE_CHECK, {}),
    46: (K.MACHINE_CHECK_CORRECTED, {}),
    47: (K.MACHINE_CHECK_UNCORRECTED, {}),
    48: (K.MACHINE_CHECK_UNCORRECTED, {}),
    49: (K.MEMORY_CORRECTED, {"device": "CPU_SrcID#0_MC#0_Chan#0_DIMM#0", "number": 3}),
    50: (K.MEMORY_UNCORRECTED, {"device": "CPU_SrcID#1_MC#1_Chan#0_DIMM#1", "number": 1}),
    52: (K.PCIE_CORRECTED, {"device": "0000:3b:00.0", "process": "nvidia"}),
    53: (K.PCIE_NONFATAL, {"device": "0000:3b:00.0"}),
    54: (K.PCIE_FATAL, {"device": "0000:1a:00.0", "process": "mlx5_core"}),
    55: (K.NFS_NOT_RESPONDING, {"device": "nas-1"}),
    58: (K.GPU_INIT_FAILED, {"device": "0000:4f:00.0", "xid": None}),
    60: (K.GPU_INIT_FAILED, {"device": ""}),
    61: (K.PCIE_CONTAINED, {"device": "0000:30:03.0"}),
    63: (K.PCIE_CONTAINED, {"device": "0000:00:01.0"}),
    64: (K.NIC_FATAL, {"device": "0000:1a:00.0"}),
    65: (K.NIC_FATAL, {"device": "0000:1a:00.1"}),
    67: (K.RCU_STALL, {}),
    68: (K.RCU_STALL, {}),
    69: (K.RCU_STALL, {}),
    70: (K.KERNEL_OOPS, {}),
    71: (K.KERNEL_OOPS, {}),
    72: (K.KERNEL_OOPS, {}),
    73: (K.KERNEL_OOPS, {}),
    74: (K.KERNEL_OOPS, {}),
    75: (K.KERNEL_OOPS, {}),
    76: (K.KERNEL_OOPS, {}),
    77: (K.KERNEL_OOPS, {}),
    78: (K.KERNEL_OOPS, {}),
    79: (K.KERNEL_OOPS, {}),
    80: (K.KERNEL_PANIC, {}),
    81: (K.OOM_GROUP, {"group": "/kubepods/burstable/pod12/abc"}),
    82: (K.OOMD_KILL, {"group": "/user.slice/user-1000.slice/session-3.scope"}),
    83: (K.OOMD_KILL, {"group": "train@7.service"}),
    84: (K.PIDS_LIMIT, {"group": "/system.slice/slurmstepd.scope/job_7/step_0"}),
    85: (K.FILE_LIMIT, {}),
    86: (K.NIC_TIMEOUT, {"device": "0000:41:00.0"}),
    87: (K.NIC_TIMEOUT, {"device": "0000:42:00.0"}),
    88: (K.NIC_TX_TIMEOUT, {"device": "0000:65:00.0"}),
    89: (K.NIC_TX_TIMEOUT, {"device": "0000:5e:00.0"}),
    90: (K.NIC_TX_TIMEOUT, {"device": "0000:01:00.0"}),
    91: (K.NIC_TX_TIMEOUT, {"device": "ib0"}),
    92: (K.NIC_TX_TIMEOUT, {"device": "0000:65:00.1"}),
    93: (K.NIC_TX_TIMEOUT, {"device": "ens5"}),
    94: (K.NIC_ERROR, {"device": "0000:d2:00.0"}),
    95: (K.NIC_ERROR, {"device": "mlx5_0"}),
    96: (K.NIC_OK, {"device": "0000:41:00.0"}),
    97: (K.NIC_FATAL, {"device": "rdmap0s6"}),
    98: (K.NIC_FATAL, {"device": "0000:00:06.0"}),
    99: (K.NIC_TIMEOUT, {"device": "rdmap16s27"}),
    100: (K.NIC_TIMEOUT, {"device": "0000:00:05.0"}),
    101: (K.NIC_FATAL, {"device": "0000:65:00.0"}),
    102: (K.LINK_DOWN, {"device": "bond0"}),
    103: (K.NFS_STATE_LOST, {"device": "10.0.0.1"}),
    104: (K.NFS_STATE_LOST, {"device": ""}),
    105: (K.CEPH_LOST, {"device": "monitors"}),
    106: (K.CEPH_OK, {"device": "monitors"}),
    107: (K.CEPH_LOST, {"device": "mds0"}),
    108: (K.CEPH_OK, {"device": "mds0"}),
    109: (K.CEPH_LOST, {"device": "mds1"}),
    110: (K.CEPH_ERROR, {"device": "osd56"}),
    111: (K.CEPH_ERROR, {"device": "rbd0"}),
    112: (K.FILESYSTEM_ERROR, {"device": "dm-17"}),
    113: (K.FILESYSTEM_ERROR, {"device": "dm-1"}),
    114: (K.FILESYSTEM_SHUTDOWN, {"device": "dm-17"}),
    115: (K.FILESYSTEM_READ_ONLY, {"device": "sdb"}),
    116: (K.FILESYSTEM_ERROR, {"device": "nvme1n1"}),
    117: (K.FILESYSTEM_READ_ONLY, {"device": "sda1"}),
    118: (K.FILESYSTEM_SHUTDOWN, {"device": "tank"}),
    119: (K.FILESYSTEM_OK, {"device": "sdb1"}),
    120: (K.DISK_GONE, {"device": "nvme2"}),
    121: (K.DISK_GONE, {"device": "nvme0n1"}),
    122: (K.DISK_GONE, {"device": "2:0:0:0"}),
    123: (K.DISK_GONE, {"device": "ata1.00"}),
    124: (K.DISK_GONE, {"device": "sdb1"}),
    125: (K.DISK_OK, {"device": "nvme2"}),
    126: (K.MACHINE_CHECK, {}),
    127: (K.MACHINE_CHECK_UNCORRECTED, {}),
    128: (K.MACHINE_CHECK_UNCORRECTED, {}),
    129: (K.MACHINE_CHECK_UNCORRECTED, {}),
    130: (K.CPU_THROTTLED, {}),
    131: (K.PCIE_ACS, {"device": "0000:3b:00.0"}),
    132: (K.PCIE_FATAL, {"device": "0000:00:01.0"}),
    133: (K.PCIE_FATAL, {"device": "0000:3b:00.0"}),
    134: (K.IOMMU_FAULT, {"device": "0000:3b:00.0"}),
    135: (K.IOMMU_FAULT, {"device": "0000:01:00.0"}),
    136: (K.IOMMU_FAULT, {"device": ""}),
    137: (K.LOCKUP, {"device": "CPU 12"}),
    138: (K.LOCKUP, {"device": "CPU 3"}),
    139: (K.LOCKUP, {"device": "CPU 5", "pid": 4711}),
    140: (K.GPU_RING_TIMEOUT, {"device": "0000:83:00.0"}),
    141: (K.GPU_RING_TIMEOUT, {"device": ""}),
    142: (K.GPU_RESET, {"device": "0000:83:00.0"}),
    143: (K.GPU_RESET_OK, {"device": "0000:83:00.0"}),
    144: (K.GPU_RESET_FAILED, {"device": "0000:83:00.0"}),
    145: (K.GPU_PAGE_FAULT, {"device": "0000:83:00.0"}),
    146: (K.GPU_RAS_CORRECTED, {"number": 3}),
    147: (K.GPU_RAS_UNCORRECTED, {"number": 2}),
    148: (K.GPU_RESET_FAILED, {"device": ""}),
    149: (K.GPU_RESET_FAILED, {"device": ""}),
    150: (K.NIC_FATAL, {"device": "0000:41:00.0"}),
    151: (K.NIC_FATAL, {"device": ""}),
    152: (K.NIC_HOT, {"device": "0000:41:00.0"}),
    153: (K.WORKQUEUE_STALL, {"seconds": 35}),
    154: (K.KERNEL_OOPS, {}),
    155: (K.MACHINE_CHECK_UNCORRECTED, {}),
    156: (K.DISK_ERROR, {"device": "nvme0n1"}),
    157: (K.DISK_ERROR, {"device": "dm-3"}),
    158: (K.NIC_ERROR, {"device": "0000:41:00.0"}),
    159: (K.NIC_FATAL, {"device": "mlx5_core.sf.4"}),
    160: (K.NIC_FATAL, {"device": "0000:00:06.0"}),
    161: (K.NIC_ERROR, {"device": "rdmap0s6"}),
    162: (K.GPU_RING_TIMEOUT, {"device": "0000:83:00.0"}),
    163: (K.GPU_FIRMWARE_SILENT, {"device": "0000:83:00.0"}),
    164: (K.NIC_ERROR, {"device": "rocep33s0f0"}),
    165: (K.NIC_ERROR, {"device": "ibp26s0"}),
    166: (K.NIC_FATAL, {"device": "0000:65:00.0"}),
    167: (K.NIC_FATAL, {"device": "0000:41:00.0"}),
    168: (K.NIC_FATAL, {"device": "0000:41:00.0"}),
    169: (K.NIC_FATAL, {"device": "0000:41:00.0"}),
    170: (K.NIC_FATAL, {"device": "0000:02:00.0"}),
    171: (K.NIC_FATAL, {"device": "0000:03:00.0"}),
    172: (K.NIC_OK, {"device": "0000:41:00.0"}),
    173: (K.FILESYSTEM_ERROR, {"device": ""}),
    174: (K.IOMMU_FAULT, {"device": ""}),
    175: (K.IOMMU_FAULT, {"device": "0000:01:00.0"}),
    176: (K.LUSTRE_ERROR, {}),
    177: (K.LUSTRE_ERROR, {}),
    178: (K.BEEGFS_ERROR, {}),
    179: (K.GPU_RAS_CORRECTED, {"device": "0000:42:00.0"}),
    180: (K.GPU_RAS_UNCORRECTED, {"device": "0000:42:00.0"}),
    181: (K.GPU_RAS_CORRECTED, {"number": 2}),
    182: (K.FILESYSTEM_ERROR, {"device": "sda"}),
    183: (K.FILESYSTEM_ERROR, {"device": ""}),
    184: (K.SMB_ERROR, {"device": "files.example"}),
    185: (K.SMB_ERROR, {"device": "files.example"}),
    186: (K.DISK_ERROR, {"device": "ata1.00"}),
    187: (K.DISK_ERROR, {"device": "sdb6"}),
    188: (K.DISK_GONE, {"device": "md2"}),
    189: (K.MEMORY_UNCORRECTED, {}),
    190: (K.NIC_OK, {"device": "0000:00:05.0"}),
    191: (K.IOMMU_FAILED, {"device": ""}),
    192: (K.NIC_FATAL, {"device": "0000:c1:00.0", "alias": "ens3f0np0", "driver": "bnxt_en"}),
    193: (K.LINK_UP, {"device": "ens3f0np0", "alias": "0000:c1:00.0"}),
    194: (K.DISK_GONE, {"device": "mpt3sas_cm0"}),
    195: (K.DISK_OK, {"device": "mpt3sas_cm0"}),
    196: (K.DISK_ERROR, {"device": "nvme5n1"}),
    197: (K.MACHINE_CHECK_UNCORRECTED, {}),
    198: (K.KERNEL_OOPS, {}),
    199: (K.PCIE_FATAL, {"device": "0000:4a:00.0"}),
    200: (K.PCIE_FATAL, {"device": "0000:4a:00.0"}),
    201: (K.DISK_GONE, {"device": "0000:5e:00.0"}),
    202: (K.DISK_ERROR, {"device": "253:4"}),
    203: (K.NIC_FATAL, {"device": "ens5f0", "driver": ""}),
    204: (K.DISK_ERROR, {"device": "aacraid"}),
    205: (K.DISK_GONE, {"device": "0000:5e:00.0"}),
    206: (K.DISK_GONE, {"device": "0000:5e:00.0"}),
    207: (K.NIC_FATAL, {"device": "eno1"}),
    208: (K.WEKA_LOST, {"device": "weka"}),
    209: (K.PCIE_NONFATAL, {"device": ""}),
    210: (K.DISK_OK, {"device": "md127"}),
    211: (K.DISK_GONE, {"device": "0000:01:00.0"}),
    212: (K.DISK_ERROR, {"device": "nvme2n1"}),
    213: (K.GPU_START_FAILED, {"device": "0000:5f:00.0"}),
    214: (K.FILESYSTEM_READ_ONLY, {"device": "nvme0n1"}),
    215: (K.CEPH_ERROR, {"device": "osd2"}),
    216: (K.DISK_GONE, {"device": "nvme1n1", "alias": "md127"}),
    217: (K.LOCKUP, {"device": "CPU 42"}),
    218: (K.GPU_RESET_REQUIRED, {"device": ""}),
    219: (K.GPU_RESET_REQUIRED, {"device": ""}),
    220: (K.GPU_UNREACHABLE, {"device": ""}),
    221: (K.GPU_DRIVER_FAILED, {"device": ""}),
    222: (K.GPU_FIRMWARE_SILENT, {"device": ""}),
    223: (K.GPU_RING_TIMEOUT, {"device": ""}),
    224: (K.FILESYSTEM_ERROR, {"device": "dm-4"}),
    225: (K.FILESYSTEM_ERROR, {"device": ""}),
    226: (K.FILESYSTEM_ERROR, {"device": "dm-6"}),
    227: (K.POOL_FULL, {"device": "253:4"}),
    228: (K.IOMMU_FAULT, {"device": "", "number": 893}),
    229: (K.DISK_GONE, {"device": "md5"}),
    230: (K.DISK_GONE, {"device": "md7"}),
    231: (K.WEKA_OK, {"device": "weka"}),
    232: (K.FILESYSTEM_READ_ONLY, {"device": "OCFS2"}),
    233: (K.PCIE_LINK_DOWN, {"device": "0000:17:02.0"}),
    234: (K.GPU_DRIVER_OK, {"device": "", "alias": "nvidia-uvm"}),
    235: (K.DISK_OK, {"device": "", "alias": "md5:start"}),
    236: (K.DISK_OK, {"device": "", "alias": "md5:start"}),
    237: (K.DISK_OK, {"device": "sdb", "alias": "0:0:1:0"}),
    238: (K.DISK_OK, {"device": "ata1.00"}),
    239: (K.DISK_OK, {"device": "md126"}),
    240: (K.FILESYSTEM_OK, {"device": "OCFS2"}),
    241: (K.GPU_BAD_PAGES, {"device": "0000:05:00.0"}),
    242: (K.GPU_START_FAILED, {"device": "0000:05:00.0"}),
    243: (K.FILESYSTEM_SHUTDOWN, {"device": "lustre-mdt1", "alias": "zpool/lustre-mdt1"}),
    244: (K.FILESYSTEM_OK, {"device": "zpool/lustre-mdt1"}),
    245: (K.NFS_STATE_LOST, {"device": ""}),
    246: (K.NIC_TIMEOUT, {"device": "rocep49s0f0"}),
    247: (K.NIC_TIMEOUT, {"device": "rdmap157s0"}),
    248: (K.DISK_ERROR, {"device": "session1"}),
    249: (K.NFS_STATE_LOST, {"device": ""}),
    250: (K.MACHINE_CHECK_DEFERRED, {}),
    251: (K.GPU_RESET_REQUIRED, {"device": ""}),
    252: (K.FILESYSTEM_READ_ONLY, {"device": "252:8"}),
    253: (K.FILESYSTEM_ERROR, {"device": "dm-2"}),
    254: (K.DISK_ERROR, {"device": "nvme7"}),
    255: (K.DISK_ERROR, {"device": "nvme2"}),
    256: (K.DISK_ERROR, {"device": "259:0"}),
    257: (K.KERNEL_OOPS, {}),
    258: (K.MACHINE_CHECK_CORRECTED, {}),
    259: (K.GPU_RAS_UNCORRECTED, {"device": ""}),
    260: (K.DISK_GONE, {"device": "nvme0n1p1", "alias": "md0:start"}),
}  # fmt: skip
"""By the sequence number of the line; lines that stand for no event of their own are not here."""


def events(name: str) -> dict[int, KernelEvent]:
    found = (parse_line(line) for line in (FIXTURES / name).read_text().splitlines())
    return {one.sequence: one for one in found if one is not None}


def xid(text: str) -> KernelEvent:
    found = parse_line(f"4,7,5000000,-;{text}", boot_time=1000.0)
    assert found is not None
    return found


@pytest.mark.parametrize("sequence", sorted(EXPECTED))
def test_each_kind_of_line(sequence: int) -> None:
    kind, fields = EXPECTED[sequence]
    event = events("events.kmsg")[sequence]

    assert event.kind is kind
    assert {name: getattr(event, name) for name in fields} == fields


def test_lines_that_repeat_another_or_tell_of_nothing_are_no_events() -> None:
    assert set(events("events.kmsg")) == set(EXPECTED)


def test_every_kind_is_reached() -> None:
    """But for those that the log of the Fabric Manager tells: tests/unit/hardware/test_fabric_manager.py."""
    assert {kind for kind, _ in EXPECTED.values()} | {K.XID} | OF_FABRIC_MANAGER == set(
        KernelEventKind
    )


def test_every_sign_is_needed() -> None:
    """Each word stands in a line that tells of an event."""
    lines = [
        *(FIXTURES / "events.kmsg").read_text().splitlines(),
        (FIXTURES / "xids.kmsg").read_text().partition("\n")[0],
        *(f"4,1,1,-;{driver} 0000:41:00.0: Reset failed!" for driver in DRIVERS),
    ]
    for sign in SIGNS:
        assert any(sign.word in line and parse_line(line) for line in lines), sign.word


def test_an_xid_with_everything() -> None:
    event = xid(
        "NVRM: Xid (PCI:0000:1a:00): 45, pid='20411', name=python, Ch 0000000b, errorString CTX SWITCH TIMEOUT"
    )

    assert event == KernelEvent(
        kind=K.XID,
        at=1005.0,
        text="NVRM: Xid (PCI:0000:1a:00): 45, pid='20411', name=python, Ch 0000000b, errorString CTX SWITCH TIMEOUT",
        sequence=7,
        device="0000:1a:00.0",
        xid=45,
        pid=20411,
        process="python",
        channel="0000000b",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", ("0000:03:00.0", 14, None, "", "00000001")),
        ("NVRM: Xid (0002:00): 13, 0003 00000000 00008297", ("0000:02:00.0", 13, None, "", "")),
        ("NVRM: Xid: 8, Channel 0000001e", ("", 8, None, "", "0000001e")),
        ("NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.", ("0000:05:00.0", 79, None, "", "")),
        ("NVRM: Xid (PCI:0000:05:00): 79, pid=12, GPU has fallen off the bus.", ("0000:05:00.0", 79, 12, "", "")),
        ("NVRM: Xid (PCI:0000:3B:00): 43, pid=20411, name=python, Ch 00000008", ("0000:3b:00.0", 43, 20411, "python", "00000008")),
        ("NVRM: Xid (PCI:0000:05:00): 63, pid='<unknown>', name=<unknown>, Row", ("0000:05:00.0", 63, None, "", "")),
        ("NVRM: Xid (PCI:0000:47:00 GPU-I:05): 94, pid=7, name=a b, Contained", ("0000:47:00.0", 94, 7, "a b", "")),
        ("NVRM: Xid (PCI:0018:01:00.0): 121, pid=7, name=ray::Worker", ("0018:01:00.0", 121, 7, "ray::Worker", "")),
        ("NVRM: Xid (PCI:0000:05:00): 62", ("0000:05:00.0", 62, None, "", "")),
        ("nvidia 0000:05:00.0: NVRM: Xid (PCI:0000:05:00): 62, x", ("0000:05:00.0", 62, None, "", "")),
        ("NVRM: Xid (SOC): 31, pid=7, name=x, Ch 1", ("", 31, 7, "x", "1")),
    ],
)  # fmt: skip
def test_spellings_of_an_xid(text: str, fields: tuple[object, ...]) -> None:
    event = xid(text)

    assert event.kind is K.XID
    assert (event.device, event.xid, event.pid, event.process, event.channel) == fields


def test_what_only_some_xids_tell() -> None:
    found = {one.xid: one for one in events("xids.kmsg").values()}

    assert (found[74].link, found[149].link, found[145].link) == (5, 0, 9)
    assert (found[149].severity, found[145].severity, found[74].severity) == (
        "fatal",
        "nonfatal",
        "",
    )
    assert found[154].recovery == "GPU Reset Required"
    assert found[119].process == "nvc:[driver]"


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: Xid: 79,x[123]: segfault at 0 ip 0 sp 0 error 4",
        "NVRM: Xid: 7,  [123]: segfault at 0 ip 0 sp 0 error 4",
        "traps: NVRM: Xid: 79[12] general protection",
        "INFO: task NVRM: Xid: 79,:77 blocked for more than 120 seconds.",
        "Out of memory: Killed process 5 (NVRM: Xid: 79,) total-vm:1kB",
        "audit: text=NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.",
    ],
)
def test_the_name_of_a_process_forges_no_xid(text: str) -> None:
    event = parse_line(f"6,1,1,-;{text}")

    assert event is None or event.kind is not K.XID


FORGED = (
    "NVRM: Xid: 79[",
    "NVRM: Xid: 79]",
    "NVRM: Xid: 48, ",
    "NVRM: Xid: 8, C",
    "NVRM: GPU 00:00",
    "EDAC x: 1 UE",
    "EDAC MC0: 1 UE ",
    "EDAC x: 1 UE on",
    "eth0: Link down",
    "I/O error, dev ",
    "I/O error, dev",
    "LustreError: x",
    "XFS (sda): ",
    "Kill process 12",
    "INFO: task a:1",
)
"""What a user may call a program."""
LINES = (
    "[1234]: segfault at 0 ip 000055a37cdf8132 sp 00007fffa99a14b0 error 4 in {}[400000+1000]",
    "[1234] bad frame in rt_sigreturn frame:00000000d3e1a2b4 ip:4005d0 sp:7ffe0 orax:ffffffffffffffff in {}[400000+1000]",
    " invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    ": page allocation failure: order:4, mode:0xcc0(GFP_KERNEL), nodemask=(null),cpuset={},mems_allowed=0",
    " (1234): drop_caches: 3",
    " (1234) used greatest stack depth: 10000 bytes left",
    " uses obsolete (PF_INET,SOCK_PACKET)",
)
"""What the kernel says behind the name; `{}` is what the user called a file or a cgroup."""
FILES = (
    "fallen off the bus",
    "Corruption of in-memory data detected. Shutting down",
    ":4711 blocked for more than 120 seconds.",
    "x[4711]: segfault at 0",
    "hard LOCKUP on cpu 3",
)


@pytest.mark.parametrize("text", LINES)
@pytest.mark.parametrize("name", FORGED)
def test_what_a_program_is_called_is_never_the_kernels_word(name: str, text: str) -> None:
    assert len(name) <= 15
    for file in FILES:
        event = parse_line(f"6,1,1,-;{name}{text.format(file)}")

        assert event is None or (event.kind, event.pid, event.process) == (K.CRASH, 1234, name)


@pytest.mark.parametrize(
    "text",
    [
        "traps: x[4711] y[999] trap divide error ip:4 sp:4 error:0 in x[400000+1000]",
        "traps: x[4711] [999] bad frame in rt_sigreturn frame:0 ip:4 sp:4 orax:0 in x[400000+1000]",
        "x[4711]: y[999]: segfault at 0 ip 0 sp 0 error 4 in x[400000+1000]",
        "MCE: Killing x:4711 due:999 due to hardware memory corruption fault at 7f00",
        "Memory failure: 0x1d: Killing x:4711 due to :999 due to hardware memory corruption",
        "overlayfs: failed to resolve 'MCE: Killing x:4711 due to hardware memory corruption': -2",
        "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),global_oom,task_memcg=/a,task=b,pid=4711,task=x,pid=4711,uid=1,pid=999,uid=1",
        "Out of memory: Killed process 999 (x) total-vm:,1) total-vm:8kB, anon-rss:4kB",
    ],
)  # fmt: skip
def test_no_process_lends_its_end_to_another(text: str) -> None:
    event = parse_line(f"3,1,1,-;{text}")

    assert event is None or event.pid == 999


def test_a_cgroup_s_name_does_not_say_how_wide_the_lack_was() -> None:
    text = "oom-kill:constraint={},nodemask=(null),cpuset={},mems_allowed=0,{},task_memcg=/a,task=x,pid=9,uid=1"
    node = parse_line("6,1,1,-;" + text.format("CONSTRAINT_NONE", "x,oom_memcg=/b,task_memcg=/c", "global_oom"))  # fmt: skip
    cgroup = parse_line("6,1,1,-;" + text.format("CONSTRAINT_MEMCG", "global_oom,task_memcg=", "oom_memcg=/b"))  # fmt: skip

    assert node is not None
    assert (node.scope, node.group) == ("node", "")
    assert cgroup is not None
    assert cgroup.scope == "cgroup"


def test_a_name_with_commas_does_not_say_how_bad_an_xid_is() -> None:
    link = xid(
        "NVRM: Xid (PCI:0018:01:00): 149, pid=7, name=a, fatal link 7, NETIR_LINK_EVT Non Fatal XC0 i0 Link 03 (0x0)"
    )
    action = xid(
        "NVRM: Xid (PCI:0018:01:00): 154, pid=7, name=, to 0x0 (None), GPU recovery action changed from 0x0 (None)"
        " to 0x2 (Node Reboot Required)"
    )

    assert (link.severity, link.link) == ("nonfatal", 3)
    assert action.recovery == "Node Reboot Required"


def test_the_number_of_an_xid_is_read_whole() -> None:
    assert xid("NVRM: Xid (PCI:0000:05:00): 4294967295, pid=7, name=x").xid == 4294967295
    assert parse_line("4,7,1,-;NVRM: Xid (PCI:0000:05:00): 42949672951234, pid=7, name=x") is None


def test_behind_the_name_of_a_program_syslog_holds_what_the_program_likes() -> None:
    text = "kernel: NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus."

    assert parse_line(f"Nov 21 20:54:51 gpu-7 {text}") is not None
    assert parse_line(f"Nov 21 20:54:51 gpu-7 my: {text}") is None


def test_what_a_program_wrote_into_the_log_is_marked() -> None:
    assert xid("NVRM: Xid (PCI:0000:05:00): 62").origin is Origin.KERNEL
    drill = parse_line("12,1,1,-;NVRM: Xid (PCI:0000:05:00): 62")
    assert drill is not None
    assert drill.origin is Origin.USER_SPACE


@pytest.mark.parametrize(
    ("text", "kind", "device"),
    [
        ("e1000e: eth7 NIC Link is Down", K.LINK_DOWN, "eth7"),
        ("ixgbe 0000:01:00.0 eth2: NIC Link is Up 10 Gbps, Flow Control: RX/TX", K.LINK_UP, "eth2"),
        ("tg3 0000:02:00.0 eno3: Link is down", K.LINK_DOWN, "eno3"),
        ("r8169 0000:03:00.0 enp3s0: Link is Down", K.LINK_DOWN, "enp3s0"),
        ("bnxt_en 0000:65:00.0 eth0: NIC Link is Down", K.LINK_DOWN, "eth0"),
        ("mlx5_0: Port: 1 Link DOWN", K.LINK_DOWN, "mlx5_0"),
        ("mlx5_0: Port: 1 Link ACTIVE", K.LINK_UP, "mlx5_0"),
        ("bonding: bond0: link status definitely down for interface eno1, disabling it", K.LINK_DOWN, "eno1"),
        ("ens5: Link is up at 25000 Mbps, full duplex", K.LINK_UP, "ens5"),
        ("i40e 0000:3b:00.0 eth4: NIC Link is Up, 25 Gbps Full Duplex", K.LINK_UP, "eth4"),
        ("r8169 0000:03:00.0 enp3s0: Link is Up - 1Gbps/Full - flow control rx/tx", K.LINK_UP, "enp3s0"),
    ],
)  # fmt: skip
def test_links_of_other_drivers(text: str, kind: KernelEventKind, device: str) -> None:
    event = parse_line(f"6,1,1,-;{text}")

    assert event is not None
    assert (event.kind, event.device) == (kind, device)


@pytest.mark.parametrize(
    "text",
    [
        "ata3: SATA link down (SStatus 0 SControl 300)",
        "ata3: SATA link up 6.0 Gbps (SStatus 133 SControl 300)",
        "IPv6: ADDRCONF(NETDEV_CHANGE): veth1a2b: link becomes ready",
        "EXT4-fs (sda1): re-mounted. Quota mode: none.",
        "XFS (sda1): Ending clean mount",
        "nvme nvme0: 16/0/0 default/read/poll queues",
        "mlx5_core 0000:1a:00.0: firmware version: 28.39.2048",
        "Lustre: Mounted scratch-client",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.159.04",
        "mce: CPU0: Thermal monitoring enabled (TM1)",
        "watchdog: Delayed init of the lockup detector failed: -19",
        "EDAC MC: Ver: 3.0.0",
        "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        "Freezing user space processes completed (elapsed 0.001 seconds)",
    ],
)
def test_ordinary_lines_are_no_events(text: str) -> None:
    event = parse_line(f"6,1,1,-;{text}")

    assert event is None or fold([event]) == ()  # the good end of what never went wrong


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("PCI:0000:3B:00", "0000:3b:00.0"),
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3b:00.1", "0000:3b:00.1"),
        ("3b:00.0", "0000:3b:00.0"),
        ("10000:01:00.0", "10000:01:00.0"),
        ("0002:00", "0000:02:00.0"),
        ("PCI:0000:47:00 GPU-I:05", "0000:47:00.0"),
        ("", ""),
        ("x", ""),
        ("0000:3b:20.0", ""),
        ("0300:00", ""),
    ],
)
def test_one_spelling_of_a_pci_address(text: str, address: str) -> None:
    assert bus_id(text) == address


def test_the_driver_names_a_gpu_before_its_first_xid() -> None:
    line = (FIXTURES / "events.kmsg").read_text().splitlines()[0]
    record = parse_record(line)

    assert record is not None
    assert gpu_named(record.text) == ("0000:3b:00.0", "GPU-0f3d2a11-5c7e-4a6b-9d21-1b2c3d4e5f60")
    assert gpu_named("NVRM: loading NVIDIA UNIX x86_64 Kernel Module") is None


def test_without_a_boot_time_an_event_has_the_seconds_of_the_kernel() -> None:
    record = parse_record("4,1,2500000,-;NVRM: Xid (PCI:0000:05:00): 62")

    assert record is not None
    assert [one.at for one in (parse_event(record), parse_event(record, 9.0)) if one] == [2.5, 9.0]


def test_an_internal_error_of_xfs_without_a_device_is_kept_whatever_its_words_are() -> None:
    line = "4,1,1,-;XFS: Internal error XFS_WANT_CORRUPTED_GOTO at line 12 of file x.c.  Caller xfs_force_shutdown"
    event = parse_line(line)

    assert event is not None
    assert (event.kind, event.device) == (K.FILESYSTEM_ERROR, "")
    assert len(fold([event])) == 1


@pytest.mark.parametrize(
    ("failed", "started"),
    [
        ("ena 0000:00:05.0: probe with driver ena failed with error -62", "ena 0000:00:05.0: Elastic Network Adapter (ENA) found at mem 80400000, mac addr 06:00:00:00:00:01"),
        ("bnxt_en: probe of 0000:19:00.0 failed with error -12", "bnxt_en 0000:19:00.0 eth0: Broadcom BCM57508 NetXtreme-E 200Gb Ethernet found at mem 382ffff10000, node addr b0:26:28:00:00:01"),
    ],
)  # fmt: skip
def test_an_adapter_that_its_driver_has_started_after_all_is_well(failed: str, started: str) -> None:  # fmt: skip
    first, second = parse_line(f"3,1,1,-;{failed}"), parse_line(f"6,2,2,-;{started}")

    assert first is not None
    assert second is not None
    assert (first.kind, second.kind, first.device) == (K.NIC_FATAL, K.NIC_OK, second.device)
