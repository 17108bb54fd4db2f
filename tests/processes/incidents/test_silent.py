"""Real jobs on gloo that print no step: each hang is noticed and the culprit named, each slow start is left in peace.

To add a case: a function in tests/jobs/field/silent.py, and a row here.
"""

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from processes.harness import JOBS, Plan, RunningJob, User, folder_for, wait_for
from processes.incidents.watching import Report, RunningAgent, settings, watching
from processes.needs import need_torch

pytestmark = [pytest.mark.scenario, pytest.mark.long, pytest.mark.timeout(1500)]
need_torch("the jobs train with PyTorch")

STALL = os.environ.get("MLDEBUG_TEST_SILENT_STALL", "{timeout: 15s, interval: 1s}")
TOGETHER = 2  # jobs
START = 200.0  # seconds until a fault has struck, or a slow start is over
NOTICED = 240.0  # seconds from the fault to the report: far below the limits for busy ranks
NOBODY: tuple[int, ...] = ()


class Silent(NamedTuple):
    """One job and what its report must be. `named` None: there must be no report."""

    fault: str
    named: tuple[tuple[int, ...], ...] | None = None
    words: str = ""


HANGS = (
    Silent("both_spin", (NOBODY,), "find_packed_sequence_indices"),
    Silent("one_sleeps", ((1,),), "sleeps"),
    Silent("look_again", (NOBODY,), "part"),
    Silent("dead_thread", ((1,),), "wait"),
    Silent("baton", ((1,),), "file_baton|lock|polls"),
    Silent("barrier_at_start", (NOBODY,), "barrier"),
)
STARTS = tuple(map(Silent, ("tokenize", "read_weights", "download")))


class SilentJob(RunningJob):
    """A job of tests/jobs/field/silent.py under torchrun."""

    def _script(self) -> list[str]:
        return [str(JOBS / "field" / "silent.py"), str(self.events), *self.plan.options]

    @property
    def struck(self) -> bool:
        """Whether the fault has come, or a slow start is over."""
        return any(self.events.glob("strike.*"))


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, library: Path) -> Iterator[dict[str, Report | str]]:
    """The first report of each selected job, or why there is none; a few run at the same time, under one agent."""
    calls = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    cases = [one["case"] for one in calls if isinstance(one.get("case"), Silent)]
    with (
        folder_for(User()) as folder,
        watching(folder, settings(folder, stall=STALL)) as agent,
        ThreadPoolExecutor(TOGETHER) as pool,
    ):
        found = pool.map(lambda case: _outcome(case, agent, library), cases)
        yield dict(zip((case.fault for case in cases), found, strict=True))


def _outcome(case: Silent, agent: RunningAgent, library: Path) -> Report | str:
    with folder_for(User()) as folder:
        job = SilentJob(Plan(options=(case.fault, str(library)), world_size=2), folder)
        try:
            job.start()
            wait_for("the fault", lambda: job.struck, START)
            if case.named is None:
                return (agent.reports(job) or [""])[0]
            return wait_for("a report", lambda: (agent.reports(job) or [None])[0], NOTICED)
        except Exception as error:  # noqa: BLE001 - of this job alone, all others are judged
            lines = "\n".join(line for line in agent.log.splitlines() if "silent" in line)
            return f"{type(error).__name__}: {error}\n{job.tail()}\n{lines[-1500:]}"
        finally:
            job.end()


@pytest.mark.parametrize("case", HANGS, ids=lambda case: case.fault)
def test_a_hang_is_noticed(case: Silent, outcomes: dict[str, Report | str]) -> None:
    report = outcomes[case.fault]
    assert not isinstance(report, str), report
    found = report["diagnosis"]
    text = "\n".join((found["verdict"], found["summary"], *found["evidence"]))
    print(f"{case.fault}: {found['confidence']} {report['stalled_since']} {text}")
    named = tuple(culprit["rank"] for culprit in found["culprits"] if culprit["rank"] is not None)
    assert named in (case.named or ()), text
    assert re.search(case.words, text), text


@pytest.mark.parametrize("case", STARTS, ids=lambda case: case.fault)
def test_a_slow_start_is_no_hang(case: Silent, outcomes: dict[str, Report | str]) -> None:
    outcome = outcomes[case.fault]
    assert outcome == "", outcome if isinstance(outcome, str) else outcome["diagnosis"]
