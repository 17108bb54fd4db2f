"""`mldebug profile` of real jobs: with the hook a trace of PyTorch's profiler, without it samples of py-spy; the job goes on as before."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from mldebug.capture.profile.trace import parse_trace
from processes.harness import PACE, Answer, Plan, RunningJob, mldebug, running, wait_for
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(600)]
need_torch("the jobs train with PyTorch")


def profile(job: RunningJob, *more: str) -> Answer:
    return mldebug(job, "profile", "--job", job_id(job), *more)


def job_id(job: RunningJob) -> str:
    shown = mldebug(job, "status", "--json").report
    pids = set(job.ranks.values())
    found = [one["id"] for one in shown["jobs"] if {r["pid"] for r in one["ranks"]} & pids]
    return str(found[0])


def left(job: RunningJob) -> list[str]:
    """Files of requests and traces in shared memory."""
    names = [
        path.name
        for pid in job.ranks.values()
        for path in Path("/dev/shm").glob(f"mldebug-{pid}-*")
    ]
    return [name for name in names if ".request" in name or "trace" in name]


def descriptors(job: RunningJob) -> dict[int, int]:
    return {rank: len(list(Path(f"/proc/{pid}/fd").iterdir())) for rank, pid in job.ranks.items()}


def test_a_hooked_job_traces_its_next_steps_and_goes_on() -> None:
    with running(Plan(world_size=2, hook=True, options=PACE)) as job:
        job.wait_for_step(5)
        before = job.ranks
        answer = profile(job, "--ranks", "0,1", "--steps", "2", "--json")
        assert answer.code == 0, answer.stdout + answer.stderr
        profiles: list[dict[str, Any]] = answer.report["profiles"]
        assert [one["rank"] for one in profiles] == [0, 1]
        for one in profiles:
            data = gzip.decompress(Path(answer.report["folder"], one["file"]).read_bytes())
            names = [span.name for span in parse_trace(data).operators]
            assert names.count("aten::mse_loss") == 2
            assert one["trace"]["communication"] > 0
            assert one["cost_seconds"] < 30
            assert parse_trace(data).annotations
        text = Path(answer.report["folder"], "profile.txt").read_text()
        assert "c10d::allreduce_" in text
        now = max(map(job.step, before))
        wait_for("more steps", lambda: min(map(job.step, before)) > now + 10)
        assert job.ranks == before
        assert left(job) == []
        assert "rror" not in job.tail(), job.tail()


def test_an_untouched_job_is_sampled_and_is_told_what_that_cannot_see() -> None:
    with running(Plan(world_size=2, options=PACE)) as job:
        job.wait_for_step(5)
        answer = profile(job, "--seconds", "3")
        assert answer.code == 0, answer.stdout + answer.stderr
        assert "samples by py-spy" in answer.stdout
        assert "not seen by py-spy: kernels" in answer.stdout
        assert "train (train.py:" in answer.stdout
        now = max(map(job.step, job.ranks))
        wait_for("more steps", lambda: min(map(job.step, job.ranks)) > now + 5)


def test_a_rank_that_makes_no_step_is_left_alone() -> None:
    with running(Plan(fault="sleep", struck=(1,), world_size=2, hook=True)) as job:
        job.wait_until_stuck()
        before = descriptors(job)
        answer = mldebug(job, "profile", "--job", job_id(job), "--json", "--wait", "2s")
        assert answer.code == 1, answer.stdout + answer.stderr
        assert json.loads(answer.stdout)["profiles"][0]["failure"] == "no step has ended in 2 s"
        assert left(job) == []
        assert descriptors(job) == before


@pytest.mark.parametrize(
    ("hook", "why"),
    [
        (True, "the job was not started with `mldebug run --memory-history`"),
        (False, "it was not started with `mldebug run --memory-history`"),
    ],
)
def test_memory_of_a_job_that_was_not_armed_is_refused_and_the_job_goes_on(
    hook: bool, why: str
) -> None:
    with running(Plan(world_size=2, hook=hook, options=PACE)) as job:
        job.wait_for_step(5)
        answer = mldebug(job, "memory", "--job", job_id(job))
        assert answer.code == 1, answer.stdout + answer.stderr
        assert why in answer.stdout
        now = max(map(job.step, job.ranks))
        wait_for("more steps", lambda: min(map(job.step, job.ranks)) > now + 5)
        assert left(job) == []
