"""What drivers say of their devices, each fault from its first line to its end: which component, how bad, and what ends it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from mldebug.diagnosis.classify.gpus.gpu_faults import NETWORK_KINDS, fitting
from mldebug.hardware.health.faults import faults_of_events
from mldebug.hardware.health.kernel_rules import KERNEL_RULES
from mldebug.hardware.health.model import BAD, HealthState
from mldebug.hardware.health.node_rules import node_health
from mldebug.hardware.health.thresholds import Thresholds
from mldebug.hardware.kernel_log.attribution import RankEvent
from mldebug.hardware.kernel_log.lines.nics import DRIVERS
from mldebug.hardware.kernel_log.model import KernelEventKind
from shared.hardware.kernellines import fold, parse_line

FILE = Path(__file__).parents[2] / "fixtures/kernellog/drivers.yaml"
CASES: list[dict[str, Any]] = yaml.safe_load(FILE.read_text())
ONE = [case for case in CASES if not case.get("limited")]
FIRMWARE = "bnxt_en 0000:c1:00.0 ens3f0np0: Detected firmware fatal condition, initiating reset"
SILENT = "NETDEV WATCHDOG: ens3f0np0 (bnxt_en): transmit queue 7 timed out"
UP = "bnxt_en 0000:c1:00.0 ens3f0np0: NIC Link is Up, 100000 Mbps full duplex"


def events(lines: Sequence[str]) -> list[RankEvent]:
    """One line a second."""
    found = [parse_line(f"3,{n},{n * 1_000_000},-;{line}") for n, line in enumerate(lines, 1000)]
    return [RankEvent(burst=burst) for burst in fold([one for one in found if one is not None])]


def states(lines: Sequence[str], limits: Thresholds | None = None) -> dict[str, HealthState]:
    """The state of each component that has a fault, soon after the last line."""
    at = 1000.0 + len(lines) + 3
    found = node_health(events(lines), at, limits or Thresholds(), kernel_readable=True)
    return {one.component: one.state for one in found if one.state in BAD}


@pytest.mark.parametrize("case", ONE, ids=lambda case: str(case["name"]))
def test_a_fault_from_its_first_line_to_its_end(case: dict[str, Any]) -> None:
    lines, end = case["lines"], case.get("end", [])
    found = states(lines)

    assert set(found) == {case["component"]}
    assert found[case["component"]] == case.get("state", found[case["component"]])
    if end:
        assert states([*lines, *end]) == {}
        assert set(states([*lines, *end, *lines])) == {case["component"]}
        assert states(end) == {}


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.get("limited")], ids=lambda case: str(case["name"])
)
def test_one_is_no_fault_and_more_than_the_limit_are(case: dict[str, Any]) -> None:
    (kind,) = {one.burst.root.kind for one in events(case["lines"])}
    strict = msgspec.structs.replace(Thresholds(), **{KERNEL_RULES[kind].limit: 0})

    assert states(case["lines"]) == {}
    assert states(case["lines"], strict) == {case["component"]: HealthState.DEGRADED}
    assert states(case["lines"] * 12) == {case["component"]: HealthState.DEGRADED}


# --- adapters --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [FIRMWARE, SILENT])
@pytest.mark.parametrize(
    ("line", "over"),
    [
        (UP, True),
        ("bnxt_en 0000:c1:00.0 eth0: Broadcom BCM57508 Ethernet found at mem 9d010000, node addr 84:16:0c:11:22:33", False),
        (UP.replace("c1:00.0", "c1:00.1").replace("f0np0", "f1np1"), False),
        (UP.replace("Up, 100000 Mbps full duplex", "Down"), False),
        (UP.replace("ens3f0np0", "ens3f0np0v2"), False),  # another port at the same address
        ("ens3f0np0: link up, 100Gbps, full-duplex", True),
        ("bnxt_en 0000:c1:00.0 ens3f0np0: FEC autoneg off encoding: Reed Solomon", False),
    ],
)  # fmt: skip
def test_an_adapter_whose_link_comes_up_again_works(fault: str, line: str, over: bool) -> None:
    ended = over or (" found at mem " in line and fault is FIRMWARE)
    by_name = line.startswith("ens3f0np0")

    assert ("network" in states([fault, line])) is not ended
    assert by_name or "network" in states([line, fault])


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(
    ("words", "state"),
    [
        ("Firmware recovery mode detected. Limiting functionality.", "unhealthy"),
        ("Reset failed!", "unhealthy"),
        ("Failed to set up the queues: -110", "degraded"),
        ("TX timeout detected, starting reset task!", "degraded"),
        ("Failed to set up the queues: -22", ""),
        ("Failed to read the PTP clock: -110", ""),
        ("Invalid message from VF 3, opcode 3, error: -110", ""),
        ("Unable to read VPD: -110", ""),
        ("hfi1_0: Transceiver read failed: -110", ""),
        ("Fake Tx hang detected on queue 3, timeout caused by PFC storm", ""),
        ("hwrm req_type 0x53 seq id 0x6fca error 0x2", ""),
        ("Firmware reset request successful.", ""),
        ("firmware version 1.2.3, 110 queues", ""),
    ],
)
def test_drivers_of_one_kind_are_read_alike(driver: str, words: str, state: str) -> None:
    lines = [f"{driver} 0000:41:00.0 eth7: {words}"]
    unnamed = [f"{driver} 0000:41:00.0 (unnamed net_device) (uninitialized): {words}"]

    assert states(lines).get("network", "") == states(unnamed).get("network", "") == state
    back = f"{driver} 0000:41:00.0 eth7: NIC Link is Up 100000 Mbps Full Duplex"
    assert states([*lines, back]) == states([*unnamed, back]) == {}
    assert states([f"{driver}-tool: {words}", f"x{driver} 0000:41:00.0: {words}"]) == {}


@pytest.mark.parametrize(
    ("error", "bad"), [(11, False), (517, False), (110, True), (5, True), (1, True), (12, True)]
)
@pytest.mark.parametrize(
    "form",
    ["{0} 0000:41:02.3: probe with driver {0} failed with error -{1}", "{0}: probe of 0000:41:02.3 failed with error -{1}"],
)  # fmt: skip
def test_a_start_that_is_tried_again_is_no_fault(form: str, error: int, bad: bool) -> None:
    for driver in ("mlx5_core", "bnxt_en", "hns3", "efa"):
        assert ("network" in states([form.format(driver, error)])) is bad


@pytest.mark.parametrize(
    ("driver", "blamed"),
    [("igb", False), ("igc", False), ("ixgbe", True), ("fm10k", True)],
)
def test_a_port_for_management_stops_no_run(driver: str, blamed: bool) -> None:
    lines = [f"{driver} 0000:0a:00.0 eno1: PCIe link lost, device now detached"]

    assert states(lines) == {"network": HealthState.UNHEALTHY}
    faults = faults_of_events(events(lines), "run", {}, "a1")
    assert [one.kind for one in faults] == [KernelEventKind.NIC_FATAL.value]
    assert bool(fitting(faults, 1000.0, 1060.0, kinds=NETWORK_KINDS)) is blamed


@pytest.mark.parametrize(("times", "bad"), [(1, False), (5, False), (11, True)])
def test_an_adapter_that_recovers_and_fails_for_ever_is_not_well(times: int, bad: bool) -> None:
    """Each time its driver resets it, and its link comes up: ten seconds apart, as a loop of resets is."""
    lines = [FIRMWARE, *["EXT4-fs (sda1): recovery complete"] * 4, UP, *["systemd: x"] * 4] * times

    assert ("network" in states(lines)) is bad
    others = [line.replace("c1:00.0", f"c{number:x}:00.0").replace("ens3f0np0", f"ens{number}") for number in range(12) for line in (FIRMWARE, UP)]  # fmt: skip
    assert states(others) == {}
