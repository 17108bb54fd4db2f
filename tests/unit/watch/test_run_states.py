"""From what the watch saw of a run to what Prometheus is told of it."""

import time

import msgspec
import pytest

from mldebug.core.model import Job, RankIdentity
from mldebug.incidents.incident import Incident
from mldebug.jobs.logs.records import LogRecord
from mldebug.stall.decision import StallWatch
from mldebug.stall.log_progress import LogProgress
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import RunLook, Stage, StallDecision
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.runs import Run, run_state

JOB = Job(
    id="7f3a",
    name="train.py",
    launcher="torchrun",
    uid=1000,
    ranks=(RankIdentity(rank=0, world_size=1, pid=9),),
)


def run(decision: StallDecision | None, look_age: float = 0.0) -> Run:
    made = Run(JOB, StallWatch(StallSettings()))
    made.decision = decision
    made.last_look = JobLook(job=JOB, look=RunLook(at=time.monotonic() - look_age))
    return made


def decision(stage: Stage = Stage.QUIET, **number: float) -> StallDecision:
    return StallDecision(stage=stage, sentence="x", **({"timeout": 60.0} | number))  # type: ignore[arg-type]


def test_progress_is_told_as_a_moment_that_does_not_move_with_the_age_of_the_look() -> None:
    fresh, old = (
        run_state(run(decision(quiet=7.0 - age), age), {}, "n1").progress_at for age in (0.0, 4.0)
    )
    assert fresh == pytest.approx(time.time() - 7, abs=0.5)
    assert old == pytest.approx(fresh, abs=0.5)


@pytest.mark.parametrize(
    "stall_decision",
    [None, decision(Stage.ENDED, timeout=0.0), decision(Stage.WATCHING, timeout=0.0)],
)
def test_a_run_that_is_not_watched_or_has_ended_tells_no_progress(
    stall_decision: StallDecision | None,
) -> None:
    assert run_state(run(stall_decision), {}, "n1").progress_at is None


def test_a_run_that_has_just_recovered_made_progress_now() -> None:
    found = run_state(run(decision(Stage.RECOVERED, timeout=0.0)), {}, "n1").progress_at
    assert found == pytest.approx(time.time(), abs=0.5)


def test_the_step_times_of_the_log_arrive() -> None:
    progress = LogProgress()
    records = tuple(LogRecord(step=step, step_seconds=0.3, format="plain") for step in (1, 2))
    progress.take(records, 10, 1.0)
    one = run(decision())
    assert one.last_look is not None
    one.last_look = msgspec.structs.replace(one.last_look, step_times=progress.step_times)
    found = run_state(one, {}, "n1").step_times
    assert found is not None
    assert sum(found.counts) == 2


def test_an_open_incident_says_its_kind_and_since_when() -> None:
    one = run(decision())
    assert (run_state(one, {}, "n1").incident_kind, run_state(one, {}, "n1").incident_since) == (
        "",
        None,
    )
    one.incident = Incident(id="i", key="k", job_id="7f3a", detected_at=100.0, stalled_since=40.0)
    assert (run_state(one, {}, "n1").incident_kind, run_state(one, {}, "n1").incident_since) == (
        "stall",
        40.0,
    )
    one.incident = Incident(id="i", key="k", job_id="7f3a", detected_at=100.0, kind="abnormal_end")
    assert (run_state(one, {}, "n1").incident_kind, run_state(one, {}, "n1").incident_since) == (
        "abnormal_end",
        100.0,
    )
