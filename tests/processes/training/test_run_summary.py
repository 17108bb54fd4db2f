"""A real job of gloo ranks, of which one is slow and then another is killed: its summary at the end, in the report, by the command and by a channel."""

import os
import signal
import subprocess

import pytest

from processes.alerts.sink import sink
from processes.harness import MLDEBUG, User, clean_environment, folder_for, wait_for
from processes.incidents.watching import settings, watching
from processes.needs import need_torch
from processes.training.test_stragglers import JOB, run_of, training

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(600)]
need_torch("the job trains with PyTorch")


def test_a_job_that_fails_leaves_a_summary_of_its_time_and_of_who_was_slow() -> None:
    with folder_for(User()) as folder, sink() as (url, posts):
        config = (
            settings(folder)
            + "goodput: {interval: 5s, summary: true}\nevents: {pending: 0s}\n"
            + f"channels:\n  ops: {{kind: webhook, url: '{url}/hook'}}\n"
        )
        fault = ("--fault", "sleep", "--extra", "0.15", "--rank", "1")
        with watching(folder, config) as agent:
            with training(folder, *fault):
                run = wait_for("the slow rank", lambda: (one := run_of(agent)) and one.incident_kind == "slowdown" and one, 200)  # fmt: skip
                wait_for("time that was lost to it", lambda: (found := agent.snapshot()) and [one for one in found.goodput if one.gpu_seconds.get("straggler")], 60)  # fmt: skip
                os.kill(run.ranks[3], signal.SIGKILL)
                report = wait_for("the report", lambda: [one for one in agent.reports() if one["kind"] == "abnormal_end"], 120)[-1]  # fmt: skip
            used = report["goodput"]
            assert used["job_attempts"] == 1, used
            assert 0.2 < used["productive_ratio"] < 1.0, used
            assert [one.partition(" waits only")[0] for one in used["stragglers"]] == ["rank 1"], (
                used
            )
            assert "augment (uneven.py" in used["stragglers"][0]
            sent = wait_for("the message", lambda: [body for _, body in posts if body["kind"] == "run_summary"], 60)  # fmt: skip
            assert sent[0]["sentence"].startswith(f"{JOB.name} failed after "), sent
            assert any("rank 1 waits only" in step for step in sent[0]["next_steps"]), sent
            command = [
                *MLDEBUG,
                "goodput",
                "--config",
                str(folder / "mldebug.yaml"),
                "--job",
                JOB.name,
            ]
            shown = subprocess.run(command, capture_output=True, text=True, env=clean_environment(folder), timeout=60, check=True).stdout  # fmt: skip
    words = " ".join(shown.split())
    assert "attempt 0: failed after " in words, shown
    assert "rank 1 waits only" in words, shown


def test_nobody_is_sent_the_summary_of_a_job_that_ends_well_unless_it_is_wanted() -> None:
    with folder_for(User()) as folder, sink() as (url, posts):
        config = (
            settings(folder)
            + f"events: {{pending: 0s}}\nchannels:\n  ops: {{kind: webhook, url: '{url}/hook'}}\n"
        )
        with watching(folder, config) as agent:
            with training(folder, "--until", "150"):
                wait_for("the run", lambda: run_of(agent), 60)
                ended = wait_for("its end", lambda: (found := agent.snapshot()) and [one for job in found.goodput for one in job.newest if one.ended], 120)  # fmt: skip
            assert [(one.outcome, one.stragglers) for one in ended] == [("well", ())]
            assert agent.reports() == []
    assert [body for _, body in posts if body["kind"] == "run_summary"] == []
