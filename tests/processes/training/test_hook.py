"""Real jobs under `mldebug run`: their steps are known without a line of log, and their exit code is their own."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mldebug.jobs.heartbeat import Heartbeat, parse_record, record_name
from processes.harness import (
    SCRIPTS,
    Plan,
    RunningJob,
    clean_environment,
    mldebug,
    running,
    wait_for,
)
from processes.incidents.watching import RunningAgent, settings, watching
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(400)]
need_torch("the scenarios train with PyTorch")


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    folder = tmp_path_factory.mktemp("agent")
    config = settings(folder, stall="{timeout: 15s, busy_timeout: 25s, interval: 1s}")
    with watching(folder, config) as one:
        yield one


def beats(job: RunningJob) -> dict[int, Heartbeat]:
    """What the records of its ranks say."""
    found = {}
    for rank, pid in job.ranks.items():
        start = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        data = Path("/dev/shm", record_name(pid, start)).read_bytes()
        found[rank] = parse_record(data, pid, start, float("inf"))
    return found


def test_an_unmodified_silent_script_shows_its_steps(agent: RunningAgent) -> None:
    plan = Plan("silent", world_size=2, struck=(1,), hook=True)
    with running(plan) as job:
        job.wait_for_step(20)
        run = wait_for("its step", lambda: (one := agent.run_of(job)) and one.step and one, 60)
        assert 0 < run.step <= max(job.step(rank) for rank in job.ranks) + 1
        again = wait_for("a later step", lambda: (one := agent.run_of(job)) and one.step, 60)
        wait_for("it to move", lambda: (((one := agent.run_of(job)) and one.step) or 0) > again, 60)
        result = beats(job)
        assert {rank: beat.rank for rank, beat in result.items()} == {0: 0, 1: 1}
        assert {beat.world_size for beat in result.values()} == {2}
        shown = mldebug(job, "status", "--json", "--config", str(agent.config)).report
        mine = [one["step"] for one in shown["agent"]["runs"] if one["id"] == run.id]
        assert mine[0] >= again
        assert run.hooks.keys() == {0, 1}
        by_hand = mldebug(job, "dump", "--json", "--pid", str(job.ranks[0])).report
        assert by_hand["job"]["hooked"] == 2
        assert by_hand["job"]["step"] == max(one["step"] for one in by_hand["ranks"]) >= again
        times = wait_for("times", lambda: (one := agent.run_of(job)) and one.step_times, 30)
        assert sum(times.counts) <= max(job.step(rank) for rank in job.ranks) + 1
    assert not agent.reports(job)


@pytest.mark.parametrize("code", [0, 7])
def test_the_exit_code_is_the_jobs_own(tmp_path: Path, code: int) -> None:
    script = f"import sys; sys.exit({code})"
    done = subprocess.run(
        [str(SCRIPTS / "mldebug"), "run", "--", sys.executable, "-c", script],
        check=False, capture_output=True, text=True, timeout=60, env=clean_environment(tmp_path),
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")
