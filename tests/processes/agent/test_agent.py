"""The agent on real jobs: what it says, and when it does not."""

import os
import signal
import time

import pytest

from processes.harness import PACE, Plan, RunningJob, User, folder_for, running, wait_for
from processes.incidents.watching import Report, RunningAgent, settings, watching
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]
need_torch("the scenarios train with PyTorch")

QUICK = "{timeout: 6s, interval: 1s}"
SOON = 40.0  # seconds from the fault to the report, on a machine that is busy with other things


def first_report(agent: RunningAgent, job: RunningJob, seconds: float = SOON) -> Report:
    return wait_for("a report", lambda: agent.reports(job), seconds)[0]  # type: ignore[no-any-return]


def test_status_says_what_the_report_says(user: User) -> None:
    with (
        folder_for(user) as folder,
        watching(folder, settings(folder, stall=QUICK), user) as agent,
        running(Plan("sleep", after=40, user=user)) as job,
    ):
        report = first_report(agent, job)
        run, log = agent.run_of(job), agent.log

    assert run is not None
    assert (run.incident, run.verdict) == (report["id"], "rank_waiting")
    assert run.report == report["diagnosis"]["summary"]
    assert "3 ranks wait in all_reduce; rank 2 sleeps in slow_data_source" in run.sentence
    assert run.sentence.partition("; ")[2] in log  # the seconds before it have gone on
    assert run.classes == {0: "collective", 1: "collective", 2: "sleep", 3: "collective"}


def test_a_job_that_hung_before_the_agent_came_is_an_incident(user: User) -> None:
    with running(Plan("sleep", user=user)) as job, folder_for(user) as folder:
        job.wait_until_stuck()
        with watching(folder, settings(folder, stall=QUICK), user) as agent:
            report = first_report(agent, job)

    assert [culprit["rank"] for culprit in report["diagnosis"]["culprits"]] == [2]
    assert "already stalled when the agent came" in report["timeline"][0]["what"]


def test_of_two_jobs_only_the_hung_one_is_reported(user: User) -> None:
    with (
        folder_for(user) as folder,
        watching(folder, settings(folder, stall=QUICK), user) as agent,
        running(Plan("none", world_size=2, options=PACE, user=user)) as healthy,
        running(Plan("sleep", after=40, user=user)) as hung,
    ):
        report = first_report(agent, hung)
        healthy.wait_for_step(healthy.step(0) + 50)
        assert report["job"]["world_size"] == 4
        assert agent.reports(healthy) == []


def test_a_stall_that_ends_by_itself_is_told_with_its_length(user: User) -> None:
    with (
        folder_for(user) as folder,
        watching(folder, settings(folder, stall=QUICK), user) as agent,
        running(Plan(struck=(), options=PACE, user=user)) as job,
    ):
        job.wait_for_step(60)
        wait_for("the agent sees steps", lambda: (result := agent.run_of(job)) and result.step, 30)
        os.kill(job.ranks[2], signal.SIGSTOP)
        stopped = time.time()
        assert first_report(agent, job)["diagnosis"]["verdict"] == "rank_stopped"
        os.kill(job.ranks[2], signal.SIGCONT)
        pause = time.time() - stopped
        wait_for("recovered", lambda: agent.reports(job)[0]["state"] == "recovered", 30)
        (report,) = agent.reports(job)
        # what is shown follows within two seconds
        wait_for("a run without it", lambda: (run := agent.run_of(job)) and run.incident == "", 10)

    words = report["timeline"][-1]["what"].split()
    assert words[:3] == ["moves", "again", "after"]
    assert abs(float(words[3]) - pause) < 10, (report["timeline"], pause)


def test_there_is_a_second_capture_and_an_end(user: User) -> None:
    with folder_for(user) as folder, watching(folder, settings(folder, stall=QUICK), user) as agent:
        with running(Plan("sleep", after=40, user=user)) as job:
            name = first_report(agent, job)["id"]
            wait_for("two captures", lambda: len(agent.reports(job)[0]["captures"]) == 2, 60)
            assert agent.reports(job)[0]["state"] == "open"
        folder = agent.state / "reports" / name
        wait_for("the end", lambda: '"state":"ended"' in (folder / "report.json").read_text(), 30)
        evidence = folder / "evidence"
        assert len(list(evidence.glob("capture-*.json"))) == 2
