"""Real training jobs, really stuck: `mldebug dump` must name the right rank, for the right reason, and nobody else."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from processes.harness import (
    Answer,
    Plan,
    RunningJob,
    User,
    build_fake_cuda,
    fuse_mount,
    marked,
    mldebug,
    running,
    state_of,
    wait_for,
    wchan_of,
)
from processes.scenarios import HIGH, MEDIUM, SCENARIOS, Expected, Scenario

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(400)]
pytest.importorskip("torch", reason="the scenarios train with PyTorch")

POLLING = re.compile(r"hrtimer_nanosleep|poll_schedule_timeout.*")


def dump(job: RunningJob, *arguments: str) -> Answer:
    """`mldebug dump` of this job, whatever else runs on the machine; nothing of it may be left behind."""
    answer = mldebug(job, "dump", "--json", "--pid", str(min(job.ranks.values())), *arguments)
    assert answer.code in (0, 1), answer
    return answer


def check(answer: Answer, expected: Expected, job: RunningJob) -> dict[str, Any]:
    """Hold a report to the right answer."""
    diagnosis = answer.report["diagnosis"]
    told = f"{diagnosis['summary']}\n{diagnosis}"
    culprits = diagnosis["culprits"]
    assert diagnosis["verdict"] == expected.verdict, told
    assert [culprit["rank"] for culprit in culprits] == list(expected.ranks), told
    assert {culprit["kind"] for culprit in culprits} <= {expected.kind}, told
    assert diagnosis["confidence"] in expected.confidence, told
    if expected.kind == "rank":
        for culprit in culprits:
            assert culprit["pid"] in _right_pids(job.ranks[culprit["rank"]]), told
    return dict(diagnosis)


def _right_pids(pid: int) -> tuple[int | None, ...]:
    """What a report may give as the pid of a culprit: none, or its former one, where it lives no more."""
    return (None, pid) if state_of(pid) in ("", "Z") else (pid,)


def _health(pid: int) -> str:
    """The state of a process as far as a capture could have harmed it: who polls is now on a CPU, now asleep."""
    return {"R": "runs", "S": "runs", "D": "runs"}.get(state_of(pid), state_of(pid))


def nobody_named(answer: Answer) -> None:
    """A job that moves: no verdict, no culprit, exit code 0."""
    diagnosis = answer.report["diagnosis"]
    assert diagnosis["culprits"] == [], diagnosis
    assert diagnosis["verdict"] == "unknown", diagnosis
    assert answer.code == 0, diagnosis


# --- the table -----------------------------------------------------------------------------------


def _parameter(scenario: Scenario) -> Any:
    marks = [getattr(pytest.mark, mark) for mark in scenario.marks]
    return pytest.param(scenario, id=scenario.name, marks=marks)


@pytest.mark.parametrize("scenario", [_parameter(scenario) for scenario in SCENARIOS])
def test_the_struck_rank_is_named(scenario: Scenario, user: User) -> None:
    with running(Plan(**scenario.plan, user=user)) as job:
        job.wait_until_stuck(scenario.busy)
        before = {pid: _health(pid) for pid in marked(job.mark)}
        answer = dump(job)
        check(answer, scenario.expected, job)
        assert answer.code == 1
        assert {pid: _health(pid) for pid in before} == before


# --- those that need more than a table row --------------------------------------------------------


def test_a_stopped_data_worker_is_blamed_for_its_rank(user: User) -> None:
    with running(Plan("dataloader", options=("--workers", "1"), user=user)) as job:
        job.wait_until_stuck(busy=(2,))
        worker = int((job.events / "worker.2").read_text())
        answer = dump(job)
        diagnosis = check(
            answer, Expected("dataloader_stalled", (2,), (HIGH, MEDIUM), "worker"), job
        )
        assert [culprit["pid"] for culprit in diagnosis["culprits"]] == [worker]


@pytest.mark.parametrize("fault", ["fuse", "fuse_open"])
def test_a_hung_mount_is_the_culprit(fault: str, user: User, folder: Path) -> None:
    with fuse_mount(folder, user) as (shard, server):
        options = ("--path", str(shard))
        with running(Plan(fault, options=options, server=server, user=user)) as job:
            job.wait_until_stuck()
            answer = dump(job)
            diagnosis = check(answer, Expected("storage_fault", (2,), (HIGH,), "mount"), job)
            assert str(shard.parent) in diagnosis["summary"]
            assert state_of(server) == "T"


def test_a_rank_that_never_came_is_named_without_a_pid(user: User) -> None:
    with running(Plan(launch=(0, 1, 2), user=user)) as job:
        job.wait_until_stuck(busy=(0, 1, 2))  # the store polls while it waits
        for rank, pid in job.ranks.items():
            wait_for(f"rank {rank} in the store", lambda p=pid: POLLING.fullmatch(wchan_of(p)))
        answer = dump(job)
        diagnosis = answer.report["diagnosis"]
        assert diagnosis["verdict"] == "init_incomplete", diagnosis
        assert [(c["rank"], c["pid"]) for c in diagnosis["culprits"]] == [(3, None)], diagnosis
        assert answer.code == 1


def test_a_paused_job_is_nobodys_fault(user: User) -> None:
    with running(Plan(struck=(), user=user)) as job:
        job.wait_for_step(5)
        for pid in job.ranks.values():
            os.kill(pid, signal.SIGSTOP)
        for pid in job.ranks.values():
            wait_for("all ranks stopped", lambda p=pid: state_of(p) == "T")
        check(dump(job), Expected("job_paused", (), (HIGH, MEDIUM)), job)
        assert {state_of(pid) for pid in job.ranks.values()} == {"T"}


@pytest.mark.parametrize("fault", ["none", "slow"])
def test_a_healthy_job_has_no_culprit(fault: str, user: User) -> None:
    with running(Plan(fault, user=user)) as job:
        job.wait_for_step(15)
        nobody_named(dump(job))
        job.wait_for_step(job.step(0) + 5)  # and it goes on


def test_of_two_jobs_each_gets_its_own_answer(user: User) -> None:
    with (
        running(Plan("sleep", user=user)) as hung,
        running(Plan("none", world_size=2, user=user)) as healthy,
    ):
        hung.wait_until_stuck()
        healthy.wait_for_step(15)
        answer = dump(hung)
        check(answer, Expected("rank_waiting", (2,), (HIGH, MEDIUM)), hung)
        assert answer.report["job"]["world_size"] == 4
        nobody_named(dump(healthy))
        by_name = mldebug(hung, "dump", "--json", "--job", answer.report["job"]["id"])
        check(by_name, Expected("rank_waiting", (2,), (HIGH, MEDIUM)), hung)


def test_spinning_waiters_are_victims(user: User, folder: Path) -> None:
    options = ("--library", str(build_fake_cuda(folder)))
    with running(Plan("spin", world_size=3, options=options, user=user)) as job:
        job.wait_until_stuck(busy=(0, 1))
        assert {state_of(job.ranks[rank]) for rank in (0, 1)} == {"R"}
        check(dump(job), Expected("rank_waiting", (2,), (HIGH, MEDIUM)), job)


def test_a_job_that_always_samples_in_the_same_wait_has_no_culprit(
    user: User, folder: Path
) -> None:
    options = ("--library", str(build_fake_cuda(folder)))
    with running(Plan("spin_healthy", world_size=3, options=options, user=user)) as job:
        job.wait_for_step(50)
        diagnosis = dump(job).report["diagnosis"]
        assert (diagnosis["verdict"], diagnosis["culprits"]) == ("unknown", []), diagnosis
