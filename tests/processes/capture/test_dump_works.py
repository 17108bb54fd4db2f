"""`mldebug dump` of a real job that works: it says so, with its steps where they are known, and exits with 0."""

import pytest

from processes.harness import Plan, mldebug, running
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(600)]
need_torch("the jobs train with PyTorch")


@pytest.mark.parametrize("hook", [True, False])
def test_a_job_that_works_is_not_stuck(hook: bool) -> None:
    with running(Plan(world_size=2, hook=hook)) as job:
        job.wait_for_step(5)
        answer = mldebug(job, "dump", "--json", "--pid", str(job.ranks[0]))
        diagnosis = answer.report["diagnosis"]
        assert (answer.code, diagnosis["culprits"], diagnosis["works"]) == (0, [], True), diagnosis
        assert diagnosis["summary"].startswith("Not stuck: ")
        if hook:
            assert " → " in diagnosis["summary"]


def test_a_job_that_hangs_is(tmp_path: object) -> None:
    with running(Plan(fault="sleep", struck=(1,), world_size=2, hook=True)) as job:
        job.wait_until_stuck()
        answer = mldebug(job, "dump", "--json", "--pid", str(job.ranks[0]))
        diagnosis = answer.report["diagnosis"]
        assert (answer.code, diagnosis["works"]) == (1, False), diagnosis
        assert [one["rank"] for one in diagnosis["culprits"]] == [1]
