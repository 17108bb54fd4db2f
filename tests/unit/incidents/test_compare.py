"""What moved between two captures of one incident: as data, in words, in the report; and on which capture a report rests."""

import time

import msgspec
import pytest

from mldebug.cli.commands.diagnose import judge as judge_again
from mldebug.core.model import Io, NodeCapture, ProcessCapture, RankCapture, Remark
from mldebug.core.report_model import Change, Report
from mldebug.incidents.compare import RankChange, compare
from mldebug.incidents.incident import Incident, add_capture, add_timeline
from mldebug.incidents.judge import judge
from mldebug.incidents.report.build import write_report
from mldebug.incidents.report.changes import MAX_MOVES, comparison
from mldebug.incidents.report.html import render_html
from mldebug.incidents.report.text import report_lines
from mldebug.incidents.stored_evidence import StoredEvidence
from shared.diagnosis.builders import ALL_REDUCE, WAITER, capture, process, rank
from shared.incidents.report_schema import report_schema
from shared.system.patience import PATIENCE

STRIKE = ("strike (train.py:34)", "<module> (train.py:50)")
BACKWARD = ("backward (train.py:80)", "<module> (train.py:50)")


def counted(
    what: ProcessCapture, cpu: float, switches: int = 0, io: int | None = None
) -> ProcessCapture:
    """The same process with these counters."""
    assert what.state is not None
    main = msgspec.structs.replace(
        what.state.threads[0], cpu_seconds=cpu, voluntary_switches=switches
    )
    result = None if io is None else Io(read_chars=io)
    state = msgspec.structs.replace(what.state, threads=(main,), io=result)
    return msgspec.structs.replace(what, state=state)


def waits(number: int, cpu: float = 0.0, switches: int = 0, io: int | None = None) -> RankCapture:
    return rank(number, counted(process(*WAITER, pid=100 + number), cpu, switches, io))


def at(number: int, frames: tuple[str, ...]) -> RankCapture:
    return rank(number, process(*frames, pid=100 + number))


def later(*ranks: RankCapture, seconds: float = 32.0) -> NodeCapture:
    taken = capture(*ranks)
    return msgspec.structs.replace(taken, taken_at=taken.taken_at + seconds)


def report_of(first: NodeCapture, second: NodeCapture) -> Report:
    """The report of an incident with both captures."""
    new = Incident(id="x", key="x", job_id="j1", detected_at=first.taken_at, sentence="no step")
    incident = add_capture(add_capture(new, first), second)
    return write_report(incident, judge(incident), second.taken_at)


def test_who_moved_is_told_with_both_places() -> None:
    first = capture(waits(0), waits(1), at(2, STRIKE), waits(3))
    report = report_of(first, later(waits(0), waits(1), at(2, BACKWARD), waits(3)))
    assert report.comparison is not None
    words = (
        "ranks 0-1,3 unchanged; rank 2 moved from strike (train.py:34) to backward (train.py:80)"
    )
    assert report.comparison.summary == words
    assert report.comparison.seconds == 32.0
    assert report.timeline[-1].what == f"captured all ranks again, 32 s later: {words}"
    assert report.comparison.changes[1].after == "backward (train.py:80)"
    text = "\n".join(report_lines(report, 80))
    assert "What moved, 32 s later" in text
    assert "  - ranks 0-1,3 unchanged\n" in text
    page = render_html(report)
    assert "<h3>What moved, 32 s later</h3>" in page
    assert "rank 2 moved from strike (train.py:34) to backward (train.py:80)</li>" in page


def test_nothing_moved_is_told_too() -> None:
    report = report_of(capture(waits(0), waits(1)), later(waits(0), waits(1, cpu=0.1, switches=3)))
    assert report.comparison is not None
    assert report.comparison.summary == "nothing moved"
    assert "  - nothing moved" in list(report_lines(report, 80))


def test_the_timeline_is_in_order_of_time_though_a_capture_is_noted_after_what_came_meanwhile() -> (
    None
):
    first = capture(waits(0), waits(1))
    incident = Incident(id="x", key="x", job_id="j1", detected_at=first.taken_at)
    incident = add_timeline(incident, first.taken_at + 0.5, "incident opened")
    incident = add_timeline(add_capture(incident, first), first.taken_at + 1.0, "incident over")
    events = write_report(incident, judge(incident), first.taken_at).timeline
    assert [one.what for one in events] == [
        "captured all ranks",
        "incident opened",
        "incident over",
    ]


def test_one_capture_is_compared_with_nothing() -> None:
    first = capture(waits(0), waits(1))
    incident = Incident(id="x", key="x", job_id="j1", detected_at=first.taken_at)
    incident = add_capture(incident, first)
    report = write_report(incident, judge(incident), first.taken_at)
    assert report.comparison is None
    assert "What moved" not in "\n".join(report_lines(report, 80)) + render_html(report)


CHANGES = [
    ("spins", waits(0), waits(0, cpu=31.4), Change.ACTIVE, "in the same frames, with 98 % CPU"),
    ("polls", waits(0), waits(0, switches=3200), Change.ACTIVE, "in the same frames, with 3,200 context switches"),
    ("reads", waits(0, io=0), waits(0, io=9_000_000), Change.ACTIVE, "in the same frames, with 9 MB read and written"),
    ("its I/O was not readable at first", waits(0), waits(0, io=9_000_000), Change.UNCHANGED, "unchanged"),
    ("counters never read", waits(0), rank(0, process(*WAITER)), Change.UNCHANGED, "unchanged"),
    ("no stack", waits(0), rank(0, process(pid=100)), Change.UNSEEN, "not to be compared: no stack in one of the captures"),
    ("inside one line of the job", waits(0), at(0, ("barrier (torch/distributed/distributed_c10d.py:9)", *WAITER[2:])), Change.MOVED, f"moved from {ALL_REDUCE} to barrier (torch/distributed/distributed_c10d.py:9)"),
    ("an outer line alone", waits(0), at(0, (*WAITER[:3], "<module> (train.py:51)")), Change.MOVED, "moved from <module> (train.py:50) to <module> (train.py:51)"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "change", "words"),
    [one[1:] for one in CHANGES],
    ids=[one[0] for one in CHANGES],
)
def test_what_became_of_one_rank(
    before: RankCapture, after: RankCapture, change: Change, words: str
) -> None:
    (one,) = comparison(capture(before), later(after)).changes
    assert (one.change, one.words) == (change, f"rank 0 {words}")


def test_ranks_that_are_gone_or_came_or_are_others_now_are_told() -> None:
    other = msgspec.structs.replace(
        waits(2), identity=msgspec.structs.replace(waits(2).identity, pid=999)
    )
    first = capture(waits(0), waits(1), waits(2))
    found = comparison(first, later(waits(0), other, waits(3)))
    assert [one.words for one in found.changes] == [
        "rank 0 unchanged",
        "rank 1 gone",
        "rank 3 came",
        "rank 2 came back as another process",
    ]
    assert compare(first, later(waits(0)))[1] == RankChange(1, Change.GONE)


def test_who_works_is_told_apart_from_who_wakes_now_and_then() -> None:
    first = capture(*(waits(number) for number in range(4)))
    after = later(waits(0, cpu=1), waits(1, cpu=1.2), waits(2, cpu=31), waits(3, cpu=32))
    assert comparison(first, after).summary == (
        "ranks 0-1 in the same frames, with 3 to 4 % CPU; ranks 2-3 in the same frames, with 97 to 100 % CPU"
    )


def test_all_ranks_of_a_large_job_stay_few_words() -> None:
    size = 8192
    first = capture(*(waits(number) for number in range(size)), world=size)
    moved = (at(number, (f"f{number} (train.py:9)",)) for number in range(0, size, 2))
    ranks = [*moved, *(waits(number) for number in range(1, size - 1, 2))]  # the last one is gone
    began = time.process_time()
    found = comparison(first, later(*ranks))
    took = time.process_time() - began
    assert len(found.changes) == 1 + MAX_MOVES + 1 + 1
    assert "rank 8191 gone" in [one.words for one in found.changes]
    assert "… (4,095) unchanged; " in found.summary
    assert sum(one.count for one in found.changes) == size
    assert found.changes[-1].words.endswith("moved in 4,088 other ways")
    assert max(len(one.words) for one in found.changes) < 200
    assert len(found.summary) < 500
    assert took < 5 * PATIENCE  # about 1 s on a slow core


def test_a_name_that_a_job_chose_is_harmless() -> None:
    name = "\x1b[31m" + "x" * 5000
    found = comparison(capture(at(0, STRIKE)), later(at(0, (f"{name} (train.py:9)",))))
    assert "\x1b" not in found.summary
    assert len(found.summary) < 300


def test_the_schema_knows_the_comparison() -> None:
    assert "comparison" in report_schema()["$defs"]["Report"]["properties"]


@pytest.mark.parametrize("blamed_later", [False, True])
def test_old_evidence_gives_the_same_again(blamed_later: bool) -> None:
    first = capture(*(waits(number) for number in range(4)))
    second = later(waits(0), waits(1), waits(2), sleeps(3))
    if not blamed_later:
        first, second = later(*second.ranks, seconds=0.0), later(*first.ranks)
    captures = (marked(first, "first"), marked(second, "second"))
    live, again = report_of(*captures), judge_again(StoredEvidence(captures=captures)).report
    for name in ("diagnosis", "comparison", "remarks", "versions", "nodes", "job", "ranks"):
        assert getattr(again, name) == getattr(live, name), name
    assert len(again.captures) == 2


# --- the capture that a report rests on ------------------------------------------------------------


def sleeps(number: int) -> RankCapture:
    return rank(
        number,
        process("nap (train.py:7)", *WAITER[2:], pid=100 + number, wchan="hrtimer_nanosleep"),
    )


def marked(taken: NodeCapture, word: str) -> NodeCapture:
    """With remarks, versions and a step of its own."""
    return msgspec.structs.replace(
        taken,
        remarks=(Remark(kind="odd", message=word),),
        versions={"mldebug": word},
        step=len(word),
    )


@pytest.mark.parametrize("blamed_later", [False, True])
def test_all_of_a_report_rests_on_the_capture_of_its_verdict(blamed_later: bool) -> None:
    first = capture(*(waits(number) for number in range(4)))
    second = later(waits(0), waits(1), waits(2), sleeps(3))
    if not blamed_later:
        first, second = later(*second.ranks, seconds=0.0), later(*first.ranks)
    report = report_of(marked(first, "first"), marked(second, "second"))
    chosen, word = (second, "second") if blamed_later else (first, "first")
    assert [one.rank for one in report.diagnosis.culprits] == [3]
    assert report.versions["mldebug"] == word
    assert report.remarks == (word,)
    assert report.job.step == len(word)
    (node,) = report.nodes
    views = [one for one in report.captures if "this report rests on it" in one.note]
    assert [one.at for one in views] == [node.taken_at]
    assert views[0].ranks == len(chosen.ranks)
    assert report.captures.index(views[0]) == int(blamed_later)
