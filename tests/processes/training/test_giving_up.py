"""Real jobs, started without a launcher, in which one rank gives its switches up: nobody waits for it, and all train on."""

import pytest

from processes.harness import JOBS, Plan, RunningJob, folder_for, wait_for
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(240)]
need_torch("the scenarios train with PyTorch")


class GivingUp(RunningJob):
    """`tests/jobs/giving_up.py`; rank 0 keeps the store."""

    def _script(self) -> list[str]:
        return [str(JOBS / "giving_up.py"), str(self.events), *self.plan.options]


def lines_of(how: str, ranks: int = 2) -> tuple[list[str], str]:
    """What came of it, rank by rank, and what they have written."""
    plan = Plan(world_size=ranks, struck=(), options=(how,), launch=tuple(range(ranks)))
    with folder_for(plan.user) as folder:
        job = GivingUp(plan, folder)
        try:
            job.start()
            ended = wait_for("their end", lambda: _codes(job), 150)
            assert ended == [0] * ranks, job.tail()
            text = job.log.read_text(errors="replace")
            return [(job.events / f"told.{rank}").read_text() for rank in range(ranks)], text
        finally:
            job.end()


def _codes(job: RunningJob) -> list[int] | None:
    codes = [one.poll() for one in job.started]
    return None if None in codes else [int(code or 0) for code in codes]


def test_who_gives_up_says_so_and_nobody_waits_for_it() -> None:
    found, lines = lines_of("late")
    assert found == ["None None None None None None / None None None None kill"] * 2
    assert "rank 0 gave up: LateError: another rank did not poll in time" in lines


def test_one_that_fails_before_they_met_keeps_nobody_and_no_other_switches() -> None:
    found, lines = lines_of("broken")
    assert found == ["None None None / None None None None kill"] * 2
    assert "off, the training goes on: ZeroDivisionError: broken" in lines
    assert "rank 1 asks no more" in lines


def test_an_interrupted_poll_keeps_nobody() -> None:
    found, lines = lines_of("interrupted")
    assert found == [
        "None None None None None None",
        "None None interrupted None None None",
    ]
    assert "rank 1 asks no more" in lines


def test_no_group_of_the_job_outlives_a_wait() -> None:
    found, lines = lines_of("shorter")
    assert found == ["None None None None None", "None None None None"]
    assert "did not come to this poll in time" in lines


def test_who_keeps_the_store_ends_when_all_have_read_there_that_they_end() -> None:
    found, _ = lines_of("host")
    assert found == ["None None None None kill"] * 2


def test_ranks_outside_the_group_are_not_waited_for() -> None:
    found, lines = lines_of("group", ranks=3)
    assert found == ["None None None None kill"] * 2 + ["None None"]
    assert "this rank is not in their group" in lines


def test_what_all_obey_reaches_a_rank_that_was_interrupted_after_they_met() -> None:
    found, lines = lines_of("verdict")
    assert found == ["None None None None alarm kill", "None None None None kill"]
    assert "are off" not in lines


def test_who_is_interrupted_before_all_have_met_stops_nobody() -> None:
    found, lines = lines_of("waiting")
    assert found == ["None None None None None None", "None None None None alarm None None"]
    assert "rank 1 gave up: Alarm" in lines


def test_who_is_interrupted_in_the_first_exchange_keeps_nobody_and_no_group_of_the_job() -> None:
    found, lines = lines_of("making")
    assert found == ["None None None / 2", "None alarm None / 2"]
    assert "rank 1 asks no more" in lines


def test_a_store_that_refuses_one_rank_keeps_the_others_no_longer_than_a_poll() -> None:
    found, lines = lines_of("unmade")
    assert found == ["None None None"] * 2
    assert "OSError: no device" in lines


def test_no_port_is_opened_and_a_rank_without_a_file_left_agrees_as_before() -> None:
    found, lines = lines_of("full")
    assert found == ["None None None None None None kill / set()"] * 2
    assert "are off" not in lines


def test_a_job_that_makes_its_groups_anew_has_its_switches_still() -> None:
    found, lines = lines_of("anew")
    assert found == ["None None None None / None None None None kill"] * 2
    assert "are off" not in lines


def test_what_an_earlier_launch_has_left_at_the_store_is_nobodys_concern() -> None:
    found, _ = lines_of("again")
    assert found == ["None None None None None None / None None None None kill"] * 2


def test_an_exchange_that_is_pending_keeps_no_process_from_its_end() -> None:
    found, _ = lines_of("leaves")
    assert found == ["None None None gone", "None None None None"]


def test_a_store_whose_host_is_stopped_keeps_nobody() -> None:
    found, lines = lines_of("stopped", ranks=3)
    assert found == ["None None None None None None None"] * 2 + [""]
    assert "the job's store does not answer" in lines


def test_an_answer_of_the_store_that_comes_as_a_rank_ends_does_it_no_harm() -> None:
    found, lines = lines_of("ending", ranks=3)
    assert found == ["None None None"] * 2 + [""]
    assert "terminate" not in lines
