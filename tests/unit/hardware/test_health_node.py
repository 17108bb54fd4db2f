"""Health of the node: remembered GPUs, Xids, kernel, memory."""

from typing import Any

import msgspec
import pytest

from mldebug.alerts.health_events import health_alerts
from mldebug.core.model import Gap
from mldebug.hardware.gpu.expected import FORGET_AFTER, ExpectedGpus, GpuCount
from mldebug.hardware.gpu.readings import LOST, UNLISTED, GpuReading, LostGpu, NodeGpus, NvLink
from mldebug.hardware.health.model import (
    ComponentHealth,
    HealthState,
    SuggestedAction,
    bad,
    combine,
    instructions,
)
from mldebug.hardware.health.node_rules import node_health
from mldebug.hardware.health.sentences import complaints
from mldebug.hardware.health.thresholds import Thresholds
from mldebug.hardware.kernel_log.attribution import RankEvent
from mldebug.hardware.kernel_log.bursts import Burst
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind
from shared.hardware.kernellines import fold, parse_line

LIMITS = Thresholds()
NOW = 1_800_000_000.0


def gpus(
    *numbers: int, at: float = NOW, lost: tuple[LostGpu, ...] = (), prefix: str = "GPU"
) -> NodeGpus:
    """A full read with these GPUs of 0 to 9."""
    return NodeGpus(at=at, lost=lost, gpus=tuple(_gpu(n, prefix) for n in numbers))


def _gpu(number: int, prefix: str = "GPU") -> GpuReading:
    return GpuReading(uuid=f"{prefix}-{number}", index=number, bus_id=f"0000:{number}b:00.0")


# --- the remembered set --------------------------------------------------------------------------------


def test_a_gpu_that_is_gone_is_named_with_its_address_and_since_when() -> None:
    memory = ExpectedGpus()
    first = memory.look(gpus(0, 1, 2))
    once = memory.look(gpus(0, 2, at=NOW + 30))
    later = memory.look(gpus(0, 2, at=NOW + 60))
    again = memory.look(gpus(0, 2, at=NOW + 90))
    (one,) = again.missing

    assert (first.missing, first.news, first.present, first.expected) == ((), (), 3, 3)
    assert (again.present, again.expected) == (2, 3)
    assert (one.gpu.bus_id, one.gpu.uuid, one.since) == ("0000:1b:00.0", "GPU-1", NOW + 30)
    assert (once.missing, [silent.gpu.uuid for silent in once.silent]) == ((), ["GPU-1"])
    assert once.news == (
        "GPU 1 (0000:1b:00.0, GPU-1) does not answer: the driver does not list it",
    )
    assert later.news == ("GPU 1 (0000:1b:00.0, GPU-1) is gone: the driver does not list it",)
    assert (again.news, again.silent) == ((), ())


def unlisted(number: int = 1) -> LostGpu:
    return LostGpu(index=number, reason="not listed", uuid=f"GPU-{number}", code=UNLISTED)


SLOW = LostGpu(index=1, reason="Xid 119: it is left alone for now", uuid="GPU-1", code="xid_119")


@pytest.mark.parametrize("code", ["", "xid_119", "unknown", "timeout", "reset_required", "same_uuid"])  # fmt: skip
def test_a_gpu_that_does_not_answer_is_not_gone_however_long(code: str) -> None:
    memory = ExpectedGpus()
    memory.look(gpus(0, 1))
    silent = msgspec.structs.replace(SLOW, code=code)
    looks = [memory.look(gpus(0, at=NOW + 30 * n, lost=(silent,))) for n in range(1, 9)]

    assert [one.missing for one in looks] == [()] * 8
    assert {one.gpu.uuid for look in looks for one in look.silent} == {"GPU-1"}
    health = judged("gpu_count", count=looks[-1])
    assert (health.state, health.action) == (HealthState.UNKNOWN, SuggestedAction.NONE)
    assert "does not answer: Xid 119" in health.reason


def test_it_must_not_be_listed_twice_in_a_row_to_be_gone() -> None:
    memory = ExpectedGpus()
    memory.look(gpus(0, 1))
    others = [gpus(0, lost=(SLOW,)), gpus(0, 1)]
    for between in others:
        assert memory.look(gpus(0, lost=(unlisted(),))).missing == ()
        assert memory.look(between).missing == ()
    memory.look(gpus(0, lost=(unlisted(),)))
    assert [one.reason for one in memory.look(gpus(0, lost=(unlisted(),))).missing] == [
        "not listed"
    ]


def test_what_was_gone_stays_gone_until_it_answers() -> None:
    memory = ExpectedGpus()
    memory.look(gpus(0, 1))
    memory.look(gpus(0, lost=(msgspec.structs.replace(SLOW, code=LOST),)))
    assert len(memory.look(gpus(0, lost=(SLOW,))).missing) == 1
    assert memory.look(gpus(0, 1)).missing == ()
    assert memory.look(gpus(0, lost=(SLOW,))).missing == ()


def test_a_driver_that_lists_nothing_at_all_was_not_read() -> None:
    memory = ExpectedGpus()
    memory.look(gpus(0, 1))
    nothing = NodeGpus(at=NOW, lost=(unlisted(0), unlisted(1)))
    looks = [memory.look(nothing) for _ in range(3)]

    assert [one.missing for one in looks] == [()] * 3
    assert judged("gpu_count", count=looks[-1]).state is HealthState.UNKNOWN


def test_a_gpu_that_never_answered_is_no_reason_to_reboot() -> None:
    silent = ExpectedGpus().look(gpus(0, lost=(SLOW,)), configured=2)
    lost = LostGpu(index=1, reason="GPU is lost", code=LOST)
    gone = ExpectedGpus().look(gpus(0, lost=(lost,)), configured=2)

    assert judged("gpu_count", count=silent).state is HealthState.UNKNOWN
    assert judged("gpu_count", count=gone).action is SuggestedAction.REBOOT


def test_links_that_were_up_once_are_remembered_until_somebody_accepts_what_is_there() -> None:
    def linked(*up: int) -> NodeGpus:
        links = tuple(NvLink(link=n, up=n in up) for n in range(4))
        return NodeGpus(at=NOW, gpus=(msgspec.structs.replace(_gpu(0), nvlinks=links),))

    memory = ExpectedGpus()
    memory.look(linked(0, 1))
    memory.look(linked(1, 2))
    stored = msgspec.json.decode(msgspec.json.encode(memory), type=ExpectedGpus)
    assert stored.links_once_up("GPU-0") == (0, 1, 2)
    stored.accept(linked(1))
    assert stored.links_once_up("GPU-0") == (1,)
    assert stored.links_once_up("GPU-9") == ()


def test_a_gpu_that_comes_back_is_told() -> None:
    memory = ExpectedGpus()
    memory.look(gpus(0, 1))
    memory.look(gpus(0, at=NOW + 10))
    back = memory.look(gpus(0, 1, at=NOW + 50))

    assert back.missing == ()
    assert back.news == ("GPU 1 (0000:1b:00.0, GPU-1) is back after 40 s",)


@pytest.mark.parametrize(
    "lost",
    [
        LostGpu(index=1, reason="GPU is lost", uuid="GPU-1", code=LOST),
        LostGpu(index=9, reason="GPU is lost", bus_id="0000:1b:00.0", code=LOST),
        LostGpu(index=1, reason="GPU is lost", code=LOST),
    ],
)
def test_the_drivers_reason_is_told(lost: LostGpu) -> None:
    memory = ExpectedGpus()
    memory.look(gpus(0, 1))

    assert [one.reason for one in memory.look(gpus(0, lost=(lost,))).missing] == ["GPU is lost"]


def test_all_gpus_lost_are_all_missing_and_a_driver_that_does_not_answer_is_not_readable() -> None:
    memory = ExpectedGpus()
    memory.look(gpus(0, 1))
    silent = NodeGpus(at=NOW + 1, gaps=(Gap(what="GPUs", reason="driver not loaded"),))
    lost = tuple(LostGpu(index=n, reason="x", code=LOST) for n in (0, 1))
    gone = NodeGpus(at=NOW + 2, lost=lost)

    assert memory.look(silent) == GpuCount(readable=False, expected=2)
    assert len(memory.look(gone).missing) == 2


def test_the_memory_survives_agent_and_reboot() -> None:
    memory = ExpectedGpus()
    memory.look(gpus(0, 1, 2))
    memory.look(gpus(0, 1, at=NOW + 1))
    memory.look(gpus(0, 1, at=NOW + 2))
    stored = msgspec.json.decode(msgspec.json.encode(memory), type=ExpectedGpus)

    assert [one.gpu.uuid for one in stored.look(gpus(0, 1, at=NOW + 9)).missing] == ["GPU-2"]
    assert stored.look(gpus(0, 1, at=NOW + 9)).news == ()


def test_another_set_of_devices_is_learned_anew() -> None:
    memory = ExpectedGpus()
    memory.look(gpus(*range(8)), view="all")
    subset = memory.look(gpus(2, 3), view="2,3")

    assert (subset.missing, subset.expected) == ((), 2)
    assert "learned anew" in subset.news[0]


def test_a_board_in_another_slot_is_the_same_and_another_board_in_the_slot_replaces_it() -> None:
    memory = ExpectedGpus()
    memory.look(gpus(0, 1))
    moved = NodeGpus(
        at=NOW, gpus=(_gpu(0), GpuReading(uuid="GPU-1", index=1, bus_id="0000:ff:00.0"))
    )
    assert memory.look(moved).news == ("GPU 1 (0000:ff:00.0, GPU-1) moved there from 0000:1b:00.0",)

    swapped = NodeGpus(
        at=NOW, gpus=(_gpu(0), GpuReading(uuid="GPU-9", index=1, bus_id="0000:ff:00.0"))
    )
    look = memory.look(swapped)
    assert look.missing == ()
    assert look.news == ("GPU 1 (0000:ff:00.0, GPU-9) replaces GPU-1",)
    assert look.expected == 2


def test_a_gpu_more_is_expected_from_then_on() -> None:
    memory = ExpectedGpus()
    memory.look(gpus(0))
    assert memory.look(gpus(0, 1)).news == ("GPU 1 (0000:1b:00.0, GPU-1) is new",)
    memory.look(gpus(0))
    assert len(memory.look(gpus(0)).missing) == 1


def test_what_is_gone_for_a_week_was_taken_out() -> None:
    memory = ExpectedGpus()
    memory.look(gpus(0, 1))
    memory.look(gpus(0, at=NOW))
    assert memory.look(gpus(0, at=NOW + FORGET_AFTER)).missing
    memory.look(gpus(0, at=NOW + FORGET_AFTER + 1))
    assert memory.look(gpus(0, at=NOW + FORGET_AFTER + 2)).missing == ()


def test_a_person_may_accept_what_is_there() -> None:
    memory = ExpectedGpus()
    memory.look(gpus(0, 1))
    memory.look(gpus(0))
    memory.accept(gpus(0))

    assert memory.look(gpus(0)).missing == ()


@pytest.mark.parametrize(
    ("configured", "state"), [(2, HealthState.HEALTHY), (3, HealthState.UNHEALTHY)]
)
def test_a_configured_number_holds_from_the_first_look(configured: int, state: HealthState) -> None:
    count = ExpectedGpus().look(gpus(0, 1), configured=configured)

    assert judged("gpu_count", count=count).state is state


def test_health_of_the_count() -> None:
    memory = ExpectedGpus()
    memory.look(gpus(0, 1))
    memory.look(gpus(0))
    missing = judged("gpu_count", count=memory.look(gpus(0)))

    assert (missing.state, missing.reason_code, missing.action) == (HealthState.UNHEALTHY, "gpu_missing", SuggestedAction.REBOOT)  # fmt: skip
    assert "GPU 1 (0000:1b:00.0, GPU-1) is missing" in missing.reason
    assert judged("gpu_count", count=GpuCount(readable=False)).state is HealthState.UNKNOWN


# --- what the kernel said --------------------------------------------------------------------------------


def judged(component: str, *lines: str, at: float = NOW, readable: bool = True, limits: Thresholds = LIMITS, **more: Any) -> ComponentHealth:  # fmt: skip
    """One component after these kernel lines, each told at NOW."""
    every = node_health(events(*lines), at, limits, kernel_readable=readable, uuids={"0000:3b:00.0": ("GPU-3", 3)}, **more)  # fmt: skip
    return next(one for one in every if one.component == component)


def events(*lines: str) -> list[RankEvent]:
    """Lines of dmesg, folded as the agent folds them."""
    results = [parse_line(f"[    0.0] {line}", NOW) for line in lines]
    assert None not in results, lines
    return [RankEvent(burst=burst) for burst in fold(one for one in results if one is not None)]


def xid(number: int, device: str = "0000:3b:00") -> str:
    return f"NVRM: Xid (PCI:{device}): {number}, pid=4711, name=python, something"


XIDS = [
    (79, HealthState.UNHEALTHY, "xid_79", SuggestedAction.REBOOT),
    (48, HealthState.UNHEALTHY, "xid_48", SuggestedAction.RESET),
    (95, HealthState.UNHEALTHY, "xid_95", SuggestedAction.RESET),
    (63, HealthState.DEGRADED, "xid_63", SuggestedAction.RESET_WHEN_IDLE),
    (13, HealthState.HEALTHY, "", SuggestedAction.NONE),
    (31, HealthState.HEALTHY, "", SuggestedAction.NONE),
    (43, HealthState.HEALTHY, "", SuggestedAction.NONE),
    (99_999, HealthState.HEALTHY, "", SuggestedAction.NONE),
]


@pytest.mark.parametrize(("number", "state", "code", "action"), XIDS)
def test_xids_by_their_tier(
    number: int, state: HealthState, code: str, action: SuggestedAction
) -> None:
    found = judged("gpu_xid", xid(number))

    assert (found.state, found.reason_code, found.action) == (state, code, action)
    assert (found.uuid, found.gpu) == ("GPU-3", 3)


def test_a_gpu_that_does_not_start() -> None:
    found = judged("gpu_xid", "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x62:0xffff:2477)")

    assert (found.state, found.reason_code) == (HealthState.UNHEALTHY, "gpu_init_failed")
    assert (found.action, found.gpu) == (SuggestedAction.CHECK_HARDWARE, 3)


KERNEL = [
    ("INFO: task python:4711 blocked for more than 120 seconds.", HealthState.DEGRADED, "hung_task"),
    ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0", HealthState.UNHEALTHY, "memory_uncorrected"),
    ("pcieport 0000:80:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer", HealthState.UNHEALTHY, "pcie_fatal"),
    ("pcieport 0000:80:01.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer", HealthState.DEGRADED, "pcie_nonfatal"),
    ("pcieport 0000:80:01.0: PCIe Bus Error: severity=Corrected, type=Physical Layer", HealthState.HEALTHY, ""),
    ("mlx5_core 0000:12:00.0 ens1f0: Link down", HealthState.HEALTHY, ""),
    ("mlx5_core 0000:12:00.0: poll_health:824:(pid 0): Fatal error 1 detected", HealthState.UNHEALTHY, "nic_fatal"),
    ("pcieport 0000:80:01.0: DPC: containment event, status:0x0005 source:0x3400", HealthState.UNHEALTHY, "pcie_contained"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "state", "code"), KERNEL)
def test_kernel(line: str, state: HealthState, code: str) -> None:
    found = judged("network" if line.startswith("mlx5") else "kernel", line)

    assert (found.state, found.reason_code) == (state, code)


@pytest.mark.parametrize(
    ("count", "state"), [(100, HealthState.HEALTHY), (101, HealthState.DEGRADED)]
)
def test_corrected_errors_count_when_they_are_many(count: int, state: HealthState) -> None:
    event = KernelEvent(kind=KernelEventKind.MEMORY_CORRECTED, at=NOW)
    burst = Burst(root=event, first_at=NOW, last_at=NOW, count=count, last_kind=event.kind)
    every = node_health([RankEvent(burst=burst)], NOW, LIMITS, kernel_readable=True)

    assert next(one for one in every if one.component == "kernel").state is state


@pytest.mark.parametrize(
    ("count", "state"), [(1000, HealthState.HEALTHY), (1001, HealthState.DEGRADED)]
)
def test_corrected_pcie_errors_count_when_they_are_many(count: int, state: HealthState) -> None:
    event = KernelEvent(kind=KernelEventKind.PCIE_CORRECTED, at=NOW)
    burst = Burst(root=event, first_at=NOW, last_at=NOW, count=count, last_kind=event.kind)
    every = node_health([RankEvent(burst=burst)], NOW, LIMITS, kernel_readable=True)

    assert next(one for one in every if one.component == "kernel").state is state


OOM = "Out of memory: Killed process 4711 (python) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB"


def test_a_kill_for_memory() -> None:
    found = judged("memory", OOM)

    assert (found.state, found.reason_code, found.action) == (HealthState.DEGRADED, "oom_kill", SuggestedAction.CHECK_JOB)  # fmt: skip


def test_an_event_of_the_kernels_log_has_its_time_and_a_state_that_holds_now_has_none() -> None:
    later = NOW + 7200.0
    found = judged("memory", OOM, at=later)
    (line,) = complaints([found], {}, later)

    assert (found.at, line.at) == (NOW, NOW)
    assert line.text.startswith("this node is degraded: the kernel killed a process for memory")
    assert line.text.endswith(", 2 h ago → look at the job")
    (alert,) = health_alerts([found], {})
    assert alert.sentence.endswith(", at 2027-01-15 08:00:00 UTC")
    (twice,) = complaints([judged("memory", OOM, OOM.replace("4711", "4712"), at=later)], {}, later)
    assert twice.text.endswith(", the last 2 h ago → look at the job")
    (number,) = complaints([judged("gpu_xid", xid(79), at=NOW + 75)], {}, NOW + 75)
    assert ", 1 min 15 s ago → " in number.text
    lost = combine("gpu_count", [bad(HealthState.UNHEALTHY, "gpu_missing", "GPU 1 is missing", SuggestedAction.REBOOT)])  # fmt: skip
    assert lost.at is None
    assert " ago" not in complaints([lost], {}, later)[0].text


def test_many_events_make_one_sentence() -> None:
    lines = [f"INFO: task python:{5000 + n} blocked for more than 120 seconds." for n in range(300)]
    every = node_health([one for line in lines for one in events(line)], NOW, LIMITS, kernel_readable=True)  # fmt: skip
    found = next(one for one in every if one.component == "kernel")

    assert found.reason.endswith("; and 297 more")
    assert len(found.reason) < 500


@pytest.mark.parametrize(
    ("later", "state"), [(7200.0, HealthState.UNHEALTHY), (7201.0, HealthState.HEALTHY)]
)
def test_events_count_for_a_window(later: float, state: HealthState) -> None:
    assert judged("kernel", KERNEL[1][0], at=NOW + later).state is state


@pytest.mark.parametrize("component", ["kernel", "memory", "gpu_xid"])
def test_a_kernel_log_that_cannot_be_read_is_unknown(component: str) -> None:
    found = judged(component, readable=False)

    assert (found.state, found.reason) == (HealthState.UNKNOWN, "not readable: the kernel's log")


def test_an_xid_that_the_event_set_told_counts_although_the_log_cannot_be_read() -> None:
    assert judged("gpu_xid", xid(79), readable=False).state is HealthState.UNHEALTHY


def test_one_event_of_two_ranks_is_one() -> None:
    (event,) = events(OOM)
    twice = [msgspec.structs.replace(event, rank=rank) for rank in (0, 1)]
    every = node_health(twice, NOW, LIMITS, kernel_readable=True)

    assert next(one for one in every if one.component == "memory").reason.count("killed") == 1


def test_a_node_has_one_instruction_and_each_gpu_one() -> None:
    every = node_health(events(xid(48), xid(79), OOM), NOW, LIMITS, kernel_readable=True, uuids={"0000:3b:00.0": ("GPU-3", 3)})  # fmt: skip

    assert [(one.uuid, one.action) for one in instructions(every)] == [("GPU-3", SuggestedAction.REBOOT), ("", SuggestedAction.CHECK_JOB)]  # fmt: skip
