"""From lines of the kernel's log and a tree of /sys through the rules of health and a real Prometheus: which alerts fire, and for which component."""

from pathlib import Path
from typing import Any

import pytest

from mldebug.hardware.health.model import ComponentHealth, HealthState
from mldebug.hardware.health.node_rules import node_health
from mldebug.hardware.health.port_rules import port_health
from mldebug.hardware.health.thresholds import Thresholds
from mldebug.hardware.kernel_log.attribution import RankEvent
from mldebug_agents.hardware.ports.reader import PortOrder, PortReader
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import Spawner
from mldebug_exporters.prometheus import Prometheus
from processes.exporters.test_prometheus_rules import ask, prometheus, web
from processes.harness import wait_for
from shared.hardware.kernellines import fold, parse_line
from shared.hardware.porttrees import PortTree
from shared.web.snapshots import snapshot

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]
LINES = Path(__file__).parents[2] / "fixtures" / "kernellog" / "events.kmsg"
LIMITS = Thresholds()
ALERT = {HealthState.UNHEALTHY: "MldebugNodeUnhealthy", HealthState.DEGRADED: "MldebugComponentDegraded"}  # fmt: skip


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
            alerts = ask(port, "/api/v1/alerts")["data"]["alerts"]
            firing = {(one["labels"]["alertname"], one["labels"].get("component", "")) for one in alerts if one["state"] == "firing"}  # fmt: skip
            return {"left": wanted - firing}

        wait_for("all alerts fire", lambda: not missing()["left"], 90)


def _alert(component: str, state: HealthState) -> str:
    if component.startswith("gpu_") and state is HealthState.UNHEALTHY:
        return "MldebugGpuUnhealthy"
    return ALERT[state]
