"""The panels of GPUs and network ports of a job, in a real Prometheus: two jobs on two cards of one node, each shows its own card's figures and no other.

The figures are made here and go through the agent's own exposition: that each query finds them, joined to the right rank, is what is tested.
"""

import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from mldebug.hardware.gpu.readings import GpuActivity, GpuProcess, GpuReading, NodeGpus
from mldebug.hardware.ports.parse import PortReading
from mldebug.hardware.ports.state import NodePorts, PortState
from mldebug_exporters.prometheus import Prometheus as Renderer
from processes.exporters.test_dashboards import NOT_STAGED
from processes.exporters.test_metrics import Prometheus
from processes.exporters.test_prometheus_rules import prometheus, web
from processes.harness import wait_for
from shared.deploy.dashboards import queries
from shared.web.snapshots import moving, snapshot

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]
MIB = 1 << 20
RUNS = ("5c01", "7f3a")
PORT = "mldebug-job: Network ports of its nodes A"
FIGURES = {
    "GPU utilization of ranks": (0.25, 1.0),
    "GPU multiprocessors of ranks": (0.5, 0.75),
    "GPU power of ranks": (310.0, 620.0),
    "GPU clocks of ranks": (1.2e9, 1.9e9),
    "Throttled GPUs of ranks": (0.0, 1.0),
    "GPU memory of ranks": (11.0 * MIB, 22.0 * MIB),
    "NVLink of ranks": (3.0 * MIB, 30.0 * MIB),
}
"""What the panel shows of rank 0 of the first run, which works on the first GPU, and of the second run's."""


def gpu(number: int, seconds: float) -> GpuReading:
    """A card whose figures are those of one run; its links move the same each second."""
    figure = {name: values[number] for name, values in FIGURES.items()}
    moved = int(figure["NVLink of ranks"] * seconds / 2)
    return GpuReading(
        uuid=f"GPU-{number}", index=number,
        utilization_ratio=figure["GPU utilization of ranks"], power_instant_watts=figure["GPU power of ranks"],
        clock_hertz={"sm": figure["GPU clocks of ranks"], "graphics": 1e6},
        clock_events=("hw_thermal_slowdown",) if number else (), clock_events_known=("hw_thermal_slowdown",),
        activity=GpuActivity(window_seconds=30.0, sm_active_ratio=figure["GPU multiprocessors of ranks"]),
        nvlink_receive_bytes=moved, nvlink_transmit_bytes=moved,
        processes=(GpuProcess(pid=number + 1, memory_bytes=int(figure["GPU memory of ranks"])), GpuProcess(pid=99, memory_bytes=MIB)),
    )  # fmt: skip


def exposition(began: float) -> bytes:
    """Two runs of one rank on a GPU each, one port that jobs use and one that none does."""
    seconds = time.time() - began
    runs = [replace(moving(name, 1), ranks={0: number + 1}, gpus={0: f"GPU-{number}"}) for number, name in enumerate(RUNS)]  # fmt: skip
    sent = int(seconds * MIB)
    ports = [
        PortState(now=PortReading(name=f"mlx5_{number}/1", link="infiniband", up=True, received_bytes=sent, sent_bytes=sent), used=not number)
        for number in (0, 1)
    ]  # fmt: skip
    made = snapshot(
        *runs,
        gpus=NodeGpus(at=time.time(), gpus=(gpu(0, seconds), gpu(1, seconds))),
        ports=NodePorts(at=time.time(), ports=tuple(ports)),
    )
    return Renderer().render(made, "text/plain")[0]


def test_each_job_shows_the_figures_of_its_own_card(tmp_path: Path) -> None:
    began = time.time() - 1000.0
    panels = {one.name: one.expression for one in queries() if one.name in NOT_STAGED}
    assert panels.keys() == {PORT, *(f"mldebug-job: {title} A" for title in FIGURES)}
    with web(lambda: exposition(began)) as (agent, _), prometheus(tmp_path, agent, agent) as port:
        server = Prometheus(port)

        def shown(name: str, run: str) -> list[tuple[dict[str, str], float]]:
            return server.samples(panels[name].replace("$own", run).replace("$__rate_interval", "10s"))  # fmt: skip

        for number, run in enumerate(RUNS):
            for title, values in FIGURES.items():
                wanted = pytest.approx(values[number], rel=0.1)
                name = f"mldebug-job: {title} A"
                wait_for(f"{title} of {run}", lambda n=name, r=run, w=wanted: [value for _, value in shown(n, r)] == [w], 60)  # fmt: skip
                ((labels, _),) = shown(name, run)
                assert labels["rank"] == "0"
        wait_for("ports", lambda: [labels["port"] for labels, _ in shown(PORT, RUNS[0])] == ["mlx5_0/1"], 60)  # fmt: skip
        ((_, value),) = shown(PORT, RUNS[0])
        assert value == pytest.approx(2 * MIB, rel=0.1)
