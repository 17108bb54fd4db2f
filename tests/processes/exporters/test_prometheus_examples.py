"""The examples of deploy/prometheus/ do what they say: captures are asked of an agent, many nodes are one message, dcgm-exporter's names join."""

import json
import time
from pathlib import Path

import pytest

from mldebug.hardware.health.model import ComponentHealth, HealthState, SuggestedAction
from mldebug_exporters.prometheus import Prometheus as Exposition
from processes.exporters.test_metrics import Prometheus
from processes.exporters.test_prometheus_rules import (
    FOLDER,
    Labels,
    alertmanager,
    ask,
    serving,
    web,
)
from processes.harness import wait_for
from shared.deploy.series import load
from shared.web.snapshots import snapshot
from unit.alerts.test_alertmanager_requests import ONE, Stand

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(120)]

TOKEN = "0123456789abcdef"  # as `alertmanager` writes it
BOARDS = ("GPU-5fd4f3d5-0d0c-4b5f-b3c1-1c5b7b4f0a11", "GPU-a3c0e6a2-7a3e-49a1-8d1f-3b8f0c9f2b22")
LABELS = (
    'gpu="{at}",UUID="{uuid}",pci_bus_id="00000000:1{at}:00.0",device="nvidia{at}",'
    'modelName="NVIDIA H100 80GB HBM3",{host}="gpu-7",DCGM_FI_DRIVER_VERSION="550.90.07"'
)
"""Of a sample of dcgm-exporter, in the order of its default template."""
JOIN = 'DCGM_FI_DEV_GPU_TEMP * on (uuid) group_left (action) mldebug_suggested_action_info{component="gpu_xid"}'  # fmt: skip


def send(manager: int, *alerts: Labels) -> None:
    """As Prometheus does."""
    assert ask(manager, "/api/v2/alerts", [{"labels": labels} for labels in alerts]) is not None


def test_a_late_checkpoint_has_the_run_captured_and_a_stall_does_not(tmp_path: Path) -> None:
    """The example, a real Alertmanager, and the door of an agent that knows the run."""
    stand = Stand(tmp_path, token=TOKEN)
    late = {"alertname": "MldebugCheckpointLate", "run": ONE.id, "severity": "critical"}
    stalled = {"alertname": "MldebugRunStalled", "run": "bbbb2222", "severity": "critical"}
    try:
        with web() as (receiver, got), alertmanager(tmp_path, receiver, stand.port) as manager:
            send(manager, late, stalled)
            assert stand.taken(1) == [ONE.id]
            wait_for("both wake somebody", lambda: len(paged(got)) == 2, 60)
    finally:
        stand.server.stop(5)
    assert stand.bench.taken == [ONE.id]


def paged(got: list[tuple[str, list[Labels]]]) -> set[str]:
    """The alerts that the pager was told."""
    return {str(one["labels"]) for path, alerts in got if path == "/pager/hook" for one in alerts}


def test_a_thousand_agents_that_are_gone_are_one_message(tmp_path: Path) -> None:
    gone = [
        {"alertname": "MldebugAgentDownDuringRun", "instance": f"n{node}", "severity": "critical"}
        for node in range(1000)
    ]
    with web() as (receiver, got), alertmanager(tmp_path, receiver) as manager:
        send(manager, *gone)
        wait_for("somebody is paged", lambda: got, 60)
        groups = ask(manager, "/api/v2/alerts/groups")

    assert [len(group["alerts"]) for group in groups] == [1000]
    assert len(got) == 1
    assert got[0][0] == "/pager/hook"


def dcgm(host: str) -> bytes:
    """What dcgm-exporter of two boards says; `host` is its label, which had a capital once."""
    lines = [
        "# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).", "# TYPE DCGM_FI_DEV_GPU_TEMP gauge",
        *(f"DCGM_FI_DEV_GPU_TEMP{{{LABELS.format(at=at, uuid=uuid, host=host)}}} {41 + at}"
          for at, uuid in enumerate(BOARDS)),
    ]  # fmt: skip
    return "\n".join(lines).encode() + b"\n"


@pytest.mark.parametrize("host", ["Hostname", "hostname"])
def test_samples_of_dcgm_exporter_join_ours(tmp_path: Path, host: str) -> None:
    """The very query in the relabel file, in a real Prometheus that scrapes both."""
    file = FOLDER / "dcgm-relabel.yaml"
    assert JOIN in file.read_text(encoding="utf-8")
    sick = ComponentHealth(component="gpu_xid", state=HealthState.UNHEALTHY, reason_code="xid_79", action=SuggestedAction.REBOOT, uuid=BOARDS[1], gpu=1)  # fmt: skip
    ours, _ = Exposition().render(snapshot(health=(sick,), at=time.time()), "text/plain")
    with web(dcgm(host)) as (theirs, _), web(ours) as (agent, _):
        jobs = [{"job_name": "dcgm", "static_configs": [{"targets": [f"127.0.0.1:{theirs}"]}], **load(file)},
                {"job_name": "mldebug", "static_configs": [{"targets": [f"127.0.0.1:{agent}"]}]}]  # fmt: skip
        config = tmp_path / "prometheus.json"
        config.write_text(json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}))
        with serving(tmp_path, ("prometheus",), "tsdb.path", f"--config.file={config}") as port:
            server = Prometheus(port)
            (joined,) = wait_for("both are scraped", lambda: server.samples(JOIN), 60)
            every = server.samples("DCGM_FI_DEV_GPU_TEMP")

    labels, degrees = joined
    assert (labels["UUID"], labels["uuid"], labels["action"], degrees) == (
        BOARDS[1],
        BOARDS[1],
        "reboot",
        42,
    )
    assert sorted(labels["UUID"] for labels, _ in every) == sorted(BOARDS)
    assert {(labels["node"], labels[host]) for labels, _ in every} == {("gpu-7", "gpu-7")}
