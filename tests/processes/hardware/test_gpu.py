"""The agent and `mldebug dump` on real NCCL jobs: the victims spin at 100 % CPU, and CPU use proves nothing.

Needs two GPUs and a PyTorch built for them; everything here is skipped elsewhere.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from processes.harness import JOBS, clean_environment, wait_for
from processes.incidents.watching import Report, RunningAgent, settings, watching
from shared.system.patience import PATIENCE

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.scenario,
    pytest.mark.timeout(300),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]

TIMEOUT, BUSY_TIMEOUT, LATE = 15.0, 25.0, 5.0
IMPATIENT = "{timeout: 15s, busy_timeout: 25s, interval: 1s}"


class GpuJob:
    """Two ranks of tests/jobs/gpu.py, by torchrun."""

    def __init__(self, folder: Path) -> None:
        self.events = folder / "events"
        self.log = folder / "job.log"
        self.ranks: dict[int, int] = {}

    @property
    def steps(self) -> int:
        """The last one it told."""
        values = [
            line.split()[1]
            for line in self.log.read_text().splitlines()
            if line.startswith("step ")
        ]
        return int(values[-1]) if values else -1


@contextmanager
def gpu_job(folder: Path, fault: str) -> Iterator[GpuJob]:
    """Start it; at the end nothing of it is left."""
    job = GpuJob(folder)
    job.events.mkdir()
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    argv += [str(JOBS / "gpu.py"), "--events", str(job.events), "--fault", fault]
    with job.log.open("wb") as log:
        launcher = subprocess.Popen(argv, stdout=log, stderr=log, env=clean_environment(folder))
    try:
        yield job
    finally:
        of_launcher: list[Any] = [*psutil.Process(launcher.pid).children(recursive=True), launcher]
        for one in of_launcher:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        launcher.wait(30)


def reports(agent: RunningAgent) -> list[Report]:
    """Of our job; nothing else trains here."""
    return [one for one in agent.reports() if one["job"]["world_size"] == 2]


@pytest.mark.parametrize(
    ("fault", "verdict", "limit"),
    [("sleep", "rank_waiting", TIMEOUT), ("loop", "rank_busy", BUSY_TIMEOUT)],
)
def test_the_agent_names_the_rank_for_which_a_gpu_spins(
    fault: str, verdict: str, limit: float, tmp_path: Path
) -> None:
    config = settings(tmp_path, stall=IMPATIENT)
    with watching(tmp_path, config) as agent, gpu_job(tmp_path, fault) as job:
        wait_for("the strike", (job.events / "strike.1").exists, 120)
        struck = time.time()
        dumped = subprocess.run(
            [sys.executable, "-m", "mldebug", "dump", "--json"],
            check=False, capture_output=True, text=True, timeout=120, env=clean_environment(tmp_path),
        )  # fmt: skip
        by_hand = json.loads(dumped.stdout)["diagnosis"]
        wait_for("a report", lambda: reports(agent), limit + 40)
        late = time.time() - struck - limit
        (report,) = reports(agent)
    print(fault, f"{late:.1f} s after the timeout:", report["diagnosis"]["summary"])
    for diagnosis in (by_hand, report["diagnosis"]):
        assert diagnosis["verdict"] == verdict, diagnosis
        assert [one["rank"] for one in diagnosis["culprits"]] == [1], diagnosis
    assert late <= LATE * PATIENCE


@pytest.mark.parametrize("fault", ["none", "evaluate"])
def test_the_agent_is_silent_while_gpus_train(fault: str, tmp_path: Path) -> None:
    with watching(tmp_path) as agent, gpu_job(tmp_path, fault) as job:
        wait_for("steps", lambda: job.steps > 450, 200)
        began = time.monotonic()
        wait_for("half a minute more of steps", lambda: time.monotonic() - began > 30, 60)
        went = job.steps
        wait_for("the job goes on", lambda: job.steps > went, 30)
        assert reports(agent) == [], agent.log
