"""Stalls that are told for all nodes: of runs without a rank here, and of runs of which ranks had ended badly before."""

import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from mldebug.cluster.merge import MergedRun
from mldebug.cluster.messages import AnnouncedExit
from mldebug.core.model import Confidence, QueriedNodes, Verdict
from mldebug.core.report_model import Report
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.model import AttemptExit, RankExit
from mldebug.stall.decision import StallWatch
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import Stage, StallDecision
from mldebug_agents.incidents.manager import IncidentManager
from mldebug_agents.incidents.remote import RemoteCases
from mldebug_agents.state.store import StateStore
from mldebug_agents.state.writer_thread import Work
from mldebug_agents.watch.runs import Run
from shared.cluster.nodes import merged
from shared.cluster.nodes import run as captures_of


class Books(StateStore):
    """A ledger whose memory lives on; each report as it was written."""

    opened = True

    def __init__(self, memos: dict[str, bytes]) -> None:
        self.reported, self.reports, self.dropped = memos, dict[str, Report](), list[str]()
        self.archive = self  # type: ignore[assignment]

    def remember(self, name: str, data: bytes) -> None:
        self.reported[name] = data

    def memo(self, name: str) -> bytes:
        return self.reported[name]

    def memos(self, beginning: str) -> tuple[str, ...]:
        return tuple(
            name for name, value in self.reported.items() if value and name.startswith(beginning)
        )

    def report(self, report_id: str, work: Work, *_: object) -> None:
        work()

    def save(
        self, report: Report, html: str, evidence: Mapping[str, bytes], owner_uid: int = 0
    ) -> Path:
        self.reports[report.id] = report
        return Path()

    def prune(self) -> tuple[str, ...]:
        return ()

    def drop(self, report_id: str) -> None:
        assert self.reports, "for a moment there is no report at all"
        self.dropped.append(report_id)

    def keep(self, *_: object) -> None:
        """Nobody asks."""


@pytest.fixture
def all_nodes() -> MergedRun:
    return merged(captures_of(3, 2)).runs[0]


def crash(all_nodes: MergedRun) -> tuple[Run, AttemptExit]:
    """Rank 5 of the third node dies of SIGSEGV."""
    job = all_nodes.captures[2].job
    gone = RankExit(
        rank=5, pid=7, at=time.time() - 2.0, moment=1, status=11, source="its exit status"
    )
    ending = AttemptExit(job=job, identities=job.ranks, exits=(gone,), living=(4,))
    return Run(job, StallWatch(StallSettings())), ending


def test_who_coordinates_from_outside_goes_on_after_a_restart(all_nodes: MergedRun) -> None:
    books = Books({})
    IncidentManager(books).remote.together(
        None, "first", all_nodes.captures, all_nodes.queried, "captured 3 nodes"
    )
    later = Books(books.reported)
    incidents = IncidentManager(later)
    assert tuple(incidents.remote.cases) == ("first",)
    incidents.remote.rename_case("first", "again")
    incidents.remote.close_case("again", "ended", "no node shows the job any more")
    assert later.dropped == ["first"]
    assert (later.reports["again"].state, len(later.reports["again"].nodes)) == ("ended", 3)
    assert tuple(IncidentManager(Books(books.reported)).remote.cases) == ()


def test_a_case_of_another_version_is_none() -> None:
    assert tuple(RemoteCases(Books({"case:x": b"{}"}))) == ()


def test_ranks_that_crashed_are_the_cause_of_the_hang_of_the_others(all_nodes: MergedRun) -> None:
    run, ending = crash(all_nodes)
    alone = IncidentManager(Books({}))
    alone.failed(run, ending, judge_exit(ending))
    assert not alone.failures.recent()  # nobody will ask, and captures are large
    there = IncidentManager(Books({}), keep_failures=True)
    there.failed(run, ending, judge_exit(ending))
    (result,) = there.failures.recent().values()
    cause = AnnouncedExit(incident=result.incident.id, diagnosis=result.diagnosis)

    books = Books({})
    here = IncidentManager(books)
    whole = here.remote.together(
        None, cause.incident, all_nodes.captures[:2], QueriedNodes(), "captured 2 nodes", cause
    )
    assert [(one.rank, one.node) for one in whole.diagnosis.culprits] == [(5, "a3")]
    assert (whole.diagnosis.verdict, whole.diagnosis.confidence) == (
        Verdict.RANK_EXITED,
        Confidence.HIGH,
    )
    report = books.reports[cause.incident]
    assert report.diagnosis.summary.startswith("Rank 5 was killed by SIGSEGV")
    assert "since then: " in report.diagnosis.summary


def test_where_the_crash_was_here_the_report_of_it_goes_on(all_nodes: MergedRun) -> None:
    """The coordinator itself has lost the rank: one report, with the end and with all nodes."""
    run, ending = crash(all_nodes)
    books = Books({})
    incidents = IncidentManager(books)
    incidents.failed(run, ending, judge_exit(ending))
    assert run.incident is not None
    incident = run.incident.id
    incidents.remote.together(
        run, incident, all_nodes.captures, all_nodes.queried, "captured 3 nodes"
    )
    report = books.reports[incident]
    assert (report.kind, len(report.nodes)) == ("abnormal_end", 3)
    assert [one.rank for one in report.diagnosis.culprits] == [5]
    assert incidents.counts == {"abnormal_end/rank_exited": 1}


def test_another_id_is_written_before_the_old_one_goes(all_nodes: MergedRun) -> None:
    books = Books({})
    incidents = IncidentManager(books)
    run = Run(all_nodes.captures[0].job, StallWatch(StallSettings()))
    incidents.remote.called(run, "second", "n2: no step")
    incidents.captured(run, all_nodes.captures[0])
    books.reports.clear()
    incidents.remote.called(run, "first", "n2: no step")
    assert (list(books.reports), books.dropped) == (["first"], ["second"])


@pytest.mark.parametrize("known", [False, True])
def test_an_id_that_nobody_was_told_of_gives_way(all_nodes: MergedRun, known: bool) -> None:
    """Several nodes notice it in the same second: what one has held back takes the id of the others, however they sort."""
    books = Books({})
    incidents = IncidentManager(books)
    run = Run(all_nodes.captures[0].job, StallWatch(StallSettings()))
    incidents.open(run, StallDecision(stage=Stage.BLAMED, sentence="no step", key="k"))
    assert run.incident is not None
    own = run.incident.id
    if known:
        incidents.captured(run, all_nodes.captures[0])
    incidents.remote.called(run, "later than any", "n2: no step")
    incidents.captured(run, all_nodes.captures[0])
    assert list(books.reports) == [own if known else "later than any"]


def test_an_id_that_was_told_without_a_capture_stays_or_its_report_moves(
    all_nodes: MergedRun,
) -> None:
    """Also after a restart, when the report is on disk and nobody here has judged it yet."""
    books = Books({})
    incidents = IncidentManager(books)
    run = Run(all_nodes.captures[0].job, StallWatch(StallSettings()))
    incidents.open(run, StallDecision(stage=Stage.BLAMED, sentence="no step", key="k"))
    incidents.unseen(run)
    (own,) = books.reports
    run.judgement = None
    incidents.remote.called(run, "later than any", "n2: no step")
    assert (list(books.reports), run.incident and run.incident.id) == ([own], own)
    incidents.remote.called(run, "0", "n2: no step")  # before any
    assert (list(books.reports), books.dropped) == ([own, "0"], [own])


def test_a_stall_that_was_told_alone_first_is_counted_once(all_nodes: MergedRun) -> None:
    books = Books({})
    incidents = IncidentManager(books)
    run = Run(all_nodes.captures[0].job, StallWatch(StallSettings()))
    incidents.remote.called(run, "first", "n2: no step")
    assert run.incident is not None
    run.incident = msgspec.structs.replace(run.incident, shared=False)
    incidents.captured(run, all_nodes.captures[0])
    incidents.remote.together(
        run, "first", all_nodes.captures, all_nodes.queried, "captured 3 nodes"
    )
    assert sum(incidents.counts.values()) == 1


def test_who_reported_alone_and_comes_back_says_what_all_have_come_to(all_nodes: MergedRun) -> None:
    """What more nodes have seen goes before what fewer have, whoever says it last."""
    run = Run(all_nodes.captures[2].job, StallWatch(StallSettings()))
    books = Books({})
    incidents = IncidentManager(books)
    incidents.remote.called(run, "first", "n3: no step")
    incidents.remote.together(
        run, "first", all_nodes.captures[2:], QueriedNodes(), "captured 1 node"
    )
    alone = books.reports["first"].diagnosis.summary

    three = incidents.remote.together(
        None, "x", all_nodes.captures, all_nodes.queried, "captured 3 nodes"
    )
    three = msgspec.structs.replace(three, report="first", node="n1")
    incidents.remote.add_whole(run, three)
    assert books.reports["first"].diagnosis.summary == three.diagnosis.summary != alone
    fewer = msgspec.structs.replace(three.diagnosis, summary="of nobody")
    assert run.incident is not None
    changed = msgspec.structs.replace(run.incident, node_captures=all_nodes.captures)
    run.incident = changed
    incidents.remote.add_whole(run, msgspec.structs.replace(three, nodes=1, diagnosis=fewer))
    assert books.reports["first"].diagnosis.summary == three.diagnosis.summary


def quiet(run: Run) -> list[float]:
    """For how long it had been, at the captures of its incident."""
    return [one.quiet_seconds for one in run.incident.captures] if run.incident else []


@pytest.mark.parametrize("since", [-30.0, 3600.0])
def test_a_stall_that_nobody_closed_does_not_take_the_next_one(
    all_nodes: MergedRun, since: float
) -> None:
    """Whoever had told of it is gone; `since`: seconds from when it was told to the last progress before this one."""
    books, here = Books({}), all_nodes.captures[0]
    incidents = IncidentManager(books)
    run = Run(here.job, StallWatch(StallSettings()))
    incidents.remote.called(run, "first", "n2: no step")
    incidents.captured(run, here)
    assert run.incident is not None
    difference = run.incident.detected_at - 7200.0
    run.incident = msgspec.structs.replace(run.incident, detected_at=difference)
    run.capture = later = msgspec.structs.replace(here, quiet_seconds=99.0)
    stalled_since = time.monotonic() - 7200.0 + since
    incidents.open(run, StallDecision(stage=Stage.BLAMED, sentence="no step", key="k", stalled_since=stalled_since))  # fmt: skip
    assert run.incident is not None
    if since < 0:  # the same stall, noticed here later
        assert (run.incident.id, quiet(run)) == ("first", [here.quiet_seconds])
        return
    assert run.incident.id != "first"
    assert quiet(run) == [later.quiet_seconds]
    assert (books.reports["first"].state, len(books.reports["first"].captures)) == ("recovered", 1)


def test_a_stall_that_moves_again_while_others_are_waited_for_is_none(all_nodes: MergedRun) -> None:
    """No report, no alarm, and no capture of it is left for the next one."""
    books = Books({})
    incidents = IncidentManager(books)
    run = Run(all_nodes.captures[0].job, StallWatch(StallSettings()))
    stall = StallDecision(stage=Stage.BLAMED, sentence="no step", key="k")
    incidents.open(run, stall, hold=True)
    run.capture = all_nodes.captures[0]
    incidents.withdraw(run, "moves again")
    assert (run.incident, run.capture, dict(incidents.counts), books.reports) == (
        None,
        None,
        {},
        {},
    )

    incidents.open(run, stall, hold=True)
    incidents.remote.called(run, "first", "n2: no step")  # others know it: it is told
    incidents.captured(run, all_nodes.captures[0])
    incidents.withdraw(run, "moves again")
    assert books.reports["first"].state == "recovered"
