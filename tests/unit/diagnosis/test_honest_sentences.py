"""What a report must never say without evidence: that no rank waits for another, and `<module>` as if it were a place."""

import re

import msgspec
import pytest

from mldebug.core.errors import MldebugError
from mldebug.core.report_model import Report
from mldebug.diagnosis.diagnose import diagnose
from shared.diagnosis.builders import WAITER, capture, frame, process, rank, still
from shared.diagnosis.fieldcases import all_cases, known_report

DUMPS = [(some.folder, one) for some in all_cases() for one in some.cases if one.how == "dumps"]
NOBODY_WAITS = re.compile(r"no(?: |ne of the )ranks? (?:seen )?waits? for another|\bnone waits for another", re.IGNORECASE)  # fmt: skip
NO_PLACE = re.compile(r"(?:(?P<traceback>line \d+, )|\b(?:at|in) )(?:in )?<module>(?! \([^)]*:\d)")
"""A traceback that is quoted tells the line of source before it."""


def _told_without_proof(report: Report) -> list[str]:
    """The sentences of a report that its own ranks do not bear."""
    words = (report.diagnosis.summary, *report.diagnosis.evidence, *(one.doing for one in report.ranks), *report.remarks)  # fmt: skip
    found = [
        one for one in words if any(not place["traceback"] for place in NO_PLACE.finditer(one))
    ]
    waits = any(one.role in ("waiting", "unclear") for one in report.ranks)
    return found + [one for one in words if waits and NOBODY_WAITS.search(one)]


@pytest.mark.parametrize(("folder", "case"), DUMPS, ids=[f"{f.name}/{c.name}" for f, c in DUMPS])
def test_no_answer_to_evidence_from_the_field_says_more_than_it_shows(
    folder: object, case: object
) -> None:
    try:
        report = known_report(folder / case.input)  # type: ignore[operator,attr-defined]
    except MldebugError:
        return
    assert _told_without_proof(report) == []


def _summary(*ranks: object) -> str:
    return diagnose((capture(*ranks, world=len(ranks)),)).diagnosis.summary  # type: ignore[arg-type]


NAP = process("nap (train.py:9)", "<module> (train.py:50)", wchan="hrtimer_nanosleep", syscall="clock_nanosleep", move=still())  # fmt: skip
ELSEWHERE = {
    "a collective": process(*WAITER, move=still()),
    "a lock": process("acquire (lock.py:9)", "<module> (train.py:50)", move=still()),
    "native code that nobody knows": process("step (train.py:9)", "<module> (train.py:50)", native=("f (libx.so)",), move=still()),
}  # fmt: skip


def test_that_nobody_waits_is_said_where_all_ranks_sleep() -> None:
    """A control: else the sentence could be gone and every test below would pass."""
    assert NOBODY_WAITS.search(_summary(*(rank(n, NAP) for n in range(3))))


@pytest.mark.parametrize("who", sorted(ELSEWHERE))
def test_that_nobody_waits_is_not_said_where_one_may(who: str) -> None:
    assert not NOBODY_WAITS.search(_summary(rank(0, NAP), rank(1, NAP), rank(2, ELSEWHERE[who])))


def test_code_outside_of_any_function_is_told_by_its_file_and_line() -> None:
    assert frame("<module> (train.py:50)").place == "train.py:50"
    assert frame("step (train.py:9)").place == "step (train.py:9)"
    assert "<module>" not in _summary(rank(0, process("<module> (train.py:50)", move=still())), rank(1, process(*WAITER, move=still())))  # fmt: skip


def test_a_report_that_says_too_much_is_found() -> None:
    """The check itself can fail."""
    folder, case = next(one for one in DUMPS if one[1].name == "all-in-backward")
    report = known_report(folder / case.input)
    for sentence, ranks in (("Rank 1 sleeps in <module>", report.ranks), ("no rank waits for another: ranks 0-3", (msgspec.structs.replace(report.ranks[0], role="unclear"),))):  # fmt: skip
        altered = msgspec.structs.replace(report, ranks=ranks, diagnosis=msgspec.structs.replace(report.diagnosis, summary=sentence))  # fmt: skip
        assert _told_without_proof(altered) == [sentence]
