"""Real jobs, started without a launcher, in which one rank gives its switches up: nobody waits for it, and all train on."""

import pytest

from processes.harness import JOBS, Plan, RunningJob, folder_for, wait_for

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(240)]
pytest.importorskip("torch", reason="the scenarios train with PyTorch")


class GivingUp(RunningJob):
    """`tests/jobs/giving_up.py`; rank 0 keeps the store."""

    def _script(self) -> list[str]:
        return [str(JOBS / "giving_up.py"), str(self.events), *self.plan.options]


def told(how: str, ranks: int = 2) -> tuple[list[str], str]:
    """What came of it, rank by rank, and what they have written."""
    plan = Plan(world_size=ranks, struck=(), options=(how,), launch=tuple(range(ranks)))
    with folder_for(plan.user) as folder:
        job = GivingUp(plan, folder)
        try:
            job.start()
            ended = wait_for("their end", lambda: _codes(job), 150)
            assert ended == [0] * ranks, job.tail()
            return [(job.events / f"told.{rank}").read_text() for rank in range(ranks)], job.tail()
        finally:
            job.end()


def _codes(job: RunningJob) -> list[int] | None:
    codes = [one.poll() for one in job.started]
    return None if None in codes else [int(code or 0) for code in codes]


def test_who_gives_up_says_so_and_nobody_waits_for_it() -> None:
    found, said = told("late")
    assert found == ["None None None None None None / None None None None kill"] * 2
    assert "rank 0 gave up: LateError: another rank did not poll in time" in said


def test_one_that_fails_before_they_met_keeps_nobody_and_no_other_switches() -> None:
    found, said = told("broken")
    assert found == ["None None None / None None None None kill"] * 2
    assert "rank 1 gave up: ZeroDivisionError: broken" in said


def test_an_interrupted_poll_keeps_nobody() -> None:
    found, said = told("interrupted")
    assert found == [
        "None None None None None None",
        "None None interrupted None None None",
    ]
    assert "rank 1 asks no more" in said


def test_no_group_of_the_job_outlives_a_wait() -> None:
    found, said = told("shorter")
    assert found == ["None None None None None", "None None None None"]
    assert "did not come to this poll in time" in said


def test_who_keeps_the_store_ends_when_all_have_read_there_that_they_end() -> None:
    found, _ = told("host")
    assert found == ["None None None None kill"] * 2


def test_ranks_outside_the_group_are_not_waited_for() -> None:
    found, said = told("group", ranks=3)
    assert found == ["None None None None kill"] * 2 + ["None None"]
    assert "this rank is not in their group" in said
