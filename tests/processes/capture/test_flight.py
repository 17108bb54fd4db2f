"""Real jobs under `mldebug run` that hang on one and the same line: their Flight Recorders tell who is behind.

Stacks are the same on all ranks, so without the hook nobody may be named.
"""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from processes.harness import PACE, Plan, RunningJob, mldebug, running, state_of, wait_for
from processes.incidents.watching import RunningAgent, settings, watching
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(400)]
need_torch("the scenarios train with PyTorch")


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    """One that watches for long enough that a slow machine is no stall."""
    folder = tmp_path_factory.mktemp("agent")
    with watching(folder, settings(folder, stall="{timeout: 15s, interval: 1s}")) as one:
        yield one


@pytest.mark.parametrize(("fault", "call"), [("same_line", 121), ("first_use", 1)])
def test_off_by_one_on_the_same_line_is_named_by_dump_and_agent(
    agent: RunningAgent, fault: str, call: int
) -> None:
    """At any call of the second group, and at its very first, which no recorder of the culprit knows."""
    with running(Plan(fault, hook=True, after=60)) as job:
        job.wait_until_stuck()
        answer = mldebug(job, "dump", "--json", "--pid", str(job.ranks[0]))
        (report,) = wait_for("the agent's report", lambda: agent.reports(job), 90)
        for one in (answer.report, report):
            diagnosis = one["diagnosis"]
            assert [culprit["rank"] for culprit in diagnosis["culprits"]] == [2], diagnosis
            assert (diagnosis["verdict"], diagnosis["confidence"]) == (
                "collective_mismatch",
                "high",
            )
            assert re.match(
                rf"Rank 2 has not called all_reduce {call} of group 1, in which ranks 0-1,3 wait: "
                r"it waits in all_reduce 301 of group 0 instead at reduce_in_order ",
                diagnosis["summary"],
            ), diagnosis
            last = {rank["rank"]: rank["last_collective"] for rank in one["ranks"]}
            assert last[0] == last[1] == last[3] == f"all_reduce {call} of group 1"
            assert last[2] == "all_reduce 301 of group 0"
        assert all(state_of(pid) == "S" for pid in job.ranks.values())


def test_of_a_rank_that_sleeps_it_is_said_what_it_left() -> None:
    with running(Plan("sleep", hook=True)) as job:
        job.wait_until_stuck()
        diagnosis = mldebug(job, "dump", "--json", "--pid", str(job.ranks[0])).report["diagnosis"]
        assert [culprit["rank"] for culprit in diagnosis["culprits"]] == [2], diagnosis
        assert re.fullmatch(
            r"Rank 2 left all_reduce (\d+) of group 0 and since then sleeps in .*; "
            r"ranks 0-1,3 wait in all_reduce \d+ of group 0 at .*",
            diagnosis["summary"],
        ), diagnosis


def test_without_the_hook_it_stays_unknown() -> None:
    with running(Plan("same_line")) as job:
        job.wait_until_stuck()
        diagnosis = mldebug(job, "dump", "--json", "--pid", str(job.ranks[0])).report["diagnosis"]
        assert (diagnosis["verdict"], diagnosis["culprits"]) == ("unknown", [])


def test_the_victim_of_a_send_that_was_left_out_is_not_named() -> None:
    """Rank 1 waits with the others by now, and its victim is the only one behind; gloo records no receive."""
    with running(Plan("no_send", world_size=3, struck=(1,), hook=True)) as job:
        job.wait_until_stuck()
        report = mldebug(job, "dump", "--json", "--pid", str(job.ranks[0])).report
        diagnosis = report["diagnosis"]
        assert diagnosis["culprits"] == [], diagnosis
        assert (diagnosis["verdict"], diagnosis["confidence"]) == ("collective_mismatch", "low")
        assert re.fullmatch(
            r"Rank 2 waits in recv at hand_on .* and has not called all_reduce \d+ of group 0, in which ranks 0-1 "
            r"wait; whom it waits for no recorder tells",
            diagnosis["summary"],
        ), diagnosis


def test_a_job_that_is_asked_trains_on_to_the_same_end() -> None:
    """Asked while one rank is stopped and the other hangs in a collective, and again while both train."""
    result, alone = losses(ask=True), losses(ask=False)
    assert result == alone
    assert len(result) == 40


def losses(*, ask: bool) -> list[str]:
    """What a job of 200 slow steps says of its loss, to its end; all files of its hooks are gone with it."""
    pace = PACE if ask else ()  # it lives until it is asked twice
    options = ("--steps", "200", *pace)
    plan = Plan("slow", world_size=2, struck=(0,), hook=True, options=options)
    with running(plan) as job:
        job.wait_for_step(20)
        if ask:
            ask_twice(job)
        files = [path for pid in job.ranks.values() for path in left_by(pid)]
        assert any(path.suffix == ".flight" for path in files) == ask
        assert job.started[0].wait(200) == 0, job.tail()
        assert not any(path.exists() for path in files)
        return re.findall(r"step \d+ loss [\d.]+", job.log.read_text())


def ask_twice(job: RunningJob) -> None:
    """The stopped rank is not asked, and lives on; the one that waits for it tells what it waits in."""
    stopped = job.ranks[1]
    os.kill(stopped, signal.SIGSTOP)
    wait_for("it to stop", lambda: state_of(stopped) == "T")
    report = mldebug(job, "dump", "--json", "--pid", str(job.ranks[0])).report
    assert [one["rank"] for one in report["diagnosis"]["culprits"]] == [1]
    assert " of group 0" in report["ranks"][0]["last_collective"]
    assert not any(path.suffix == ".flight" for path in left_by(stopped))
    os.kill(stopped, signal.SIGCONT)
    step = job.step(0)
    job.wait_for_step(step + 5)
    mldebug(job, "dump", "--json", "--pid", str(job.ranks[0]))
    assert all(any(path.suffix == ".flight" for path in left_by(pid)) for pid in job.ranks.values())


def left_by(pid: int) -> list[Path]:
    return list(Path("/dev/shm").glob(f"mldebug-{pid}-*"))
