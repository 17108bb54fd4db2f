"""What the ranks' hooks say, as reports, step times and snapshots tell it."""

import re

import msgspec
import pytest

from mldebug.core.model import Gap, HookState, Job, RankIdentity
from mldebug.core.report_model import Report
from mldebug.incidents.report.html import render_html
from mldebug.incidents.report.text import report_lines
from mldebug.jobs.heartbeat import RECORD, Heartbeat, hook_summary
from mldebug.jobs.logs.records import LogRecord
from mldebug.stall.decision import StallWatch
from mldebug.stall.log_progress import LogProgress
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import RunLook
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.runs import Run, run_state
from shared.incidents import samples

AHEAD = HookState(step=41, step_age=36.4)
BEHIND = HookState(step=40, step_age=41.0, phase="data_wait", phase_age=40.9)


def report(table: dict[int, HookState], step: int | None = None) -> Report:
    """The sleeping job, whose ranks say this."""
    sample = samples.sleeping()
    ranks = tuple(
        msgspec.structs.replace(
            one, capture=msgspec.structs.replace(one.capture, hook=table.get(one.rank))
        )
        for one in sample.judgement.ranks
    )
    judgement = msgspec.structs.replace(sample.judgement, ranks=ranks)
    captures = tuple(msgspec.structs.replace(one, step=step) for one in sample.captures)
    return samples.report(samples.Sample(judgement, captures))


# --- reports -------------------------------------------------------------------------------------


def test_a_report_tells_step_and_phase_of_each_rank_and_who_is_behind() -> None:
    made = report(dict.fromkeys(range(8), AHEAD) | {3: BEHIND})
    assert (made.job.step, made.job.hooked) == (41, 8)
    by_rank = {one.rank: (one.step, one.step_age, one.phase, one.phase_age) for one in made.ranks}
    assert by_rank[3] == (40, 41.0, "data_wait", 40.9)
    assert by_rank[0] == (41, 36.4, "", None)
    text = " ".join("\n".join(report_lines(made)).split())
    assert "step 41 · hook in all 8 ranks" in text
    assert (
        "Steps, as the ranks say - rank 3: step 40, reached 41 s ago, in data_wait for 41 s"
        " - ranks 0-2,4-7: step 41, reached 36 s ago"
    ) in text


def test_the_page_has_a_column_of_steps_only_where_somebody_tells_them() -> None:
    html = render_html(report({3: BEHIND}))
    assert re.search(r'<td class="k-step">40, in data_wait for 41 s</td>', html)
    assert "no-step" not in re.findall(r'<table id="ranks"([^>]*)>', html)[0]
    assert "hook in 1 of 8 ranks" in html
    untouched = render_html(report({}))
    assert "no-step" in re.findall(r'<table id="ranks"([^>]*)>', untouched)[0]
    assert "started without mldebug run: its ranks have no hook" in untouched


def test_a_job_whose_records_could_not_be_read_is_not_untouched() -> None:
    sample = samples.sleeping()
    unread = Gap(what=RECORD, reason="it could not be read: permission denied", rank=0, pid=7)
    captures = tuple(
        msgspec.structs.replace(one, gaps=(*one.gaps, unread)) for one in sample.captures
    )
    made = samples.report(samples.Sample(sample.judgement, captures))
    assert (report({}).job.hooked, made.job.hooked) == (0, None)
    assert "untouched" not in "\n".join(report_lines(made))


def test_the_step_that_was_watched_counts_before_what_ranks_counted() -> None:
    made = report(dict.fromkeys(range(8), AHEAD), step=12_041)  # the job went on from a checkpoint
    assert made.job.step == 12_041
    assert report({}, step=7).job.step == 7


def test_a_rank_before_its_first_step_says_what_it_does() -> None:
    compiling = HookState(phase="compile", phase_age=700.0)
    text = " ".join("\n".join(report_lines(report({0: compiling}))).split())
    assert "rank 0: no step yet, in compile for 12 min" in text


def test_many_ways_to_be_apart_are_few_lines() -> None:
    by_name = {rank: HookState(step=rank, phase=f"<b>{rank}") for rank in range(8)}
    made = report(by_name)
    html = render_html(made)
    assert "<b>3" not in html.partition("<main")[2].replace("<b>3</b>", "")
    assert "&lt;b&gt;3" in html


# --- what the agent knows ------------------------------------------------------------------------


def beat(step: int | None, at: float, **more: object) -> Heartbeat:
    facts = {"written_at": at, "step": step, "stepped_at": at, "beats": step or 0}
    return Heartbeat(**{**facts, **more})  # type: ignore[arg-type]


def test_moments_become_ages_and_none_is_negative() -> None:
    result = hook_summary(
        beat(5, 100.0, phase="evaluate", phase_since=103.0, scalars={"loss": 1.0}), 102.5
    )
    assert result == HookState(
        step=5, step_age=2.5, phase="evaluate", phase_age=0.0, scalars={"loss": 1.0}
    )
    assert hook_summary(beat(None, 100.0), 102.5) == HookState()


def look(attempt: int = 0, **beats: Heartbeat) -> JobLook:
    job = Job(id="j", name="t", launcher="torchrun", attempt=attempt,
              ranks=(RankIdentity(rank=0, world_size=1, pid=9),))  # fmt: skip
    by_name = {int(name[1:]): one for name, one in beats.items()}
    return JobLook(job=job, look=RunLook(at=1.0), beats=by_name)


def test_the_last_words_of_a_rank_outlive_it_until_another_attempt_begins() -> None:
    run = Run(look().job, StallWatch(StallSettings()))
    run.update(look(r0=beat(5, 1.0), r1=beat(5, 1.0)))
    run.update(look(r1=beat(6, 2.0)))
    assert {rank: one.step for rank, one in run.hook_states.items()} == {0: 5, 1: 6}
    assert set(run_state(run, {}, "n1").hooks) == {1}  # of now
    run.update(look(attempt=1, r1=beat(None, 3.0)))
    assert {rank: one.step for rank, one in run.hook_states.items()} == {1: None}


# --- step times ----------------------------------------------------------------------------------


class Job2:
    """A run whose hooks are looked at every five seconds."""

    def __init__(self) -> None:
        self.progress = LogProgress()

    def see(self, now: float, step: int | None, at: float) -> None:
        self.progress.take_heartbeats({0: beat(step, at), 1: beat(step, at + 0.01)}, now)

    @property
    def counted(self) -> tuple[int, float]:
        times = self.progress.step_times
        return (sum(times.counts), times.seconds) if times else (0, 0.0)


def test_without_a_log_the_hook_tells_how_long_steps_take() -> None:
    job = Job2()
    job.see(100.0, None, 0.0)
    job.see(105.0, 4, 104.0)
    assert job.counted == (0, 0.0)
    job.see(110.0, 9, 109.0)
    job.see(115.0, 14, 114.0)
    assert job.counted == (10, pytest.approx(10.0))
    assert job.progress.hook_seconds == pytest.approx(1.0)
    job.see(120.0, 14, 114.0)
    assert job.counted[0] == 10


def test_a_pause_is_one_long_step() -> None:
    job = Job2()
    for now in (105.0, 110.0):
        job.see(now, int(now) - 100, now - 0.5)
    for now in (115.0, 120.0, 125.0, 130.0):
        job.see(now, 10, 109.5)
    job.see(135.0, 13, 134.5)
    times = job.progress.step_times
    assert times is not None
    assert times.counts[-4:] == (1, 0, 0, 0)  # of 10 to 30 seconds
    assert job.counted == (8, pytest.approx(30.0))


@pytest.mark.parametrize("first", ["log", "hook"])
def test_steps_that_log_and_hook_both_tell_count_once(first: str) -> None:
    job = Job2()
    for number in range(1, 101):
        now = float(number)
        records = (LogRecord(step=number, step_seconds=1.0, format="plain"),)
        if first == "log":
            job.progress.take(records, 10, now, "a")
        job.see(now, number, now - 0.3)
        if first == "hook":
            job.progress.take(records, 10, now, "a")
    assert job.counted[0] in (99, 100)
    assert job.counted[1] == pytest.approx(99.5, abs=0.6)


def test_a_log_that_falls_silent_is_taken_over_by_the_hook() -> None:
    job = Job2()
    for number in range(1, 200):
        now = float(number)
        if number < 20:
            job.progress.take((LogRecord(step=number, format="plain"),), 10, now, "a")
        job.see(now, number, now - 0.3)
    assert 130 < job.counted[0] < 145


def test_another_attempt_that_starts_at_step_1_goes_on_counting() -> None:
    job = Job2()
    for number in range(1, 51):
        job.see(float(number), number, number - 0.3)
    for number in range(51, 81):
        job.see(float(number), number - 50, number - 0.3)
    assert job.counted[0] >= 77
    assert job.counted[1] <= 80
