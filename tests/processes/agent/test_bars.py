"""Bars of all libraries under a real agent, all jobs at once: while they train, evaluate and prepare there is no alarm; when they hang
there is one for each, whatever monitors redraw and other threads draw."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from runpy import run_path

import pytest

from mldebug.status.snapshot import RunState
from processes.agent.light import LightJob, light_job
from processes.harness import JOBS, wait_for
from processes.incidents.watching import RunningAgent, settings, watching

pytestmark = [pytest.mark.scenario, pytest.mark.long, pytest.mark.timeout(900)]

BARS = tuple(run_path(str(JOBS / "bars.py"))["BARS"])

PREPARED = 25.0  # seconds: more than the timeout
TRAINED = 150  # steps, with three evaluations of three seconds
Jobs = dict[str, LightJob]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningAgent, Jobs]]:
    folder = tmp_path_factory.mktemp("bars")
    (folder / "agent").mkdir()
    with ExitStack() as stack:
        config = settings(folder / "agent", stall="{timeout: 12s, interval: 1s}")
        agent = stack.enter_context(watching(folder / "agent", config))
        made = {
            bar: stack.enter_context(
                light_job(folder / bar.replace(" ", "-"), script="bars.py", more={"BAR": bar, "PREPARE": str(PREPARED)})
            )
            for bar in BARS
        }  # fmt: skip
        yield agent, made


def run_of(agent: RunningAgent, job: LightJob) -> RunState | None:
    snapshot = agent.snapshot()
    mine = set(job.ranks.values())
    return next((run for run in snapshot.runs if mine & set(run.ranks.values())), None) if snapshot else None  # fmt: skip


def step_of(job: LightJob) -> int:
    file = job.folder / "step"
    return int(file.read_text() or 0) if file.exists() else 0


def reported(agent: RunningAgent, job: LightJob) -> list[list[int]]:
    """Who was named in each report of a job."""
    mine = set(job.ranks.values())
    found = [one for one in agent.reports() if mine & {rank["pid"] for rank in one["ranks"]}]
    return [[one["rank"] for one in report["diagnosis"]["culprits"] or ()] for report in found]


def test_neither_preparation_nor_evaluation_is_a_step_or_an_alarm(jobs: tuple[RunningAgent, Jobs]) -> None:  # fmt: skip
    agent, made = jobs
    table: dict[str, list[int]] = {bar: [0] for bar in made}
    while min(step_of(job) for job in made.values()) < TRAINED:
        for bar, job in made.items():
            run = run_of(agent, job)
            if run is not None and run.step is not None:
                table[bar].append(run.step)
                assert run.step <= step_of(job), bar
        time.sleep(0.5)
    assert {bar: steps == sorted(steps) for bar, steps in table.items()} == dict.fromkeys(
        made, True
    )
    assert min(steps[-1] for steps in table.values()) > 40, table  # an evaluation lies behind each
    assert {bar: reported(agent, job) for bar, job in made.items()} == {bar: [] for bar in made}


def test_each_hang_is_told_with_the_last_step(jobs: tuple[RunningAgent, Jobs]) -> None:
    agent, made = jobs
    for job in made.values():
        job.hang()
    for bar, job in made.items():
        wait_for(f"a report of {bar}", lambda job=job: reported(agent, job), 90)
    named = {bar: reported(agent, job)[0] for bar, job in made.items()}
    assert [
        bar for bar, ranks in named.items() if ranks not in ([], [1])
    ] == []  # rank 0 waits for whoever opens a FIFO
    last = {bar: run.step for bar, job in made.items() if (run := run_of(agent, job))}
    assert last == {bar: step_of(job) for bar, job in made.items()}
