"""A real agent that is told to measure by itself: on an idle node its history gets figures, beside a job nothing is started."""

import json
import time
from pathlib import Path

import pytest

from processes.harness import PACE, Plan, running, wait_for
from processes.incidents.watching import RunningAgent, settings, watching
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(600)]
need_torch("probes and jobs need PyTorch")
SECTION = (
    "probes: {every: 10m, idle: 2s, device: cpu, ops: [all_reduce], sizes: [1KiB], duration: 60s}\n"
)


def started(agent: RunningAgent) -> bool:
    """Whether it has begun a probe."""
    snapshot = agent.snapshot()
    states = {one.name: one for one in snapshot.sources} if snapshot else {}
    one = states["scheduled-probes"]
    return bool(one.seconds or one.error or one.last_success)


def test_an_idle_node_is_measured_and_a_job_is_left_alone(tmp_path: Path) -> None:
    config = settings(tmp_path) + SECTION
    with running(Plan(world_size=2, options=PACE)) as job:
        job.wait_for_step(3)
        with watching(tmp_path, config) as agent:
            wait_for("the agent to know the job", lambda: agent.run_of(job), 60)
            until = time.monotonic() + 12
            while time.monotonic() < until:
                assert not started(agent), agent.log
                time.sleep(1)
            job.end()
            wait_for("a probe after the job's end", lambda: started(agent), 120)
            found = wait_for("its figures", lambda: (one := agent.snapshot()) and one.probes, 120)
            assert {series.series.op for series in found} == {"all_reduce"}, json.dumps(str(found))
            assert "failed" not in agent.log
