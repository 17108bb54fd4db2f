"""Kernel lines as people have met them, and variants of each kind: what the node's health says, and that what is harmless stays so."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from mldebug.hardware.gpu.readings import GpuReading
from mldebug.hardware.health.kernel_rules import KERNEL_RULES
from mldebug.hardware.health.model import (
    BAD,
    COMPONENTS,
    ComponentHealth,
    HealthState,
    instructions,
)
from mldebug.hardware.health.node_rules import node_health
from mldebug.hardware.health.recovery import RecoveryWatch, requests
from mldebug.hardware.health.thresholds import Thresholds
from mldebug.hardware.kernel_log.attribution import RankEvent
from mldebug.hardware.kernel_log.bursts import Burst
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind, Origin, is_gpu
from mldebug.hardware.kernel_log.xids import Tier, catalogue, judge
from shared.hardware.kernellines import fold, parse_line

FOLDER = Path(__file__).parents[2] / "fixtures/kernellog/field"
CASES: list[dict[str, Any]] = [
    case for file in sorted(FOLDER.glob("*.yaml")) for case in yaml.safe_load(file.read_text())
]
GPU = "NVRM: Xid (PCI:0000:3b:00): "
ASK = GPU + "154, GPU recovery action changed from 0x0 (None) to "
BACK = GPU + "154, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)"
HUNG = GPU + "119, pid=7, name=python3, Timeout after 6s of waiting for RPC response from GPU0 GSP!"
FAULT = GPU + "31, pid=7, name=python3, Ch 0000001b, intr 00000000. MMU Fault: ENGINE GRAPHICS"


def read(lines: Iterable[str], every: float = 1.0, priority: int = 3) -> tuple[Burst, ...]:
    """What the lines fold into, one each `every` seconds."""
    found = [
        parse_line(f"{priority},{number},{int((1000 + every * number) * 1e6)},-;{line}")
        for number, line in enumerate(lines)
    ]
    return fold([one for one in found if one is not None])


def health(bursts: Sequence[Burst], after: float = 5.0) -> tuple[ComponentHealth, ...]:
    """The node's health so many seconds after the last line."""
    events = [RankEvent(burst=burst) for burst in bursts]
    at = max((burst.last_at for burst in bursts), default=0.0) + after
    return node_health(events, at, Thresholds(), kernel_readable=True)


def verdict(bursts: Sequence[Burst], after: float = 5.0) -> tuple[str, str]:
    """The worst state, and the one action that is shown first."""
    found = health(bursts, after)
    states = [one.state for one in found if one.state in BAD]
    worst = HealthState.UNHEALTHY if HealthState.UNHEALTHY in states else HealthState.DEGRADED
    todo = instructions(found)
    return (worst if states else HealthState.HEALTHY).value, todo[
        0
    ].action.value if todo else "none"


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_a_line_from_the_field(case: dict[str, Any]) -> None:
    lines, priority = case["lines"] * case.get("times", 1), 11 if case.get("program") else 3
    bursts = read(lines, case.get("every", 1.0), priority)
    state, action = verdict(bursts)

    assert state in case.get("state", [state])
    assert action in case.get("action", [action])
    kinds = [burst.root.kind.value for burst in bursts]
    assert "kind" not in case or any(fnmatch(kind, one) for kind in kinds for one in case["kind"])
    assert len(bursts) <= case.get("events", len(bursts))
    found = [one.component for one in health(bursts) if one.state in BAD]
    assert not found or case.get("component", found[0]) in found
    devices = {name for burst in bursts for name in (burst.root.device, burst.root.alias)}
    assert case.get("device", "") in {"", *devices}
    assert "pid" not in case or case["pid"] in {pid for burst in bursts for pid in burst.pids}


# --- what the driver asks for ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "state", "action"),
    [
        ("0x1 (GPU Reset Required)", "unhealthy", "reset"),
        ("0x2 (Node Reboot Required)", "unhealthy", "reboot"),
        ("0x4 (Drain and Reset)", "unhealthy", "reset"),
        ("0x1 (PF FLR)", "unhealthy", "reset"),
        ("0x3 (Drain P2P)", "degraded", "reset_when_idle"),
        ("0x9 (Full Reset Of Everything)", "unhealthy", "reset"),
        ("0x9 (Something New)", "degraded", "watch"),
    ],
)
@pytest.mark.parametrize(
    "before", [FAULT, GPU + "13, pid=7, name=python3, Graphics SM", GPU + "51, BAD_TSG"]
)
def test_what_the_driver_asks_for_decides(text: str, state: str, action: str, before: str) -> None:
    words = verdict(read([before, ASK + text]))
    alone = verdict(read([ASK + text]))

    assert words[0] == alone[0] == state
    assert action == alone[1]
    assert words[1] in (action, "check_job")


@pytest.mark.parametrize(
    "lines",
    [[HUNG, ASK + "0x2 (Node Reboot Required)"], [ASK + "0x2 (Node Reboot Required)", HUNG]],
)
@pytest.mark.parametrize("every", [0.001, 1.0, 40.0])
def test_the_greater_of_xid_and_driver_counts_in_any_order(lines: list[str], every: float) -> None:
    assert verdict(read(lines, every)) == ("unhealthy", "reboot")


def test_a_gpu_that_fell_off_the_bus_wants_a_reboot_whatever_the_driver_hopes() -> None:
    lost = GPU + "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."

    assert verdict(read([lost, ASK + "0x1 (GPU Reset Required)"])) == ("unhealthy", "reboot")


@pytest.mark.parametrize("every", [0.1, 4.0, 400.0])
def test_nothing_asked_any_more_ends_the_fault(every: float) -> None:
    lines = [HUNG, ASK + "0x2 (Node Reboot Required)", BACK]

    assert verdict(read(lines[:2], every))[0] == "unhealthy"
    assert verdict(read(lines, every)) == ("healthy", "none")
    assert verdict(read([*lines, HUNG], every)) == ("unhealthy", "reset")  # and a new one is new


def test_another_gpu_stays_broken() -> None:
    other = HUNG.replace("3b:00", "86:00")

    assert verdict(read([HUNG, other, BACK])) == ("unhealthy", "reset")


def test_what_the_driver_asks_for_stands_for_days() -> None:
    two_days = 2 * 86400.0

    assert verdict(read([ASK + "0x2 (Node Reboot Required)"]), two_days) == ("unhealthy", "reboot")
    assert verdict(read([HUNG]), two_days) == ("healthy", "none")


def test_what_the_driver_asks_for_is_not_forgotten_over_the_errors_of_many_jobs() -> None:
    jobs = [FAULT.replace("pid=7", f"pid={pid}") for pid in range(200)]
    requested = read([ASK + "0x2 (Node Reboot Required)", *jobs], 100.0)

    assert verdict(requested) == ("unhealthy", "reboot")
    assert len(requested) <= 2 * 64
    assert verdict(read([ASK + "0x2 (Node Reboot Required)", *jobs, BACK], 100.0))[0] == "healthy"
    assert len(read([ASK + "0x2 (Node Reboot Required)"] * 300, 1000.0)) <= 2 * 64


def test_a_program_cannot_take_back_what_the_driver_asks_for() -> None:
    lines = [ASK + "0x2 (Node Reboot Required)", BACK]
    events = [
        parse_line(f"{priority},{number},1000,-;{line}")
        for number, (priority, line) in enumerate(zip((3, 11), lines, strict=True))
    ]

    assert [one.origin for one in events if one] == [Origin.KERNEL, Origin.USER_SPACE]
    assert verdict(fold([one for one in events if one]))[0] == "unhealthy"


# --- causes and links ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "state"),
    [(149, "degraded"), (145, "degraded"), (48, "unhealthy"), (79, "unhealthy"), (31, "healthy"), (13, "healthy"), (4711, "healthy")],
)  # fmt: skip
def test_a_cleanup_follows_the_cause_that_it_names(cause: int, state: str) -> None:
    line = f"{GPU}45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid {cause}"

    assert verdict(read([line]))[0] == state


def test_a_cleanup_without_a_cause_is_nothing() -> None:
    assert verdict(read([GPU + "45, pid=7, name=python3, Ch 00000001"])) == ("healthy", "none")


def link_line(xid: int, unit: str, word: str, info: int, status: int) -> str:
    return f"{GPU}{xid}, {unit} {word} XC0 i0 Link 13 (0x{info:08x} 0x{status:08x} 0x00000001 0x00000000)"


def nonfatal_rows() -> list[str]:
    return [
        link_line(rule.xid, rule.units[-1], "Nonfatal", 0, status)
        for rule in catalogue().nvlink5
        if rule.severity in ("nonfatal", "promotable")
        for _ in rule.units[: 2 if len(rule.units) == 3 else 1]
        for status in rule.statuses
    ]


def test_the_51_nonfatal_errors_of_a_link_do_not_degrade() -> None:
    lines = nonfatal_rows()

    assert len(lines) == 51
    assert {verdict(read([line]))[0] for line in lines} == {"healthy"}


def test_the_fatal_errors_of_a_link_take_the_gpu_out() -> None:
    rules = [rule for rule in catalogue().nvlink5 if rule.advice == "reset"]
    lines = [
        link_line(rule.xid, unit, "Fatal", reason << 20, status)
        for rule in rules
        for unit in rule.units
        for status in rule.statuses or (0,)
        for reason in rule.reasons or (0,)
    ]

    assert len(lines) > 50
    assert {verdict(read([line])) for line in lines} == {("unhealthy", "reset")}


@pytest.mark.parametrize(
    ("line", "tier"),
    [
        (link_line(145, "RLW_RXPIPE", "Nonfatal", 0x0409A4C2, 4), Tier.FATAL),  # promoted, before R575
        (link_line(145, "RLW_RXPIPE", "Nonfatal", 0x04090086, 4), Tier.FATAL),  # promoted, from R575
        (link_line(145, "RLW_RXPIPE", "Fatal", 0x0409A0C2, 4), Tier.FATAL),  # the line says so
        (link_line(145, "RLW_REMAP", "Nonfatal", 0, 0x140), Tier.WARNING),  # two bits, one of them fatal; the line says it is not
        (link_line(145, "RLW_REMAP", "Fatal", 0, 0x140), Tier.FATAL),
        (link_line(145, "RLW_SOMETHING", "Nonfatal", 0, 1), Tier.WARNING),
        (link_line(149, "NETIR_LINK_EVT", "Fatal", 0x026 << 20, 0), Tier.WARNING),  # switched off by somebody
        (link_line(149, "NETIR_MFDE_EVENT", "Nonfatal", 0, 4), Tier.WARNING),
        (GPU + "145, pid=4711, name=py, Fatal, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008)", Tier.INFORMATION),
        (GPU + "149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 00 (0x016415c6)", Tier.FATAL),
    ],
)  # fmt: skip
def test_a_link_error_by_its_own_line(line: str, tier: Tier) -> None:
    event = parse_line(f"3,1,1,-;{line}")

    assert event is not None
    assert judge(event).tier is tier


@pytest.mark.parametrize("first", ["nvml", "line"])
def test_the_number_alone_does_not_make_a_harmless_link_error_worse(first: str) -> None:
    line = parse_line("3,1,1000000000,-;" + link_line(145, "RLW_RXPIPE", "Nonfatal", 0x0409A0C2, 8))
    assert line is not None
    number = KernelEvent(
        kind=KernelEventKind.XID, at=1000.5, origin=Origin.NVML, xid=145, device=line.device
    )
    (burst,) = fold([number, line] if first == "nvml" else [line, number])

    assert (burst.count, burst.tier) == (1, Tier.INFORMATION)


@pytest.mark.parametrize(
    ("number", "word", "state", "action"),
    [
        (22013, "Non-fatal", "healthy", "none"),
        (20009, "Non-fatal", "healthy", "none"),
        (12028, "Non-fatal", "degraded", "reset_when_idle"),
        (19084, "Non-fatal", "degraded", "reset_when_idle"),
        (20034, "Fatal", "unhealthy", "reset"),
        (24007, "Fatal", "unhealthy", "reset"),
        (22003, "Fatal", "unhealthy", "reboot"),
        (4711, "Fatal", "unhealthy", "reset"),
    ],
)
def test_switch_errors(number: int, word: str, state: str, action: str) -> None:
    line = f"nvidia-nvswitch3: SXid (PCI:0000:04:00.0): {number}, {word}, Link 44 some words"

    assert verdict(read([line])) == (state, action)


# --- folding ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [0.5, 6.0, 45.0])
def test_one_error_again_and_again_is_one_event(every: float) -> None:
    (burst,) = read([HUNG] * 10, every)

    assert (burst.count, burst.root.at) == (10, 1000.0)


def test_jobs_that_make_the_same_mistake_are_several_events() -> None:
    assert len(read([FAULT, FAULT.replace("pid=7", "pid=8")], 30.0)) == 2


# --- single corrected errors -----------------------------------------------------------------------

LOGGED = "mce: [Hardware Error]: Machine check events logged"
CORRECTED = (
    "EDAC MC1: 1 CE memory read error on CPU_SrcID#1_Ha#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0x1)"
)


def test_corrected_errors_count_only_in_numbers() -> None:
    limit = Thresholds().memory_corrected
    assert limit is not None

    assert verdict(read([LOGGED, CORRECTED])) == ("healthy", "none")
    assert verdict(read([LOGGED] * 3)) == ("healthy", "none")
    assert verdict(read([CORRECTED] * (limit + 1)))[0] == "degraded"
    assert verdict(read([CORRECTED.replace("1 CE", f"{limit + 1} CE")]))[0] == "degraded"
    assert verdict(read([CORRECTED.replace("CE", "UE")]))[0] == "unhealthy"


# --- every kind has a component, a state, something to do, and an end --------------------------------


def test_every_kind_beside_the_gpus_of_nvidia_has_a_rule() -> None:
    assert set(KERNEL_RULES) == {kind for kind in KernelEventKind if not is_gpu(kind)}
    assert {rule.component for rule in KERNEL_RULES.values()} <= set(COMPONENTS)


@pytest.mark.parametrize("kind", [kind for kind, rule in KERNEL_RULES.items() if rule.state])
def test_a_fault_of_each_kind_begins_and_ends(kind: KernelEventKind) -> None:
    rule, limits = KERNEL_RULES[kind], Thresholds()
    many = getattr(limits, rule.limit) + 1 if rule.limit else 1

    def state(*kinds: KernelEventKind, after: float = 5.0) -> HealthState:
        bursts = fold(
            KernelEvent(kind=one, at=1000.0 + number - later, device="x", text="x", number=many if one is kind else 1)
            for number, one in enumerate(kinds)
            for later in ((rule.once_in * times for times in range(many, -1, -1)) if rule.once_in and one is kind else (0.0,))
        )  # fmt: skip
        events = [RankEvent(burst=burst) for burst in bursts]
        found = node_health(events, 1000.0 + after, limits, kernel_readable=True)
        return next(one.state for one in found if one.component == rule.component)

    assert rule.action.value != "none"
    assert state(kind) is rule.state
    if not rule.lasting:
        late = node_health([], 1e6, limits, kernel_readable=True)
        assert not [one for one in late if one.state in BAD]
    for end in rule.ended_by:
        assert state(kind, end) is HealthState.HEALTHY
        assert state(kind, end, kind) is rule.state
    window = limits.event_window
    events = [
        RankEvent(burst=burst) for burst in fold([KernelEvent(kind=kind, at=1000.0, number=many)])
    ]
    later = node_health(events, 1000.0 + 2 * window, limits, kernel_readable=True)
    assert bool([one for one in later if one.state in BAD]) is rule.lasting


def test_another_disk_that_is_well_ends_nothing() -> None:
    gone, back = (
        "nvme nvme2: Device not ready; aborting reset, CSTS=0x1",
        "nvme nvme0: 32/0/0 default/read/poll queues",
    )

    assert verdict(read([gone, back])) == ("unhealthy", "check_hardware")
    assert verdict(read([gone, back.replace("nvme0", "nvme2")])) == ("healthy", "none")


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ("mlx5_core 0000:41:00.0: mlx5_health_try_recover:335:(pid 91): handling bad device here", "unhealthy"),
        ("mlx5_core 0000:41:00.0: poll_health:825: device's health compromised - reached miss count.", "unhealthy"),
        ("mlx5_core 0000:41:00.0 enp65s0: poll_health:825:(pid 0): Fatal error 1 detected", "unhealthy"),
        ("mlx5_core 0000:41:00.1: poll_health:825:(pid 0): Fatal error 3 detected", "healthy"),
        ("mlx5_core 0000:41:00.0: print_health_info:431:(pid 0): synd 0x0: ", "healthy"),
        ("mlx5_core 0000:41:00.0: print_health_info:429:(pid 0): assert_var[0] 0x00000000", "healthy"),
        ("mlx5_core 0000:41:00.0: firmware version: 28.39.2048", "healthy"),
        ("mlx5_core 0000:41:00.0: mlx5_cmd_out_err:838:(pid 9): ACCESS_REG(0x805) op_mod(0x1) failed, status bad resource(0x5), syndrome (0x305684), err(-22)", "healthy"),
        ("infiniband mlx5_0: dump_cqe:272:(pid 0): dump error cqe", "healthy"),
        ("NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 0 timed out", "degraded"),
        ("efa 0000:00:06.0: Setup irq:0x0000000012345678 vector:25 name:efa-mgmnt@pci:0000:00:06.0", "healthy"),
        ("watchdog: Watchdog detected hard LOCKUP on cpu 7", "unhealthy"),
        ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 7", "unhealthy"),
        ("watchdog: CPU 12 self-detected hard LOCKUP @ plpar_hcall_norets+0x1c/0x28", "unhealthy"),
        ("Kernel panic - not syncing: Hard LOCKUP", "unhealthy"),
        ("rcu: INFO: rcu_sched detected expedited stalls on CPUs/tasks: { 3-... } 21 jiffies s: 1217 root: 0x8/.", "degraded"),
        ("rcu: Hierarchical SRCU implementation.", "healthy"),
        ("Unable to handle kernel NULL pointer dereference at virtual address 0000000000000008", "unhealthy"),
        ("traps: python3[4711] general protection fault ip:7f00 sp:7f00 error:0 in libc.so.6[7f00+1]", "healthy"),
        ("WARNING: CPU: 3 PID: 4711 at drivers/net/foo.c:12 foo+0x1/0x2", "healthy"),
        ("[Hardware Error]: Uncorrected, software restartable error.", "unhealthy"),
        ("[Hardware Error]: Deferred error, no action required.", "degraded"),
        ("[Hardware Error]: CPU:2 (19:1:1) MC17_STATUS[Over|CE|MiscV|AddrV|-|-|SyndV|CECC|-|-|-]: 0xdc2040000000011b", "healthy"),
        ("mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: 9c00000000010080", "healthy"),
        ("EXT4-fs (sda1): Remounting filesystem read-only", "unhealthy"),
        ("EXT4-fs warning (device sda1): ext4_dirblock_csum_verify:404: inode #2: comm ls: No space for directory leaf checksum", "healthy"),
        ("blk_update_request: I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0", "healthy"),
        ("nvme nvme1: I/O 12 QID 3 timeout, aborting", "healthy"),
        ("libceph: osd2 (1)10.168.30.2:6805 socket closed (con state OPEN)", "healthy"),
        ("libceph: mon0 (2)192.168.1.81:3300 session lost, hunting for new mon", "degraded"),
        ("DMAR: DRHD: handling fault status reg 2", "healthy"),
        ("cgroup: fork rejected by pids controller in /system.slice/slurmstepd.scope/job_7", "degraded"),
        ("amdgpu 0000:83:00.0: amdgpu: GPU reset(1) succeeded!", "healthy"),
        ("amdgpu 0000:83:00.0: amdgpu: ring sdma0 timeout, signaled seq=1, emitted seq=2", "degraded"),
        ("amdgpu 0000:83:00.0: amdgpu: 2 uncorrectable hardware errors detected in umc block", "unhealthy"),
        ("amdgpu 0000:83:00.0: amdgpu: SMU is initialized successfully!", "healthy"),
        ("mlx5_core 0000:41:00.0: probe with driver mlx5_core failed with error -110", "unhealthy"),
        ("bnxt_en: probe of 0000:41:00.0 failed with error -5", "unhealthy"),
        ("mlx5_core 0000:41:00.0: mlx5_init_one:1484:(pid 9): mlx5_init_one failed with error code -110", "unhealthy"),
        ("mlx5_core 0000:41:00.0: wait_fw_init:212:(pid 9): Firmware over 120000 MS in pre-initializing state, aborting", "unhealthy"),
        ("snd_hda_intel: probe of 0000:41:00.0 failed with error -2", "healthy"),
        ("ixgbe: probe of 0000:03:00.1 failed with error -95", "healthy"),
        ("e1000e 0000:00:1f.6: probe with driver e1000e failed with error -5", "healthy"),
        ("ixgbe 0000:41:00.0 eth4: Adapter removed", "unhealthy"),
        ("ice 0000:31:00.0: Error resetting device. Please reload the driver", "unhealthy"),
        ("ice 0000:31:00.0: The NVM image was updated. Please reload the driver to use it", "healthy"),
        ("ice 0000:31:00.0: Configuration changed. Please reload driver", "healthy"),
        ("ena 0000:00:06.0 ens6: The device has detected an unhealthy state, reset is requested", "degraded"),
        ("ena 0000:00:06.0 ens6: The device has recovered from an unhealthy state", "healthy"),
        ("ice 0000:31:00.0: Loopback test timed out", "healthy"),
        ("bnxt_en 0000:41:00.0: coredump of the firmware timed out", "healthy"),
        ("bnxt_en 0000:41:00.0: hwrm request 0x18 timed out", "degraded"),
        ("infiniband ibp26s0: dump_cqe:276:(pid 0): WC error: 4, Message: local protection error", "healthy"),
        ("XFS: Mounting V5 Filesystem", "healthy"),
        ("beegfs: python3(4711): NodeConn (acquire stream): Connected: beegfs-storage node_storage_1 [ID: 1] at 10.4.0.1:8003 (protocol: TCP)", "healthy"),
        ("LNet: 2431:0:(o2iblnd_cb.c:3174:kiblnd_check_conns()) Skipped 24 previous similar messages", "healthy"),
        ("DMAR: VT-d detected Invalidation Time-out Error: SID 0", "healthy"),
        ("infiniband rdmap157s0: Failed to submit command CREATE_QP (opcode 1) err -ENODEV", "degraded"),
        ("infiniband rdmap157s0: Failed to submit command CREATE_QP (opcode 1) err -12", "healthy"),
        ("efa 0000:9d:00.0: Failed to submit command CREATE_QP (opcode 1) err -19", "degraded"),
        ("infiniband irdma0: Requesting a reset", "degraded"),
        ("mlx5_core 0000:41:00.0: PCI link not ready (0x0011) after 2000 ms", "unhealthy"),
        ("mlx5_core 0000:41:00.0: mlx5_pci_link_toggle:290:(pid 2121): PCI Link up", "healthy"),
        ("ena 0000:00:05.0 ens5: ENA admin queue is not in running state!", "degraded"),
        ("amdgpu 0000:7c:00.0: SMU: No response msg_reg: 17 resp_reg: 0", "degraded"),
        ("amdgpu: SMU: No response msg_reg: 1a resp_reg: 0", "degraded"),
        ("amdgpu 0000:7c:00.0: SMU driver if version not matched", "healthy"),
        ("xe 0000:03:00.0: [drm] device wedged, needs recovery", "healthy"),  # another vendor's
        ("infiniband irdma0: Requesting a reset of the counters", "healthy"),
        ("NFS: nfs4_reclaim_open_state: unhandled error -524", "degraded"),
        ("NFS: __nfs4_reclaim_open_state: unhandled error -10026", "degraded"),
        ("NFS: v4 server 10.0.0.3  returned a bad sequence-id error!", "healthy"),
        ("NFSv4: state manager: a reclaim is over", "healthy"),
        ("SPLError: 3525:0:(spl-err.c:67:vcmn_err()) WARNING: Pool 'tank' has encountered an uncorrectable I/O failure and has been suspended.", "unhealthy"),
        ("WARNING: MMP writes to pool 'lustre-mdt1' have not succeeded in over 1s.", "unhealthy"),
        ("WARNING: Pool 'tank' was suspended and is being resumed. Failed I/O will be retried.", "healthy"),
        ("ZFS: Loaded module v2.3.1-1, ZFS pool version 5000, ZFS filesystem version 5", "healthy"),
        ("amdgpu 0000:05:00.0: RAS records:2056 exceed threshold:2048", "degraded"),
        ("amdgpu 0000:05:00.0: amdgpu: RAS records:2056 exceed threshold:2048, GPU will not be initialized. Replace this GPU or increase the threshold", "unhealthy"),
        ("amdgpu 0000:05:00.0: amdgpu: records:3 threshold:2048, resetting RAS table header signature", "healthy"),
        ("amdgpu 0000:05:00.0: amdgpu: RAS records:1900 exceeds 90% of threshold:2048", "degraded"),
        ("mlx5_core 0000:41:00.0: print_health_info:431:(pid 0): Health issue observed, High temperature, severity(3) ERROR:", "degraded"),
        ("mlx5_core 0000:41:00.0: temp_warn:194:(pid 0): High temperature on sensors with bit set 0 1", "healthy"),
    ],
)  # fmt: skip
def test_lines_and_their_harmless_neighbours(line: str, state: str) -> None:
    assert verdict(read([line]))[0] == state


@pytest.mark.parametrize(
    ("first", "last"),
    [
        ("amdgpu 0000:05:00.0: [drm] device wedged, needs recovery", "amdgpu 0000:05:00.0: amdgpu: GPU reset(3) succeeded!"),
        ("amdgpu 0000:05:00.0: amdgpu: SMU: No response msg_reg: 12 resp_reg: 0", "amdgpu 0000:05:00.0: [drm] device wedged, but recovered through reset"),
        ("ena 0000:00:05.0 ens5: ENA admin queue is not in running state!", "ena 0000:00:05.0: Device reset completed successfully, Driver info: Elastic Network Adapter (ENA) v2.13.0g"),
        ("infiniband rdmap157s0: Failed to submit command CREATE_CQ (opcode 8) err -19", "infiniband rdmap157s0: IB device registered"),
        ("mlx5_core 0000:41:00.0: PCI link not ready (0x0011) after 2000 ms", "mlx5_core 0000:41:00.0: mlx5_health_try_recover:335:(pid 91): health recovery succeeded"),
    ],
)  # fmt: skip
def test_what_began_ends_with_its_own_device_alone(first: str, last: str) -> None:
    other = last.replace("0000:", "0001:").replace("rdmap157s0", "rdmap158s0")

    assert verdict(read([first]))[0] != "healthy"
    assert verdict(read([first, last]))[0] == "healthy"
    assert verdict(read([first, other]))[0] != "healthy"
    assert verdict(read([first, last, first]))[0] != "healthy"


# --- what NVML says of the same --------------------------------------------------------------------


def reading(action: str | None) -> list[GpuReading]:
    return [GpuReading(uuid="GPU-3", index=3, bus_id="00000000:3B:00.0", recovery_action=action)]


def test_a_gpu_that_was_reset_is_well_though_the_log_does_not_say_so() -> None:
    watch, bursts = RecoveryWatch(), read([HUNG])
    events = [RankEvent(burst=burst) for burst in bursts]
    states = []
    for second, action in enumerate(["reset", None, "none", "none"]):
        recovered = watch.update(reading(action), 1100.0 + second)
        found = node_health(events, 1200.0, Thresholds(), kernel_readable=True, recovered=recovered)
        states.append(any(one.state in BAD for one in found))

    assert states == [True, True, True, False]
    assert watch.update(reading("reboot"), 1200.0) == {}


def test_a_gpu_of_which_nothing_was_asked_is_not_cured_by_nothing() -> None:
    watch = RecoveryWatch()

    assert [dict(watch.update(reading("none"), 1100.0 + one)) for one in range(3)] == [{}, {}, {}]


def test_a_request_of_the_log_is_over_where_the_driver_asks_for_nothing_now() -> None:
    """The driver was loaded anew while no agent was there to see its request end: the log has the request alone, for days."""
    watch, bursts = RecoveryWatch(), read([HUNG, ASK + "0x1 (GPU Reset Required)"])
    since = parse_line(f"3,9,{11_000 * 10**6},-;{HUNG}")
    assert since is not None

    def states(known: Sequence[Burst], actions: Sequence[str | None], at: float) -> list[bool]:
        found = []
        for second, action in enumerate(actions):
            recovered = watch.update(reading(action), at + second, requests(known))
            events = [RankEvent(burst=burst) for burst in known]
            judged = node_health(events, at + 100.0, Thresholds(), kernel_readable=True, recovered=recovered)  # fmt: skip
            found.append(any(one.state in BAD for one in judged))
        return found

    assert requests(bursts) == {"0000:3b:00.0": 1001.0}
    assert states(bursts, [None, None, "none", "reset"], 1100.0) == [True] * 4
    assert states(bursts, ["none", "none", None], 1200.0) == [True, False, False]
    assert (
        states((*bursts, *fold([since])), ["none"] * 4, 12000.0) == [True] * 4
    )  # nothing was asked for it


def test_an_error_after_the_reset_counts() -> None:
    watch = RecoveryWatch()
    for second, action in enumerate(["reset", "none", "none"]):
        recovered = watch.update(reading(action), 900.0 + second)

    events = [RankEvent(burst=burst) for burst in read([HUNG])]
    found = node_health(events, 1200.0, Thresholds(), kernel_readable=True, recovered=recovered)
    assert any(one.state in BAD for one in found)
