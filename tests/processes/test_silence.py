"""Jobs that look stuck and are not: the agent must not say a word about them, at a timeout of 15 s.

All run at the same time under one agent.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from processes.harness import (
    Plan,
    RunningJob,
    User,
    folder_for,
    running,
    wait_for,
)
from processes.watching import RunningAgent, settings, watching

pytestmark = [pytest.mark.scenario, pytest.mark.timeout(600)]
pytest.importorskip("torch", reason="the scenarios train with PyTorch")

PLANS: dict[str, dict[str, Any]] = {
    "checkpoint": {"struck": (0,)},
    "evaluation": {"struck": (0,)},
    "compile": {"struck": (1,)},
    "child": {"struck": (1,)},
    "silent": {"struck": (1,)},
    "irregular": {"struck": (1,)},
    "ramp": {"struck": (0, 1)},
    "healthy_chatty": {"struck": (1,)},
    "spin_healthy": {"struck": (1,)},
    "done": {"struck": (1,), "options": ("--steps", "120")},
}
PAUSES = ("checkpoint", "evaluation", "compile", "child")  # these tell when they are through
AFTERWARDS = 10  # steps to see before and after the pause


def programs(folder: Path) -> None:
    """Two that work for 40 s, one of them called like a compiler."""
    for name in ("cc1plus", "evaluate"):
        program(folder / name)


def program(path: Path) -> None:
    """A shell script that keeps a core busy."""
    path.write_text("#!/bin/sh\ntimeout 40 sh -c 'while :; do :; done' || true\n")
    path.chmod(0o755)


@pytest.fixture(scope="module")
def watched(user: User, library: Path) -> Iterator[tuple[RunningAgent, dict[str, RunningJob]]]:
    """Every job, seen by the agent through its pause and after it."""
    with folder_for(user) as folder, ExitStack() as stack:
        agent = stack.enter_context(watching(folder, settings(folder), user))
        jobs = {}
        for name, more in PLANS.items():
            own = stack.enter_context(folder_for(user))
            programs(own / "events")
            options = (*more.get("options", ()), "--library", str(library))
            plan = Plan(
                name, world_size=2, after=20, user=user, struck=more["struck"], options=options
            )
            jobs[name] = stack.enter_context(running(plan, own))
        for job in jobs.values():
            job.wait_for_step(20)
        for name in PAUSES:
            jobs[name].wait_for_event("done", PLANS[name]["struck"])
            jobs[name].wait_for_step(jobs[name].step(0) + AFTERWARDS)
        yield agent, jobs


@pytest.mark.parametrize("name", PLANS)
def test_the_agent_is_silent(
    name: str, watched: tuple[RunningAgent, dict[str, RunningJob]]
) -> None:
    agent, jobs = watched
    told = [report["diagnosis"]["summary"] for report in agent.reports(jobs[name])]
    assert told == []


def test_the_runs_were_really_watched(watched: tuple[RunningAgent, dict[str, RunningJob]]) -> None:
    agent, jobs = watched
    for name in sorted(set(PLANS) - {"done"}):
        run = wait_for(f"the agent knows {name}", lambda one=jobs[name]: agent.run_of(one), 20)
        assert run.stage != "blamed", (name, run.sentence)
        assert (run.step is None) == (name == "silent"), (name, run)
    assert agent.run_of(jobs["done"]) is None
    assert "(train.py) is over" in agent.log
