"""From readings of GPUs through the rules of health and a real Prometheus: each alert about one GPU fires, and ends when the GPU is well."""

from pathlib import Path

import msgspec
import pytest

from mldebug.hardware.gpu.readings import (
    UNLISTED,
    EccCount,
    GpuReading,
    LostGpu,
    NodeGpus,
    NvLink,
    RemappedRows,
)
from mldebug.hardware.health.gpu_rules import gpu_health
from mldebug.hardware.health.thresholds import Thresholds
from mldebug_exporters.prometheus import Prometheus
from processes.exporters.test_prometheus_health import fired
from processes.exporters.test_prometheus_rules import ask, prometheus, web
from processes.harness import wait_for
from shared.web.snapshots import AT, moving, snapshot

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]
UUID, OTHER = "GPU-1", "GPU-2"
THERMAL = "hw_thermal_slowdown"
WELL = GpuReading(
    uuid=UUID, index=0, bus_id="0000:1b:00.0", clock_events=(), clock_events_known=(THERMAL,),
    ecc=(EccCount(type="uncorrected", location="total", scope="volatile", count=0, total=0),),
    remapped_rows=RemappedRows(pending=False), nvlinks=(NvLink(link=0, up=True), NvLink(link=1, up=True)),
)  # fmt: skip
SICK = msgspec.structs.replace(
    WELL, clock_events=(THERMAL,), remapped_rows=RemappedRows(pending=True),
    ecc=(msgspec.structs.replace(WELL.ecc[0], count=3, total=3),),
    nvlinks=(NvLink(link=0, up=True), NvLink(link=1, up=False)),
)  # fmt: skip
GONE = LostGpu(index=1, reason="the driver does not list it", uuid=OTHER, code=UNLISTED)
FIRED = {
    ("MldebugGpuMissing", OTHER),
    ("MldebugGpuMemoryErrors", UUID),
    ("MldebugGpuThrottled", UUID),
    ("MldebugNvlinkDown", UUID),
    ("MldebugGpuResetPending", UUID),
}
STAYS = ("MldebugGpuMemoryErrors", UUID)
"""For a quarter of an hour after the errors, as its expression says."""


def exposed(now: GpuReading, *lost: LostGpu) -> bytes:
    """What an agent exposes that read these GPUs, and had seen the first one well before."""
    health = gpu_health(now, WELL, 30.0, Thresholds(), links_once_up=(0, 1))
    snap = snapshot(moving(), gpus=NodeGpus(at=AT, gpus=(now,), lost=lost), health=health)
    return Prometheus().render(snap, "text/plain")[0]


def test_each_alert_about_a_gpu_fires_and_ends(tmp_path: Path) -> None:
    well = exposed(WELL)
    now = well
    with web(lambda: now) as (agent, _), prometheus(tmp_path, agent, agent) as port:

        def firing() -> set[tuple[str, str]]:
            names = {name for name, _ in FIRED}
            found = (one for one in fired(port) if one["alertname"] in names)
            return {(one["alertname"], one["uuid"]) for one in found}

        wait_for("the first scrape", lambda: scraped(port), 90)
        assert firing() == set()
        now = exposed(SICK, GONE)
        wait_for("all alerts fire", lambda: firing() == FIRED, 90)
        now = well
        wait_for("all that ended is over", lambda: firing() == {STAYS}, 120)


def scraped(port: int) -> bool:
    """Whether Prometheus has the GPU that is well twice at least: a growth has a begin."""
    answer = ask(port, f"/api/v1/query?query=count_over_time(mldebug_gpu_remapped_rows_pending%7Buuid=%22{UUID}%22%7D[1m])")  # fmt: skip
    found = answer["data"]["result"] if answer else []
    return bool(found) and int(found[0]["value"][1]) >= 2
