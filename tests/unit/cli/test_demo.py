"""The demo without a training job: what it follows, what it refuses, and when it is content."""

import io
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from mldebug.core.errors import MldebugError, ToolError
from mldebug.core.model import Culprit
from mldebug.core.report_model import Report
from mldebug_agents.cli.commands.support import demo
from mldebug_agents.support.demo import job as demo_job
from mldebug_agents.support.demo.agent import stage_line
from mldebug_agents.support.demo.job import DemoJob, DemoPlan, DemoStep, job_environment
from mldebug_agents.system.spawn import Completed, FakeSpawner
from shared.incidents.samples import report, sleeping
from shared.system.clocks import Clock

PLAN = DemoPlan(fault="sleep", ranks=3, struck=1)


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


@pytest.fixture
def job(tmp_path: Path, clock: Clock) -> DemoJob:
    starter = FakeSpawner(lambda argv: Completed(argv=argv, returncode=0))
    return DemoJob(starter, PLAN, tmp_path, clock)


def test_steps_are_read_from_the_files_of_the_ranks(job: DemoJob) -> None:
    (job.folder / "progress.1").write_text("12 0.5000")
    assert job.steps() == [DemoStep(), DemoStep(12, "0.5000"), DemoStep()]


def test_the_launcher_is_known_once_a_rank_has_started(job: DemoJob) -> None:
    assert job.launcher_pid == 0
    (job.folder / "started.2").write_text("4711 4700")
    assert job.launcher_pid == 4700


def test_a_job_is_stuck_when_it_was_struck_and_stands(job: DemoJob, clock: Clock) -> None:
    (job.folder / "strike.1").touch()
    assert not job.stuck([DemoStep(5)])
    clock.now += demo_job.STUCK_AFTER
    assert not job.stuck([DemoStep(6)])  # it moved in between
    clock.now += demo_job.STUCK_AFTER
    assert job.stuck([DemoStep(6)])


def test_a_job_that_only_stands_is_not_stuck_yet(job: DemoJob, clock: Clock) -> None:
    job.stuck([DemoStep(5)])
    clock.now += 10 * demo_job.STUCK_AFTER
    assert not job.stuck([DemoStep(5)])
    (job.folder / "strike.1").touch()
    assert not job.stuck([DemoStep(5)])  # since the strike, not since the last step
    clock.now += demo_job.STUCK_AFTER
    assert job.stuck([DemoStep(5)])


def test_a_job_that_ends_early_says_why(tmp_path: Path) -> None:
    stderr = b"W warning\nModuleNotFoundError: No module named 'torch.distributed'\n"
    starter = FakeSpawner(lambda argv: Completed(argv=argv, returncode=1, stderr=stderr))
    with DemoJob(starter, PLAN, tmp_path) as job:
        job._thread.join(10)
        with pytest.raises(ToolError, match="No module named 'torch"):
            job.steps()
    (argv,) = starter.calls
    assert argv[argv.index("--rank") + 1] == "1"


def naming(*ranks: int) -> Report:
    """A report that names these ranks."""
    real = report(sleeping())
    culprits = tuple(
        Culprit(kind="rank", rank=rank, node="here", pid=1000 + rank, reason="sleeps")
        for rank in ranks
    )
    diagnosis = replace(real.diagnosis, culprits=culprits)
    return replace(real, diagnosis=diagnosis)


def test_the_demo_is_content_with_the_struck_rank_alone() -> None:
    assert demo.verdict_on(naming(1), PLAN) == 0


@pytest.mark.parametrize(
    ("ranks", "text"), [((), "nobody"), ((0,), "rank 0"), ((0, 1), "rank 0, ")]
)
def test_the_demo_fails_when_another_rank_is_named(ranks: tuple[int, ...], text: str) -> None:
    with pytest.raises(MldebugError, match=f"rank 1 was struck, but the report names {text}") as e:
        demo.verdict_on(naming(*ranks), PLAN)
    assert e.value.exit_code == 1


def test_a_long_sentence_of_the_agent_goes_on_below_its_beginning() -> None:
    out = io.StringIO()
    Console(file=out, width=40).print(
        stage_line("blamed", "no step for 11 s; rank 2 sleeps in [bold]fetch")
    )
    results = [line.rstrip() for line in out.getvalue().splitlines()]
    assert results == [
        "    stalled: no step for 11 s; rank 2",
        "             sleeps in [bold]fetch",
    ]


def test_the_demo_job_is_no_part_of_a_job_it_is_started_in() -> None:
    own = {"PATH": "/bin", "RANK": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "node7", "HOME": "/root"}
    assert job_environment(own) == {"PATH": "/bin", "HOME": "/root", "OMP_NUM_THREADS": "1"}


def test_without_torch_the_demo_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    with pytest.raises(ToolError) as caught:
        demo.require_torch()
    assert caught.value.way_out.startswith(f"{sys.executable} -m pip install torch")
    assert caught.value.exit_code == 3
