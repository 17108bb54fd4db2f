"""scancel and drain meet a real Slurm: only the stalled job ends, only the sick node is drained, once, and only where it is allowed."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from mldebug.alerts.action_model import ActionDecision, ActionOutcome
from mldebug.config.schema import ActionsConfig
from mldebug.core.model import Culprit
from mldebug.core.plugin_options import Plugin
from mldebug_agents.alerts.actions import drain
from mldebug_agents.system.spawn import Spawner
from processes.harness import wait_for
from processes.incidents.watching import RunningAgent, settings, watching
from system.launching import SIZE, Launch, LaunchedJob, launched
from system.slurm import Slurm
from system.test_schedulers import both_nodes, cluster, submit
from unit.alerts.test_actions import Stand

pytestmark = [pytest.mark.scenario, pytest.mark.host, pytest.mark.timeout(300)]
__all__ = ["both_nodes", "cluster"]  # fixtures


@contextmanager
def acting(folder: Path, slurm: Slurm, allow: str) -> Iterator[RunningAgent]:
    """An agent that would cancel what stalls."""
    actions = {
        "steps": {"stop": {"kind": "scancel", "confidence": "low"}},
        "chains": {"stall": ["stop"]},
    }
    config = settings(folder, stall="{timeout: 6s, interval: 1s}")
    config += f"actions: {json.dumps(actions | {'allow': [allow] if allow else []})}\n"
    with watching(folder, config, more=slurm.environment) as agent:
        yield agent


def decisions(agent: RunningAgent, run: str) -> list[Any]:
    """What the audit log says of stalls of this run: jobs of other tests may stall on this machine."""
    file = agent.state / "actions.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    result = map(json.loads, lines)
    return [one for one in result if (one["event_kind"], one["run"]) == ("stall", run)]


def stalls(agent: RunningAgent, job: LaunchedJob) -> str:
    """Stop the ranks once the agent has seen steps, and wait for what is done about it; the run's id."""
    pids = set(job.ranks.values())

    def stepping() -> str:
        snap = agent.snapshot()
        mine = [run for run in (snap.runs if snap else ()) if pids & set(run.ranks.values())]
        return mine[0].id if mine and mine[0].step else ""

    run: str = wait_for("the agent sees steps", stepping, 60)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        wait_for("a decision", lambda: decisions(agent, run), 90)
    except AssertionError as error:
        pytest.fail(f"{error}\n{agent.log}")
    return run


def running(slurm: Slurm) -> set[str]:
    """Numbers of jobs."""
    return set(slurm.run("squeue", "--noheader", "--states=R", "--format=%A").split())


@pytest.mark.parametrize("allow", ["", "scancel"])
def test_the_job_that_stalls_is_cancelled_once_where_that_is_allowed(
    cluster: Slurm, tmp_path: Path, allow: str
) -> None:
    argv = ("srun", "--nodes=1", "--nodelist=a1", f"--ntasks={SIZE}")
    launch = Launch("slurm", argv, cluster.environment)
    with launched(tmp_path / "job", launch) as job:
        (mine,) = running(cluster)
        other = submit(cluster, tmp_path, "--nodelist=a1", "--ntasks=1")
        wait_for("the other job", lambda: other in running(cluster), 60)
        try:
            with acting(tmp_path, cluster, allow) as agent:
                run = stalls(agent, job)
                if allow:
                    wait_for("its end", lambda: mine not in running(cluster), 60)
                (result,) = decisions(agent, run)
        finally:
            for pid in job.ranks.values():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        if allow:
            assert (result["outcome"], result["why"]) == ("ran", f"scancel {mine}"), result
            assert running(cluster) == {other}
        else:
            assert result["outcome"] == "refused"
            assert f"actions.allow does not name scancel; it would: scancel {mine}" in result["why"]
            assert running(cluster) == {mine, other}


def _drains(folder: Path, starter: Spawner, **rules: Any) -> list[ActionDecision]:
    """What becomes of a GPU of node a2 that is sick, and of the next one."""
    chains = {"stall": ("away",), "gpu_ecc": ("away",)}
    away = Plugin("drain", drain.Options())
    actions = ActionsConfig(steps={"away": away}, chains=chains, cooldown=0.0, **rules)
    stand = Stand(folder, starter, actions, node="a2")
    gpu = Culprit(kind="gpu", rank=2, node="a2.example.org", pid=None, reason="Xid 79")
    stand.stalls(verdict="gpu_fault", blamed=(gpu,))
    stand.until(1)
    stand.stalls(key="health/gpu_ecc/GPU-1", kind="gpu_ecc", verdict="ecc_uncorrected")
    return stand.until(2)


def test_the_node_of_a_sick_gpu_is_drained_once_where_that_is_allowed(
    cluster: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    stays = submit(cluster, tmp_path, "--nodelist=a2")
    wait_for("a job on it", lambda: stays in running(cluster), 60)
    states = ("sinfo", "--noheader", "--Node", "--format=%N %T %E")
    folders = [tmp_path / name for name in ("without", "with")]
    for folder in folders:
        folder.mkdir()
    try:
        with Spawner() as starter:
            first = _drains(folders[0], starter)
            before = cluster.run(*states).splitlines()
            second = _drains(folders[1], starter, allow=("drain",))
        after = cluster.run(*states).splitlines()
        kept = stays in running(cluster)
    finally:
        with suppress(AssertionError):
            cluster.run("scontrol", "update", "nodename=a2", "state=resume")
    assert [one.outcome for one in first] == [ActionOutcome.REFUSED, ActionOutcome.REFUSED]
    assert (
        "it would: scontrol update nodename=a2 state=drain reason=mldebug:gpu_fault" in first[0].why
    )
    assert [one.split()[:2] for one in before] == [["a1", "idle"], ["a2", "mixed"]]
    assert [one.outcome for one in second] == [ActionOutcome.RAN, ActionOutcome.REFUSED], second
    assert "a2 is drained already" in second[1].why
    assert [one.split()[:3] for one in after][1] == ["a2", "draining", "mldebug:gpu_fault"]
    assert after[0].split()[1] == "idle"
    assert kept  # what runs there goes on
