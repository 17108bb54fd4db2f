"""Judging takes a bounded time in the main loop: what one user's job leaves behind keeps nobody from another's."""

import gc
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec
import pytest

from mldebug.cluster.messages import Whole
from mldebug.core.model import Job, Judgement, NodeCapture, RankIdentity, Verdict
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.incidents.incident import Incident, add_capture
from mldebug.incidents.judge import judge
from mldebug.incidents.report.build import write_report
from mldebug.stall.decision import StallWatch
from mldebug.stall.rules import StallSettings
from mldebug_agents.watch import judging
from mldebug_agents.watch.judging import JudgingShares
from mldebug_agents.watch.runs import Run
from shared.capture.flights import call, group, job, waits_in

OURS, OTHER = 62_001, 62_002


def an_incident(
    captures: tuple[NodeCapture, ...] = (), uid: int = OURS, ranks: int = 0
) -> Incident:
    """A stall with these captures of a job of this user."""
    mine = Job(id="j", name="train.py", launcher="torchrun", uid=uid, world_size=ranks)
    owned = tuple(msgspec.structs.replace(one, job=_owned(one.job, uid)) for one in captures)
    return Incident(id="20261126-000000-j", key="k", job_id="j", job=mine, detected_at=1.0, sentence="no step for 20 s", captures=owned)  # fmt: skip


def _owned(job: Job, uid: int) -> Job:
    ranks = tuple(msgspec.structs.replace(rank, owner=uid) for rank in job.ranks)
    return msgspec.structs.replace(job, uid=uid, ranks=ranks)


def spin(incident: Incident) -> Judgement:
    """What takes for ever in Python code."""
    while True:
        with suppress(Exception):  # as code of ours may have it somewhere
            sum(range(1000))


def worst(world: int) -> NodeCapture:
    """Every Flight Recorder has as many groups and calls as are kept, and no two ranks agree on one."""
    dice = random.Random(1)
    records = {}
    for rank in range(world):
        groups = []
        for number in range(64):
            members = tuple(sorted({rank, *dice.sample(range(world), world // 2)}))
            calls = [call(dice.choice(("all_reduce", "barrier")), dice.randrange(1, 50)) for _ in range(8)]  # fmt: skip
            groups.append(group(*calls, name=str(number), ranks=members))
        records[rank] = tuple(groups)
    return job(records, world=world)


def test_a_judgement_that_takes_for_ever_is_given_up_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judging, "SHARE", 0.2)
    before = signal.getsignal(signal.SIGALRM)
    began = time.thread_time()
    incident = an_incident((job({0: None, 1: None}, world=2),))
    found = JudgingShares(spin).judge(incident)
    assert time.thread_time() - began < 1.0
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert found.diagnosis.verdict is Verdict.UNKNOWN
    assert found.diagnosis.culprits == ()
    assert any("given up after 0.2" in line for line in found.diagnosis.evidence)
    report = write_report(incident, found, 2.0)  # it has the captures all the same
    assert [one.ranks for one in report.captures] == [2]
    assert "given up" in " ".join(report.diagnosis.evidence)


def test_time_in_which_others_had_the_core_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "SHARE", 0.05)

    def slow(incident: Incident) -> Judgement:
        time.sleep(0.3)  # no CPU time
        return judge(incident)

    found = JudgingShares(slow).judge(an_incident())
    assert not any("given up" in line for line in found.diagnosis.evidence)


def test_who_has_used_up_his_share_has_little_left_and_another_has_all_of_his() -> None:
    now = [100.0]
    shares = JudgingShares(spin, clock=lambda: now[0])
    limits: list[float] = []

    def spent(limit: float, uid: int) -> None:
        limits.append(limit)
        shares._use((uid, ""), limit)

    for uid in (OURS, OURS, OTHER):
        spent(shares._left((uid, ""), 0), uid)
    assert limits == [judging.SHARE, judging.LEAST, judging.SHARE]
    now[0] += 60.0 + 2.0
    assert shares._left((OURS, ""), 0) == judging.SHARE
    assert shares._left((OURS, ""), 1 << 20) == judging.MOST


def test_a_thread_that_handles_no_signals_judges_without_a_limit() -> None:
    found: list[Judgement] = []
    thread = threading.Thread(target=lambda: found.append(judging.judge(an_incident())))
    thread.start()
    thread.join(30)
    assert found[0].diagnosis.verdict is Verdict.UNKNOWN


def test_the_worst_recorders_of_a_user_cost_his_share_and_leave_the_other_s_judgement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judging, "SHARE", 0.1)
    monkeypatch.setattr(judging, "LEAST", 0.01)
    hostile = an_incident((worst(96),), OTHER)
    mine = an_incident((job({0: None, 1: None}, world=2),))
    shares = JudgingShares(clock=lambda: 100.0)  # nothing comes back, however long it takes here
    expected = judge(mine)
    with (
        small_heap(),
        suppress_unraisable(),
    ):  # an end may fall into a callback of the collector, and comes again
        began = time.thread_time()
        given_up = [shares.judge(hostile) for _ in range(8)]
        spent = time.thread_time() - began
        others = shares.judge(mine)
    assert all(any("given up" in line for line in one.diagnosis.evidence) for one in given_up)
    assert spent < 1.5, "eight of them cost little more than the share of one user"
    assert others == expected


@contextmanager
def small_heap() -> Iterator[None]:
    """A collection of garbage costs what it does in an agent: all that hundreds of tests have left is not looked through."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def test_an_end_that_is_lost_in_a_finalizer_comes_again() -> None:
    """Python drops what is raised there, whatever it is."""

    class Finalized:
        def __del__(self) -> None:
            spin_for(0.1)

    ended: list[bool] = []

    def work() -> None:
        del_now = Finalized()
        del del_now
        ended.append(True)
        spin_for(5.0)

    with pytest.raises(judging._OutOfTime), suppress_unraisable(), judging.cpu_limit(0.03):
        work()
    assert ended, "the first end was lost"
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def spin_for(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@contextmanager
def suppress_unraisable() -> Iterator[None]:
    """What Python tells of errors that it drops is not wanted here."""
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        yield
    finally:
        sys.unraisablehook = before


def out_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on no judgement has time enough."""
    monkeypatch.setattr(judging, "_SHARES", JudgingShares(spin))
    monkeypatch.setattr(judging, "SHARE", 0.01)
    monkeypatch.setattr(judging, "LEAST", 0.01)


def test_a_second_look_without_time_takes_no_verdict_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The captures of some minutes, or of a launcher's restarts, may use up what the first one left."""
    waits, other = waits_in("all_reduce", 5), waits_in("broadcast", 5)
    capture = job({0: (waits,), 1: (waits,), 2: (waits,), 3: (other,)})
    incident = an_incident((capture,))
    run = Run(incident.job or capture.job, StallWatch(StallSettings()))
    first = run.judge(incident)
    assert first.diagnosis.culprits
    out_of_time(monkeypatch)
    again = msgspec.structs.replace(capture, taken_at=capture.taken_at + 60)
    for _ in range(3):
        found = run.judge(add_capture(run.incident or incident, again))
        assert found.diagnosis.culprits == first.diagnosis.culprits
        assert found.diagnosis.verdict is first.diagnosis.verdict
        assert sum("given up" in line for line in found.diagnosis.evidence) == 1
    ended = msgspec.structs.replace(incident, exit=AttemptExit(job=capture.job))
    assert run.judge(ended).diagnosis.culprits == (), "what was known is of ranks that lived"


def test_what_all_nodes_together_have_shown_needs_no_time_here(monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    out_of_time(monkeypatch)
    given = judge(an_incident((job({0: None, 1: None}, world=2),))).diagnosis
    given = msgspec.structs.replace(given, verdict=Verdict.RANK_EXITED, summary="rank 9 has ended")
    whole = Whole(report="r", node="n", nodes=2, diagnosis=given)
    incident = msgspec.structs.replace(an_incident(), whole=whole)
    assert judging.judge(incident).diagnosis == given


def test_an_end_that_was_not_judged_is_called_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    out_of_time(monkeypatch)
    ranks = tuple(RankIdentity(rank=n, world_size=2, pid=7 + n, start_ticks=9) for n in (0, 1))
    mine = Job(id="j", name="train.py", launcher="torchrun", world_size=2, ranks=ranks)
    incident = Incident(
        id="i", key="k", job_id="j", detected_at=1.0, why="a rank ended", kind="abnormal_end", exit=AttemptExit(job=mine)
    )  # fmt: skip
    found = judging.judge(incident)
    assert found.diagnosis.summary == "A rank ended; its evidence was not judged"
    assert len(found.ranks) == 2
