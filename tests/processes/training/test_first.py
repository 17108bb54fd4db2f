"""One rank first, in real jobs: in order, and where the first one fails, never comes or never ends."""

import pytest

from processes.harness import JOBS, Plan, RunningJob, folder_for, wait_for
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(300)]
need_torch("the scenarios train with PyTorch")

RANKS = 3


class Going(RunningJob):
    """`tests/jobs/first.py` under torchrun."""

    def _script(self) -> list[str]:
        return [str(JOBS / "first.py"), str(self.events), *self.plan.options]


def lines_of(how: str, ranks: int = RANKS, launch: tuple[int, ...] | None = None) -> list[str]:
    """What came of it, rank by rank."""
    plan = Plan(world_size=ranks, struck=(), options=(how,), launch=launch)
    with folder_for(plan.user) as folder:
        job = Going(plan, folder)
        try:
            job.start()
            ended = wait_for("its end", lambda: all_ended(job))
            assert set(ended) == {0}, job.tail()
            return [(job.events / f"told.{rank}").read_text() for rank in range(ranks)]
        finally:
            job.end()


def all_ended(job: RunningJob) -> list[int] | None:
    """The codes of all that were started, once they are there."""
    codes = [one.poll() for one in job.started]
    return None if None in codes else [int(code or 0) for code in codes]


def test_one_goes_first_and_the_others_find_what_it_made() -> None:
    first, *others = lines_of("order")
    assert first == "True:False True:False True:False"
    assert others == ["False:True False:True False:True"] * (RANKS - 1)


def test_where_the_first_one_fails_all_fail_at_once() -> None:
    first, *others = lines_of("fails")
    assert first == "ValueError: no such dataset"
    why = "MainProcessError: rank 0 failed in main_process_first: ValueError: no such dataset"
    assert others == [why] * (RANKS - 1)


def test_words_that_no_store_takes_reach_the_others_all_the_same() -> None:
    _, *others = lines_of("fails_oddly")
    why = r"rank 0 failed in main_process_first: ValueError: no such file: a\udcff"
    assert others == [f"MainProcessError: {why}"] * (RANKS - 1)


def test_what_an_earlier_launch_has_left_at_the_store_is_nobodys_concern() -> None:
    first, *others = lines_of("relaunched")
    assert first == "ValueError True True"
    assert others == ["MainProcessError True True"] * (RANKS - 1)


def test_who_never_comes_is_named() -> None:
    first, *others = lines_of("never_comes")
    assert first == "elsewhere"
    why = "MainProcessError: rank 0 never came to main_process_first: waited 2 s for it"
    assert others == [why] * (RANKS - 1)


def test_who_is_not_done_in_time_is_named() -> None:
    first, *others = lines_of("never_ends")
    assert first == "went through"
    assert others == ["MainProcessError: rank 0 went first and is not done after 2 s"] * (RANKS - 1)


def test_a_store_whose_host_is_stopped_keeps_nobody_for_ever() -> None:
    first, other = lines_of("stopped", ranks=2, launch=(0, 1))  # rank 0 keeps it
    assert first == "went through"  # once it goes on
    why = "the job's store did not answer in main_process_first: waited 12 s for it"
    assert other == f"MainProcessError: {why}"
