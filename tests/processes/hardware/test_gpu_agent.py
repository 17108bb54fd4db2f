"""The agent beside GPUs: a real agent and real jobs, the driver's library a fake that serves recordings of two H200s."""

import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakenvml.library import FakeNvml
from mldebug.hardware.gpu.readings import GpuReading
from mldebug.status.snapshot import RunState, Snapshot
from processes.agent.light import LightJob, light_job
from processes.harness import free_port, wait_for
from processes.incidents.watching import Report, RunningAgent, settings, watching
from shared.system.patience import PATIENCE

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(180)]

STALL = "{timeout: 4s, interval: 500ms}"
BUSES = ("00000000:45:00.0", "00000000:5D:00.0")
PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v3"


@pytest.fixture
def fake(tmp_path: Path) -> FakeNvml:
    """Two GPUs that train."""
    folder = tmp_path / "nvml"
    folder.mkdir()
    return FakeNvml(folder, "training")


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def agent(tmp_path: Path, fake: FakeNvml, port: int) -> Iterator[RunningAgent]:
    """An agent whose library is the fake."""
    more = {"LD_LIBRARY_PATH": str(Path(fake.library).parent), **fake.environment}
    config = settings(tmp_path, stall=STALL, listen=f"127.0.0.1:{port}")
    with watching(tmp_path, config, more=more) as one:
        yield one


@pytest.fixture
def job(tmp_path: Path, fake: FakeNvml, agent: RunningAgent) -> Iterator[LightJob]:
    """Rank 0 works on GPU 0 and rank 1 on GPU 1, and the agent knows it."""
    with light_job(tmp_path / "job") as one:
        for rank, pid in one.ranks.items():
            fake.set(f"{PROCESSES} {rank}", pid, 1 << 30)
        wait_for("its steps", lambda: (run := run_of(agent, one)) and (run.step or 0) > 5, 30)
        yield one


def run_of(agent: RunningAgent, job: LightJob) -> RunState | None:
    snap = agent.snapshot()
    return next((run for run in snap.runs if run.name == job.name), None) if snap else None


def looked(agent: RunningAgent) -> Snapshot:
    snapshot = agent.snapshot()
    assert snapshot is not None
    return snapshot


def report_on(agent: RunningAgent, job: LightJob) -> Report:
    def found() -> Report | None:
        return next((one for one in agent.reports() if one["job"]["name"] == job.name), None)

    try:
        report: Report = wait_for("the report", found, 40)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{agent.log}") from None
    return report


def metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def learned(agent: RunningAgent, job: LightJob) -> None:
    """Wait until it is known who works on which GPU, and some looks have seen them at work."""
    wait_for("the join", lambda: (run := run_of(agent, job)) and len(run.gpus) == 2, 60)
    wait_for("work", lambda: (run := run_of(agent, job)) and "compute" in run.devices, 60)
    began = time.time()
    wait_for("more looks", lambda: (w := looked(agent).gpu_watch) and w.at > began + 3.0, 30)


def stand_still(fake: FakeNvml, job: LightJob) -> None:
    """From now on GPU 0 spins, and GPU 1 does nothing."""
    fake.play("hang-sleep")
    for rank, pid in job.ranks.items():
        fake.set(f"{PROCESSES} {rank}", pid, 1 << 30)


def gpu(agent: RunningAgent, index: int) -> GpuReading | None:
    full = looked(agent).gpus
    return next((one for one in full.gpus if one.index == index), None) if full else None


def test_what_the_gpus_tell_is_in_the_metrics(agent: RunningAgent, port: int) -> None:
    wait_for("both reads", lambda: looked(agent).gpus and looked(agent).gpu_watch, 60)
    text = metrics(port)
    for line in (
        "mldebug_gpu_power_watts{",
        "mldebug_gpu_utilization_ratio{",
        'mldebug_component_health{component="gpu_ecc",state="healthy"} 1.0',
        'mldebug_source_success{source="gpus"} 1.0',
        'mldebug_source_success{source="kernel"} 1.0',
    ):
        assert line in text, line


def test_a_hang_report_has_the_fingerprint_of_the_gpus(
    agent: RunningAgent, job: LightJob, fake: FakeNvml
) -> None:
    learned(agent, job)
    stand_still(fake, job)
    job.hang()
    report = report_on(agent, job)
    evidence = " ".join(report["diagnosis"]["evidence"])
    assert "rank 1 sleeps in slow_data_loader" in report["diagnosis"]["summary"]
    assert "GPU 0 waits in a collective (100 % busy" in evidence, evidence
    assert "GPU 1 runs nothing" in evidence, evidence


def test_a_gpu_that_is_lost_is_named_with_its_rank(
    agent: RunningAgent, job: LightJob, fake: FakeNvml, port: int
) -> None:
    learned(agent, job)
    stand_still(fake, job)
    fake.raise_event(1, 79)
    fake.lose(1)
    job.hang()
    report = report_on(agent, job)
    diagnosis = report["diagnosis"]
    assert "Xid 79" in " ".join(diagnosis["evidence"]) + diagnosis["summary"], diagnosis
    assert {one["rank"] for one in diagnosis["culprits"]} == {1}, diagnosis
    # after Xid 79 it is left alone for a minute, and does not answer; then it says that it is lost
    wait_for("the missing GPU", lambda: _missing(looked(agent)), 150)
    assert "mldebug_gpu_xid_total{" in metrics(port)
    assert 'mldebug_component_health{component="gpu_count",state="unhealthy"} 1.0' in metrics(port)
    assert gpu(agent, 0) is not None
    assert gpu(agent, 1) is None


def _missing(snapshot: Snapshot) -> bool:
    return any(one.reason_code == "gpu_missing" for one in snapshot.health)


def test_a_driver_that_does_not_answer_costs_the_gpus_and_nothing_else(
    agent: RunningAgent, job: LightJob, fake: FakeNvml
) -> None:
    wait_for("a watch read", lambda: looked(agent).gpu_watch, 60)
    fake.block("nvmlDeviceGetUtilizationRates")
    try:
        wait_for("its failure", lambda: not _source(looked(agent), "gpus"), 60)
        assert looked(agent).gpu_watch is None
        job.hang()
        report = report_on(agent, job)
        assert "rank 1 sleeps in slow_data_loader" in report["diagnosis"]["summary"]
        began = time.monotonic()
        agent.process.terminate()
        assert agent.process.wait(10) == 0
        assert time.monotonic() - began < 4.0 * PATIENCE
    finally:
        fake.release()


def _source(snapshot: Snapshot, name: str) -> bool:
    return next(one.success and not one.stuck for one in snapshot.sources if one.name == name)
