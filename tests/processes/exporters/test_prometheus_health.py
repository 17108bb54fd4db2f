"""From lines of the kernel's log and a tree of /sys through the rules of health and a real Prometheus: which alerts fire, and for which component."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mldebug.hardware.health.model import COMPONENTS, ComponentHealth, HealthState
from mldebug.hardware.health.node_rules import node_health
from mldebug.hardware.health.port_rules import port_health
from mldebug.hardware.health.thresholds import Thresholds
from mldebug.hardware.kernel_log.attribution import RankEvent
from mldebug.hardware.kernel_log.counts import KernelEventCounter
from mldebug_agents.hardware.ports.reader import PortOrder, PortReader
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner
from mldebug_exporters.prometheus import Prometheus
from processes.exporters.test_prometheus_rules import ask, prometheus, web
from processes.harness import wait_for
from shared.hardware.kernellines import fold, parse_line
from shared.hardware.porttrees import PortTree
from shared.web.snapshots import moving, snapshot

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]
LINES = Path(__file__).parents[2] / "fixtures" / "kernellog" / "events.kmsg"
LIMITS = Thresholds()
BEGIN = (
    "NVRM: Xid (PCI:0000:3b:00): 119, pid=7, name=python3, Timeout after 6s of waiting for RPC response from GPU0 GSP!",
    "NVRM: Xid (PCI:0000:3b:00): 154, pid=7, name=python3, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
    "NVRM: GPU0 nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from status @ kernel_channel.c:100",
    "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x62, requiring os reboot to recover.",
    "amdgpu 0000:83:00.0: amdgpu: GPU reset(1) failed",
    "mlx5_core 0000:41:00.0: poll_health:852:(pid 0): device's health compromised - reached miss count",
    "EXT4-fs (sda1): Remounting filesystem read-only",
    "nvme nvme2: Device not ready; aborting reset, CSTS=0x1",
    "device-mapper: thin: 253:4: switching pool to out-of-data-space (queue IO) mode",
    "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0x1)",
    "Memory cgroup out of memory: Killed process 7 (python3) total-vm:753508kB, anon-rss:58776kB, file-rss:1kB, shmem-rss:0kB, UID:0 pgtables:288kB oom_score_adj:0",
    "mlx5_core 0000:41:00.0 ens1f0np0: Link down",
)
END = (
    "NVRM: Xid (PCI:0000:3b:00): 154, pid=7, name=python3, GPU recovery action changed from 0x2 (Node Reboot Required) to 0x0 (None)",
    "nvidia-uvm: Loaded the UVM driver, major device number 510.",
    "amdgpu 0000:83:00.0: amdgpu: GPU reset(2) succeeded!",
    "mlx5_core 0000:41:00.0: mlx5_health_try_recover:335:(pid 91): health recovery succeeded",
    "EXT4-fs (sda1): mounted filesystem with ordered data mode. Quota mode: none.",
    "nvme nvme2: 32/0/0 default/read/poll queues",
    "device-mapper: thin: 253:4: switching pool to write mode",
    "mlx5_core 0000:41:00.0 ens1f0np0: Link up",
)
LASTING = {"gpu_xid", "gpu_errors", "network", "storage"}
"""Components whose faults stand until a line ends them; those of `kernel` and `memory` end with the event window."""
FIRED = {
    ("MldebugGpuXidFatal", ""),
    ("MldebugGpuUnhealthy", "gpu_xid"),
    ("MldebugGpuUnhealthy", "gpu_errors"),
    ("MldebugNodeUnhealthy", "kernel"),
    ("MldebugNodeUnhealthy", "network"),
    ("MldebugNodeUnhealthy", "storage"),
    ("MldebugComponentDegraded", "memory"),
    ("MldebugNetworkLinkDown", ""),
}
STAYS = ("MldebugGpuXidFatal", "")
"""For an hour after the Xid, as its runbook says."""
ALERT = {HealthState.UNHEALTHY: "MldebugNodeUnhealthy", HealthState.DEGRADED: "MldebugComponentDegraded"}  # fmt: skip


def fired(port: int) -> list[dict[str, str]]:
    """The labels of all alerts that fire; a crowded server is asked again."""
    answer = wait_for("an answer", lambda: ask(port, "/api/v1/alerts"), 60)
    return [one["labels"] for one in answer["data"]["alerts"] if one["state"] == "firing"]


def replayed() -> tuple[ComponentHealth, ...]:
    """The health of a node whose log has a line of each kind."""
    events = [one for line in LINES.read_text().splitlines() if (one := parse_line(line))]
    bursts = fold(events)
    at = max(burst.last_at for burst in bursts) + 1.0
    return node_health([RankEvent(burst=one) for one in bursts], at, LIMITS, kernel_readable=True)


def ports(root: Path) -> ComponentHealth:
    """The health of a node of which one port went down."""
    tree = PortTree(root)
    for number in range(4):
        tree.rdma(f"mlx5_{number}")
    with Spawner() as spawner, Reader(spawner) as reader:
        node = PortReader(Host(str(root)), reader)
        node.look(PortOrder())
        tree.port("mlx5_2", state="1: DOWN", phys_state="2: Polling")
        node.look(PortOrder())
        found = port_health(node.look(PortOrder()), LIMITS)
    assert found is not None
    return found


def test_what_the_kernel_tells_and_a_port_that_is_down_fire_their_alerts(tmp_path: Path) -> None:
    health = (*replayed(), ports(tmp_path / "root"))
    bad = {one.component: one.state for one in health if one.state in ALERT and not one.uuid}
    assert {"kernel", "memory", "network", "storage", "ports"} <= bad.keys()
    assert bad["ports"] is HealthState.UNHEALTHY
    text, _ = Prometheus().render(snapshot(health=health), "text/plain")
    wanted = {(_alert(one.component, one.state), one.component) for one in health if one.state in ALERT}  # fmt: skip
    with web(text) as (agent, _), prometheus(tmp_path, agent, agent) as port:

        def missing() -> Any:
            return {"left": wanted - {(one["alertname"], one.get("component", "")) for one in fired(port)}}  # fmt: skip

        wait_for("all alerts fire", lambda: not missing()["left"], 90)


def exposed(lines: Iterable[str], began: float, later: float) -> bytes:
    """What an agent exposes that read these lines, one a second, when `later` seconds have passed since the first."""
    counter, events = KernelEventCounter(), []
    for number, line in enumerate(lines):
        event = parse_line(f"3,{number},{number * 1_000_000},-;{line}", boot_time=began)
        assert event is not None, line
        counter.add(event, 1)
        events.append(event)
    ranked = [RankEvent(burst=burst) for burst in fold(events)]
    health = node_health(ranked, began + later, LIMITS, kernel_readable=True)
    return Prometheus().render(snapshot(moving(), health=health, kernel=counter.now()), "text/plain")[0]  # fmt: skip


def firing(port: int) -> set[tuple[str, str]]:
    """The alerts of this node's hardware that fire, with their components."""
    names = {name for name, _ in FIRED}
    return {
        (labels["alertname"], labels.get("component", ""))
        for labels in fired(port)
        if labels["alertname"] in names
    }


def test_alerts_begin_with_the_first_line_and_end_with_the_last(tmp_path: Path) -> None:
    began, window = time.time() - 60.0, LIMITS.event_window
    now = exposed(BEGIN, began, 60.0)
    with web(lambda: now) as (agent, _), prometheus(tmp_path, agent, agent) as port:
        wait_for("all alerts fire", lambda: firing(port) == FIRED, 90)

        now = exposed(BEGIN, began, window + 60.0)  # nothing more was said: what lasts stands
        stands = {one for one in FIRED if one[1] in LASTING} | {STAYS, ("MldebugNetworkLinkDown", "")}  # fmt: skip
        wait_for("what lasts stands", lambda: firing(port) == stands, 90)

        now = exposed((*BEGIN, *END), began, window + 60.0)
        wait_for("all that ended is over", lambda: firing(port) == {STAYS}, 90)


def of_all(state: HealthState) -> bytes:
    """What an agent exposes of which each component is in this state; those of GPUs are of one GPU."""
    health = tuple(
        ComponentHealth(component=one, state=state, reason="x", reason_code="x", uuid="GPU-1" if one.startswith("gpu_") else "")
        for one in COMPONENTS
    )  # fmt: skip
    return Prometheus().render(snapshot(moving(), health=health), "text/plain")[0]


def test_each_component_fires_an_alert_in_each_bad_state_and_none_when_it_is_well(tmp_path: Path) -> None:  # fmt: skip
    now = of_all(HealthState.HEALTHY)
    with web(lambda: now) as (agent, _), prometheus(tmp_path, agent, agent) as port:

        def calls() -> tuple[set[str], set[str]]:
            """The components of the alerts that fire: of those that wake somebody, and of the others."""
            of = [one for one in fired(port) if "component" in one]
            urgent = {one["component"] for one in of if one["severity"] == "critical"}
            return urgent, {one["component"] for one in of if one["severity"] != "critical"}

        def scraped() -> bool:
            answer = ask(port, "/api/v1/query?query=mldebug_component_health")
            return bool(answer) and len(answer["data"]["result"]) >= len(COMPONENTS)

        wait_for("the first scrape", scraped, 90)
        assert calls() == (set(), set())

        now = of_all(HealthState.DEGRADED)
        wait_for("a warning of each", lambda: calls() == (set(), set(COMPONENTS)), 90)  # fmt: skip

        now = of_all(HealthState.UNHEALTHY)
        clocks = {"gpu_clocks"}  # these wake somebody where a job suffers: MldebugGpuThrottled
        wait_for("a call of each", lambda: calls() == (set(COMPONENTS) - clocks, clocks), 90)  # fmt: skip

        now = of_all(HealthState.HEALTHY)
        wait_for("all is over", lambda: calls() == (set(), set()), 90)


def _alert(component: str, state: HealthState) -> str:
    if component.startswith("gpu_") and state is HealthState.UNHEALTHY:
        return "MldebugGpuUnhealthy"
    return ALERT[state]


def of_ports(root: Path, rate: str) -> bytes:
    """What an agent exposes on a node of run 7f3a, of which each node has an id of its own as well, with two InfiniBand ports at this rate."""
    tree = PortTree(root)
    for number in range(2):
        tree.rdma(f"mlx5_{number}", rate)
    with Spawner() as spawner, Reader(spawner) as reader:
        found = PortReader(Host(str(root)), reader).look(PortOrder())
    run = msgspec.structs.replace(moving(f"5c0{root.name}"), id_across_nodes="7f3a")
    return Prometheus().render(snapshot(run, ports=found), "text/plain")[0]


def test_a_node_whose_ports_are_slower_than_those_of_the_others_of_its_run(tmp_path: Path) -> None:
    rates = {"a": "400 Gb/sec (4X NDR)", "b": "400 Gb/sec (4X NDR)", "c": "200 Gb/sec (4X HDR)"}
    well, like, now = (of_ports(tmp_path / node, rate) for node, rate in rates.items())
    with (
        web(well) as (first, _),
        web(like, "127.0.0.2") as (second, _),
        web(lambda: now, "127.0.0.3") as (slow, _),
        prometheus(tmp_path, first, first, f"127.0.0.2:{second}", f"127.0.0.3:{slow}") as port,
    ):

        def slower() -> set[tuple[str, str]]:
            return {(one["run_across_nodes"], one["instance"]) for one in fired(port) if one["alertname"] == "MldebugPortsSlowerThanPeers"}  # fmt: skip

        wait_for("the slow node is told", lambda: slower() == {("7f3a", "127.0.0.3")}, 90)
        now = well
        wait_for("it is as fast as the others", lambda: not slower(), 90)
