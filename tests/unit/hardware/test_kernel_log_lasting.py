"""A fault of which the kernel tells again and again while it lasts is one fault; what NVIDIA's driver says without an Xid, and what ends that."""

from collections.abc import Sequence

import pytest

from mldebug.hardware.health.model import BAD, instructions
from mldebug.hardware.health.node_rules import node_health
from mldebug.hardware.health.thresholds import Thresholds
from mldebug.hardware.kernel_log.attribution import RankEvent
from mldebug.hardware.kernel_log.bursts import Burst
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind, Origin
from shared.hardware.kernellines import fold, parse_line

SOFT = "watchdog: BUG: soft lockup - CPU#{0} stuck for {1}s! [python3:4711]"
HUNG = "INFO: task {0}:{1} blocked for more than 120 seconds."
QUEUE = "mlx5_core 0000:41:00.0 {0}: NETDEV WATCHDOG: CPU: 3: transmit queue {1} timed out 5010 ms"
NVME = "nvme nvme{0}: Device not ready; aborting reset, CSTS=0x{1}"
STALL = "rcu: INFO: rcu_sched self-detected stall on CPU"
RESET = (
    "NVRM: GPU0 nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED]"
    " (0x00000062) returned from status @ kernel_channel.c:100"
)
UNREACHABLE = RESET.replace(
    "Reset required [NV_ERR_RESET_REQUIRED]", "GPU lost from the bus [NV_ERR_GPU_IS_LOST]"
)
UVM = "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover."
GPU = "NVRM: Xid (PCI:0000:3b:00): "
REQUEST = GPU + "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
WITHDRAWAL = GPU + "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"


def read(lines: Sequence[str], every: float) -> tuple[Burst, ...]:
    found = [
        parse_line(f"3,{number},{int((1000 + every * number) * 1e6)},-;{line}")
        for number, line in enumerate(lines)
    ]
    return fold([one for one in found if one is not None])


def state(lines: Sequence[str], every: float = 1.0) -> tuple[set[str], str]:
    """The components with a fault soon after the last line, and what to do first."""
    events = [RankEvent(burst=burst) for burst in read(lines, every)]
    found = node_health(events, 1003.0 + every * len(lines), Thresholds(), kernel_readable=True)
    todo = instructions(found)
    return {one.component for one in found if one.state in BAD}, todo[
        0
    ].action.value if todo else ""


@pytest.mark.parametrize(
    ("lines", "every"),
    [
        ([SOFT.format(7, 22 + 26 * n) for n in range(6)], 28.0),
        ([HUNG.format("python3", 4711)] * 4, 121.0),
        ([QUEUE.format("eth2", n) for n in range(6)], 5.1),
        ([NVME.format(2, 1)] * 3, 61.0),
        ([STALL] * 4, 63.0),
        ([RESET] * 3, 290.0),
        ([UNREACHABLE] * 3, 40.0),
        ([UVM] * 3, 40.0),
    ],
)
def test_a_fault_that_lasts_is_one(lines: list[str], every: float) -> None:
    (burst,) = read(lines, every)

    assert (burst.count, burst.first_at) == (len(lines), 1000.0)


@pytest.mark.parametrize(
    ("lines", "every", "faults"),
    [
        ([SOFT.format(cpu, 22) for cpu in (1, 2, 3)], 1.0, 3),  # three CPUs
        ([SOFT.format(1, 22)] * 2, 400.0, 2),  # it came free between
        ([HUNG.format("python3", pid) for pid in (10, 11)], 1.0, 2),
        ([NVME.format(disk, 1) for disk in (0, 1)], 1.0, 2),
        ([QUEUE.format(name, 0) for name in ("eth2", "eth3")], 1.0, 2),
        ([RESET, RESET], 700.0, 2),
        (["EXT4-fs error (device sda1): ext4_lookup:1785: inode #2: comm ls: deleted inode"] * 2, 30.0, 2),
    ],
)  # fmt: skip
def test_what_is_another_fault_stays_one(lines: list[str], every: float, faults: int) -> None:
    assert len(read(lines, every)) == faults


def test_a_queue_that_hangs_again_after_its_link_came_up_is_no_end() -> None:
    up = "mlx5_core 0000:41:00.0 eth2: Link up"
    lines = [QUEUE.format("eth2", 1), up, QUEUE.format("eth2", 1)]

    assert state(lines, 8.0)[0] == {"network"}
    assert state([*lines, up], 8.0)[0] == set()


# --- what NVIDIA's driver says without naming a GPU --------------------------------------------------


@pytest.mark.parametrize(
    ("line", "action"), [(RESET, "reset"), (UNREACHABLE, "reboot"), (UVM, "reboot")]
)
def test_a_driver_that_cannot_use_a_gpu(line: str, action: str) -> None:
    assert state([line]) == ({"gpu_errors"}, action)
    assert state([line.replace("NVRM: ", "x NVRM: ")]) == (set(), "")


@pytest.mark.parametrize("line", [RESET, UNREACHABLE])
def test_what_the_driver_takes_back_ends_it(line: str) -> None:
    assert state([line, REQUEST])[0] == {"gpu_errors", "gpu_xid"}
    assert state([line, REQUEST, WITHDRAWAL]) == (set(), "")
    assert state([REQUEST, WITHDRAWAL, line])[0] == {"gpu_errors"}


def test_a_memory_manager_that_failed_for_all_is_whole_when_it_is_loaded_anew() -> None:
    """The reset of one GPU, of whichever vendor, is no end of it; the line of each boot says nothing else."""
    loaded = "nvidia-uvm: Loaded the UVM driver, major device number 511."
    other = "amdgpu 0000:83:00.0: amdgpu: GPU reset(1) succeeded!"

    assert state([UVM, REQUEST, WITHDRAWAL, other]) == ({"gpu_errors"}, "reboot")
    assert state([UVM, loaded]) == (set(), "")
    assert state([loaded, UVM])[0] == {"gpu_errors"}
    assert read([loaded], 1.0) == ()


@pytest.mark.parametrize(("left_out", "bad"), [(893, True), (3, False)])
def test_what_the_kernel_left_out_of_its_log_counts(left_out: int, bad: bool) -> None:
    fault = "DMAR: [DMA Read NO_PASID] Request device [0x3b:0x00.0] fault addr 0x9c000000 [fault reason 0x06] PTE Read access is not set"
    found, action = state([f"dmar_fault: {left_out} callbacks suppressed", fault])

    assert (found, action) == (({"kernel"}, "check_settings") if bad else (set(), ""))
    assert read([fault], 1.0)[0].root.device == "0000:3b:00.0"
    assert state([f"net_ratelimit: {left_out} callbacks suppressed", fault])[0] == set()


def test_an_array_that_is_whole_again_is_not_another() -> None:
    gone = [
        "md: kicking non-fresh sdb1 from array!",
        "md/raid1:md0: active with 1 out of 2 mirrors",
    ]

    assert state([*gone, "md: md1: recovery done."]) == ({"storage"}, "check_hardware")
    assert state([*gone, "md: md0: recovery done."]) == (set(), "")


RAID5 = "md/raid:md0: raid level 5 active with 3 out of 4 devices, algorithm 2"
FAILED = "md/raid:md0: Disk failure on sdc1, disabling device."
REBUILD, WHOLE = "md: recovery of RAID array md0", "md: md0: recovery done."


def test_a_new_array_whose_last_disk_is_being_filled_lacks_none() -> None:
    """So mdadm makes each RAID 5; but the disk whose place a spare takes is gone all the same."""
    assert state([RAID5])[0] == {"storage"}
    assert state([RAID5, REBUILD])[0] == set()
    assert state([RAID5, REBUILD.replace("md0", "md1")])[0] == {"storage"}
    assert state([RAID5, REBUILD, FAILED])[0] == {"storage"}
    assert state([FAILED, REBUILD])[0] == {"storage"}
    assert state([FAILED, REBUILD, WHOLE])[0] == set()


def test_an_array_that_is_stopped_lacks_no_disk_and_one_that_cannot_start_does() -> None:
    lacks = "md/raid:md0: not enough operational devices (3/4 failed)"
    stopped = "md: md0 stopped."

    assert state([RAID5, stopped])[0] == set()
    assert state([stopped, RAID5])[0] == {"storage"}  # each start begins so
    assert state([lacks, stopped])[0] == {"storage"}
    assert state([FAILED, stopped])[0] == {"storage"}


@pytest.mark.parametrize(
    ("fault", "end", "other"),
    [
        ("md/raid1:md0: not enough operational mirrors.", "md/raid1:md0: active with 2 out of 2 mirrors", "md/raid1:md1: active with 2 out of 2 mirrors"),
        ("md/raid1:md0: active with 1 out of 2 mirrors", "md/raid1:md0: active with 2 out of 2 mirrors", "md/raid1:md1: active with 2 out of 2 mirrors"),
        ("OCFS2: File system is now read-only.", "ocfs2: Mounting device (8,17) on (node 0, slot 0) with ordered data mode.", "EXT4-fs (sdb1): mounted filesystem with ordered data mode."),
    ],
)  # fmt: skip
def test_an_array_that_starts_whole_and_what_is_mounted_anew_are_well(fault: str, end: str, other: str) -> None:  # fmt: skip
    assert state([fault, other])[0] == {"storage"}
    assert state([fault, end])[0] == set()
    assert state([end, fault])[0] == {"storage"}


@pytest.mark.parametrize(
    ("gone", "back", "other"),
    [
        ("sd 0:0:1:0: rejecting I/O to offline device", "sd 0:0:1:0: [sdb] Attached SCSI disk", "sd 0:0:2:0: [sdc] Attached SCSI disk"),
        ("sd 0:0:1:0: [sdb] Device offlined - not ready after error recovery", "sd 7:0:0:0: [sdb] Attached SCSI disk", "sd 0:0:2:0: [sdc] Attached SCSI disk"),
        ("ata1.00: disabled", "ata1.00: configured for UDMA/133", "ata11.00: configured for UDMA/133"),
    ],
)  # fmt: skip
def test_a_disk_that_was_replaced_is_not_gone(gone: str, back: str, other: str) -> None:
    assert state([gone, other])[0] == {"storage"}
    assert state([gone, back])[0] == set()
    assert state([back, gone])[0] == {"storage"}
    assert read([back, other], 1.0) == ()


# --- processors that are too hot ---------------------------------------------------------------------

HOT = "mce: CPU{0}: Package temperature is above threshold, cpu clock is throttled (total events = {1})"


def test_a_few_processors_that_were_hot_one_after_the_other_are_no_fault() -> None:
    """Each tells of itself at most every five minutes, at moments of its own."""
    once = [HOT.format(cpu, 1) for cpu in range(12)]
    assert state(once, 20.0)[0] == set()
    assert state(once * 14, 20.0)[0] == {"kernel"}  # 56 minutes of it


def heat(times: int, processors: int = 128) -> set[str]:
    """The components with a fault after all processors of a node have told so many times of heat, five minutes apart."""
    found = [
        parse_line(f"2,{number},{int((1000 + 300 * time) * 1e6)},-;{HOT.format(cpu, time)}")
        for number, (time, cpu) in enumerate(
            (t, c) for t in range(times) for c in range(processors)
        )
    ]
    events = [RankEvent(burst=burst) for burst in fold([one for one in found if one is not None])]
    now = 1000.0 + 300.0 * times
    health = node_health(events, now, Thresholds(), kernel_readable=True)
    late = node_health(events, now + 7500.0, Thresholds(), kernel_readable=True)

    assert not [one for one in late if one.state in BAD]  # it ends with the event window
    assert all(one.action.value == "check_cooling" for one in health if one.state in BAD)
    return {one.component for one in health if one.state in BAD}


@pytest.mark.parametrize(("times", "bad"), [(1, False), (5, False), (11, True), (20, True)])
@pytest.mark.parametrize("processors", [1, 128])
def test_heat_that_comes_again_is_a_fault_of_the_node_whatever_its_number_of_processors(times: int, processors: int, bad: bool) -> None:  # fmt: skip
    assert heat(times, processors) == ({"kernel"} if bad else set())


def test_a_fabric_that_fails_again_after_its_end_is_not_well() -> None:
    """The second line belongs to the event of the first, as it comes soon after."""
    kinds = [KernelEventKind.FABRIC_INCOMPLETE, KernelEventKind.FABRIC_OK] * 2
    events_of_switches = [KernelEvent(kind=kind, at=1000.0 + 20.0 * n, origin=Origin.FABRIC_MANAGER, alias="switches") for n, kind in enumerate(kinds)]  # fmt: skip

    def bad(number: int) -> bool:
        events = [RankEvent(burst=burst) for burst in fold(events_of_switches[:number])]
        found = node_health(events, 1100.0, Thresholds(), kernel_readable=True)
        return any(one.state in BAD for one in found)

    assert [bad(number) for number in (1, 2, 3, 4)] == [True, False, True, False]


# --- a fault and its end by turns ---------------------------------------------------------------------

DOWN = "mlx5_core 0000:1a:00.0 ens1f0np0: Link down"
UP = "mlx5_core 0000:1a:00.0 ens1f0np0: Link up"


@pytest.mark.parametrize("every", [0.5, 4.0, 10.0])
@pytest.mark.parametrize("turn", [(DOWN, UP), (UP, DOWN)])
def test_a_link_that_flaps_went_down_as_often_as_it_did(turn: tuple[str, str], every: float) -> None:  # fmt: skip
    """However close together, and whichever came first: as at a boot, where it comes up before it begins to flap."""
    limit = Thresholds().link_flaps
    assert limit is not None

    assert state([*turn] * limit, every)[0] == set()
    assert state([*turn] * (limit + 1), every)[0] == {"network"}


@pytest.mark.parametrize(
    ("fault", "end"),
    [
        ("nfs: server a not responding, still trying", "nfs: server a OK"),
        (
            "Lustre: s-OST0007-osc-ffff9d2a: Connection to s-OST0007 (at 10.4.0.7@o2ib) was lost; in progress operations using this service will wait for recovery to complete",
            "Lustre: s-OST0007-osc-ffff9d2a: Connection restored to s-OST0007 (at 10.4.0.7@o2ib)",
        ),
    ],
)
@pytest.mark.parametrize("every", [0.5, 3.0, 60.0])
def test_a_server_that_is_gone_again_soon_after_it_came_back_is_gone(fault: str, end: str, every: float) -> None:  # fmt: skip
    assert state([end, fault], every)[0] == state([fault, end, fault], every)[0] == {"storage"}
    assert state([fault, end], every)[0] == state([end, fault, end], every)[0] == set()
    (*_, last) = read([end, fault, fault], every)
    assert last.root.kind is not KernelEventKind.NFS_OK
    assert read([end], every)[0].count == 1
