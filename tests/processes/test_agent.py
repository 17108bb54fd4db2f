"""The agent on a real job: it notices by itself, names the rank, and writes one report."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mldebug_agents.client import ask_agent
from processes.harness import Plan, User, running

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]
pytest.importorskip("torch", reason="the scenarios train with PyTorch")

TIMEOUT, INTERVAL = 15, 1


@contextmanager
def agent(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A real agent with a state dir of its own and no port."""
    state = folder / "state"
    config = folder / "mldebug.yaml"
    config.write_text(
        f"agent: {{state_dir: {state}, listen: ''}}\nstall: {{timeout: {TIMEOUT}s, interval: {INTERVAL}s}}\n"
    )
    command = [sys.executable, "-m", "mldebug", "agent", "--config", str(config)]
    with (folder / "agent.log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            yield process, state
        finally:
            process.terminate()
            assert process.wait(10) == 0, (folder / "agent.log").read_text()


def reports(state: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted(state.glob("reports/*/report.json"))]


def wait_for_reports(state: Path, seconds: float) -> list[dict[str, object]]:
    deadline = time.monotonic() + seconds
    while not (found := reports(state)) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def test_a_sleeping_rank_is_named_by_itself_within_the_timeout(tmp_path: Path) -> None:
    with agent(tmp_path) as (_, state), running(Plan("sleep", after=200, user=User())) as job:
        job.wait_until_stuck()
        struck = time.time()
        found = wait_for_reports(state, TIMEOUT + 30)
        seen = ask_agent(state)

    assert [report["diagnosis"]["verdict"] for report in found] == ["rank_waiting"]
    assert [culprit["rank"] for culprit in found[0]["diagnosis"]["culprits"]] == [2]
    assert found[0]["diagnosis"]["confidence"] == "high"
    assert (found[0]["kind"], found[0]["trigger"]) == ("stall", "stall")
    assert seen is not None
    assert [run.incident for run in seen.runs if run.incident] == [found[0]["id"]]
    assert time.time() - struck < TIMEOUT + 30


def test_a_healthy_job_raises_no_alarm(tmp_path: Path) -> None:
    with agent(tmp_path) as (_, state), running(Plan("none", user=User())) as job:
        job.wait_for_step(50)
        time.sleep(TIMEOUT * 2)
        seen = ask_agent(state)

    assert reports(state) == []
    assert seen is not None
    mine = [(run.stage, run.incident) for run in seen.runs if run.name == "train.py"]
    assert mine == [("watching", "")]


def test_a_second_agent_on_the_same_state_dir_is_refused(tmp_path: Path) -> None:
    with agent(tmp_path) as (first, state):
        deadline = time.monotonic() + 20
        while ask_agent(state) is None and time.monotonic() < deadline:
            time.sleep(0.1)
        second = subprocess.run(
            [sys.executable, "-m", "mldebug", "agent", "--config", str(tmp_path / "mldebug.yaml")],
            capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip

    assert second.returncode == 2
    assert f"another agent (pid {first.pid})" in second.stderr
