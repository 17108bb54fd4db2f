"""The summary of an attempt that has ended: in the account, in a report, as an alert, and in what `mldebug goodput` prints."""

import msgspec
import pytest

from mldebug.alerts.node_events import together
from mldebug.config.schema import Config, GoodputConfig
from mldebug.core.report_model import GoodputView
from mldebug.goodput.account.job_goodput import AttemptGoodput, JobGoodput, straggler_words
from mldebug.goodput.account.run_summary import (
    SHOWN,
    end_words,
    goodput_view,
    summary_alerts,
    summary_lines,
    view_lines,
)
from mldebug_agents.cli.commands.goodput.goodput import lines

ENDED = 1_700_003_720.0
SLOW = "rank 3 waits only 2 % of the time, and stands idle in fetch (train.py)"


def attempt(**fields: object) -> AttemptGoodput:
    whole = {
        "run": "run1", "attempt": 1, "began": ENDED - 3720, "ended": ENDED, "outcome": "failed",
        "gpu_seconds": {"productive": 7200.0, "stall": 1800.0}, "sentence": "80 % productive; 20 % stalls",
        "stragglers": (SLOW,),
    }  # fmt: skip
    return AttemptGoodput(**(whole | fields))  # type: ignore[arg-type]


def job(*attempts: AttemptGoodput, **fields: object) -> JobGoodput:
    whole = {
        "name": "train.py", "user": "ada", "uid": 7, "began": ENDED - 9000, "at": ENDED, "attempts": 2, "restarts": 1,
        "sentence": "60 % productive", "advice": "advice: oftener", "newest": attempts,
        "gpu_seconds": {"productive": 7200.0},
    }  # fmt: skip
    return JobGoodput(**(whole | fields))  # type: ignore[arg-type]


def test_it_says_how_it_ended_who_was_slow_and_what_the_whole_job_used() -> None:
    assert summary_lines(attempt(), job()) == (
        "failed after 1 h 2 min: 80 % productive; 20 % stalls",
        SLOW,
        "the job so far, of 2 attempts: 60 % productive",
        "advice: oftener",
    )


def test_of_a_single_attempt_the_job_is_not_told_again() -> None:
    words = summary_lines(attempt(stragglers=()), job(attempts=1, advice=""))
    assert words == ("failed after 1 h 2 min: 80 % productive; 20 % stalls",)


@pytest.mark.parametrize(("outcome", "words"), [("well", "ended well"), ("unknown", "ended after"), ("", "ended after")])  # fmt: skip
def test_an_end_that_nobody_saw_is_not_called_good_or_bad(outcome: str, words: str) -> None:
    assert end_words(attempt(outcome=outcome)).startswith(words)
    assert "fail" not in end_words(attempt(outcome=outcome))


def test_ranks_of_the_same_words_are_told_together() -> None:
    found = tuple(straggler_words({3: "waits only 2 %", 1: "waits only 2 %", 0: "waits only 4 %"}))
    assert found == ("rank 0 waits only 4 %", "ranks 1,3 waits only 2 %")


def test_a_report_has_its_figures() -> None:
    view = goodput_view(attempt(), job())
    assert (view.productive_ratio, view.job_restarts, view.outcome) == (0.8, 1, "failed")
    assert msgspec.json.decode(msgspec.json.encode(view), type=GoodputView) == view
    assert view_lines(view)[0] == "2.50 GPU hours of attempt 1: 80 % productive; 20 % stalls"
    assert view_lines(None) == ()


def test_it_is_an_alert_for_ten_minutes_after_the_end() -> None:
    some = [job(attempt(), attempt(attempt=2, ended=None, outcome=""))]
    (one,) = together(summary_alerts(some, ENDED + 5)).alerts
    assert (one.kind, one.severity, one.uid) == ("run_summary", "info", 7)
    assert one.sentence == "train.py failed after 1 h 2 min: 80 % productive; 20 % stalls"
    assert SLOW in one.next_steps
    assert not together(summary_alerts(some, ENDED + SHOWN + 1)).alerts
    assert not together(summary_alerts(some, ENDED - 1)).alerts


def test_nobody_is_sent_one_who_does_not_want_it() -> None:
    assert not Config().goodput.summary
    assert GoodputConfig(summary=True).summary


def test_the_command_prints_the_ends_that_were_last() -> None:
    some = [attempt(attempt=n, ended=ENDED + n) for n in range(5)]
    shown = [line.plain for line in lines(job(*some, attempt(attempt=5, ended=None, outcome="")))]
    ends = [line for line in shown if "attempt " in line and "failed after" in line]
    assert [line.split(":")[0] for line in ends] == [f"  run run1, attempt {n}" for n in (2, 3, 4)]
    assert f"    {SLOW}." in shown
