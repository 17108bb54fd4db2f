"""When the ranks of a run are sampled, and how a slowdown opens, goes on and closes."""

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from mldebug.core.model import Job, RankIdentity
from mldebug.core.report_model import Report
from mldebug.goodput.comparison.blocked_calls import IN_A_ROW, RUNNING, BlockedCalls, Glance
from mldebug.goodput.evidence import RankEvidence, RankShares
from mldebug.goodput.speed_trend import SpeedTrend
from mldebug.goodput.straggler import LONG, STRETCHES, SampledStretch, Slowness
from mldebug.incidents.incident import Incident
from mldebug.incidents.judge import judge
from mldebug.stall.decision import StallWatch
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import RunLook, Stage, StallDecision
from mldebug_agents.incidents.manager import IncidentManager
from mldebug_agents.storage.slow_mounts import with_slow_mounts
from mldebug_agents.system.workers import Result
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.runs import Run
from mldebug_agents.watch.slowness_watch import WARM, WARM_STEPS, SlownessWatch
from mldebug_agents.watch.wait_sampler import SampleOrder

PACE = 300.0
FIRST = 10 + WARM_STEPS  # the second look finds the first new step
WATCHING = StallDecision(stage=Stage.WATCHING, sentence="")


class WrittenReports:
    """Stands in for the state store: each report as it was written."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.kept: list[Incident | None] = []
        self.archive = self

    def keep(self, job_id: str, memory: object, incident: Incident | None) -> None:
        self.kept.append(incident)

    def report(self, report_id: str, work: Callable[[], None], *_: object) -> None:
        work()

    def save(self, report: Report, html: str, evidence: object, owner_uid: int = 0) -> None:
        assert html.rstrip().endswith("</html>")
        self.reports.append(report)

    def prune(self) -> None:
        """Nothing is too old."""


class Node:
    """A watch of one run of four ranks, with a clock of its own. `waiting`: what the next samples show, by rank."""

    def __init__(self, ranks: int = 4, world_size: int = 4) -> None:
        self.now = 0.0
        self.store = WrittenReports()
        self.incidents = IncidentManager(self.store)  # type: ignore[arg-type]
        self.orders: list[SampleOrder] = []
        self.requests: list[float] = []
        self.ordered_at = 0.0
        self.glances: list[float] = []
        self.has_syscalls = True  # the kernel tells them
        self.watch = SlownessWatch(self._put, self.incidents, lambda: self.now)
        identities = tuple(
            RankIdentity(rank=n, world_size=world_size, pid=100 + n, node="a1")
            for n in range(ranks)
        )
        self.job = Job(
            id="j", name="train.py", launcher="torchrun", world_size=world_size, ranks=identities
        )
        self.run = Run(self.job, StallWatch(StallSettings()))
        self.run.decide(WATCHING)
        self.waiting: list[float] = [0.3] * ranks
        self.on_gpu = 0.0  # the part of the waiting
        self.evidence = [RankEvidence()] * ranks
        self.loading = [0.0] * ranks
        self.slow: dict[str, str] = {}  # what is slow, by device
        self.step, self.step_seconds = 0.0, 0.5

    def _put(self, order: SampleOrder) -> bool:
        (self.glances if order.glance else self.requests).append(self.now)
        self.ordered_at = self.now
        self.orders.append(order)
        return True

    def play(self, seconds: float) -> list[float]:
        """Let time pass; each order of stacks is carried out within 5 s, a glance at once. Returns when stacks were ordered."""
        begun, self.requests, self.glances = self.now, [], []
        while self.now < begun + seconds:
            self.now += 1.0
            self.step += 1.0 / self.step_seconds
            if self.now % 5 == 0:
                look = RunLook(at=self.now, run="j")
                self.run.update(JobLook(job=self.job, look=look, step=int(self.step)))
            self.watch.tick({"j": self.run}, PACE, self.with_mounts)
            if self.orders and self.orders[-1].glance:
                self.glanced()
                self.watch.tick({"j": self.run}, PACE, self.with_mounts)
            if self.orders and self.now >= self.ordered_at + 5:
                self.answer()
        return [at - begun for at in self.requests]

    def with_mounts(self, found: Slowness) -> Slowness:
        return msgspec.structs.replace(found, shares=with_slow_mounts(found.shares, self.slow))

    def glanced(self) -> None:
        """Carry out a glance: a wait for a GPU computes, and the other things that a rank does are a call each."""
        ranks = [
            BlockedCalls(rank=n, calls={
                RUNNING: self.on_gpu * wait, "202:1": (1 - self.on_gpu) * wait,
                "0:1": self.loading[n], "230:1": 1 - wait - self.loading[n],
            })
            for n, wait in enumerate(self.waiting)
        ]  # fmt: skip
        glance = Glance(ranks=tuple(ranks if self.has_syscalls else ()), world_size=len(ranks))
        self.watch.on_result(Result("slowness", self.orders.pop(), glance, None), {"j": self.run})

    def answer(self, error: Exception | None = None) -> None:
        """Carry out the order that waits."""
        wobble = 0.01 * (len(self.requests) % 2)
        shares = tuple(
            RankShares(
                rank=n,
                samples=100,
                waiting=wait + wobble * (n % 2),
                on_gpu=self.on_gpu * wait,
                places={"f (t.py)": 0.6},
                evidence=self.evidence[n],
                loading=self.loading[n],
            )
            for n, wait in enumerate(self.waiting)
        )
        stretch = SampledStretch(at=self.now, seconds=5.0, ranks=shares) if error is None else None
        self.watch.on_result(Result("slowness", self.orders.pop(), stretch, error), {"j": self.run})


def test_a_steady_run_is_glanced_at_in_each_interval_and_its_stacks_are_sampled_now_and_then() -> (
    None
):
    node = Node()
    every = IN_A_ROW * PACE
    assert node.play(FIRST + 2 * every + 5) == [FIRST, FIRST + every, FIRST + 2 * every]
    assert node.glances == [FIRST + n * PACE for n in range(2 * IN_A_ROW + 1)]
    assert node.run.slowness is not None
    assert not node.store.reports


@pytest.mark.parametrize("why", ["no syscalls", "they wait for GPUs"])
def test_where_a_glance_shows_nothing_stacks_are_sampled_in_each_interval(why: str) -> None:
    node = Node()
    node.has_syscalls = why != "no syscalls"
    node.on_gpu = float(node.has_syscalls)
    assert node.play(1000) == [FIRST + n * PACE for n in range(4)]


def test_a_rank_that_becomes_slow_while_the_others_only_wait_more_is_found_by_a_glance() -> None:
    """Its steps take no longer, by so much as would wake the watch."""
    node = Node()
    assert len(node.play(2 * PACE)) == 1
    node.waiting[2] = 0.2
    node.play(PACE + 60)
    (report,) = node.store.reports
    assert [one.rank for one in report.diagnosis.culprits] == [2]


def test_ranks_that_all_begin_to_wait_for_data_are_sampled_anew() -> None:
    node = Node()
    node.play(2 * PACE)
    node.loading = [0.3] * 4
    assert len(node.play(PACE)) == 1
    assert node.run.slowness is not None
    assert node.run.slowness.shares[0].loading == 0.3


def test_a_slow_run_is_not_only_glanced_at() -> None:
    node = Node()
    node.waiting[2] = 0.02
    node.play(200)
    assert len(node.play(2 * PACE)) == 2 * STRETCHES
    assert node.glances == []


def test_a_slow_rank_is_confirmed_by_more_samples_and_reported_once() -> None:
    node = Node()
    node.waiting[2] = 0.02
    result = node.play(200)
    assert len(result) == 2 * STRETCHES
    (report,) = node.store.reports
    assert (report.kind, str(report.diagnosis.verdict), report.state) == (
        "slowdown",
        "straggler",
        "open",
    )
    assert [one.rank for one in report.diagnosis.culprits] == [2]
    assert report.gaps == ()
    node.play(2 * PACE)
    assert len(node.store.reports) == 1  # the same rank for the same reason


def test_another_rank_each_time_names_nobody() -> None:
    node = Node()
    put, turns = node.answer, iter(range(100))

    def answer() -> None:
        node.waiting = [0.02, 0.3, 0.3, 0.3] if next(turns) // 3 % 2 else [0.3, 0.3, 0.02, 0.3]
        put()

    node.answer = answer  # type: ignore[method-assign]
    node.play(2 * PACE)
    assert node.store.reports == []


def test_while_a_row_is_taken_another_rank_may_become_the_slow_one() -> None:
    node = Node()
    node.waiting[2] = 0.02
    node.play(FIRST + 4 * 5)
    node.waiting = [0.02, 0.3, 0.3, 0.3]
    node.play(100)
    (report,) = node.store.reports
    assert [one.rank for one in report.diagnosis.culprits] == [0]


def test_a_slowdown_is_over_after_two_rows_without_a_slow_rank() -> None:
    node = Node()
    node.waiting[2] = 0.02
    node.play(200)
    node.waiting[2] = 0.3
    node.play(PACE + 20)
    assert node.store.reports[-1].state == "open"
    node.play(PACE)
    assert (node.store.reports[-1].state, node.run.incident) == ("recovered", None)


READS = "reads of /data (nfs01:/data) take 48 ms instead of 3 ms since 14:02 UTC"


def held(node: Node, ranks: int = 3, device: str = "0:52") -> None:
    """So many ranks wait for files on /data from now on."""
    evidence = RankEvidence(file_waiting=0.5, mount="/data (nfs4)", mount_device=device)
    node.evidence = [evidence if n < ranks else RankEvidence() for n in range(4)]
    node.loading = [0.6 if n < ranks else 0.0 for n in range(4)]


def test_a_run_that_a_slow_mount_slows_down_has_an_incident_that_names_the_mount() -> None:
    """The mount is found to be slow later than the ranks to wait."""
    node = Node()
    node.play(FIRST + 80)
    node.step_seconds = 1.0
    held(node)
    node.play(100)
    assert node.store.reports == [], "no mount is known to be slow"
    node.slow = {"0:52": READS}
    node.play(5)
    (report,) = node.store.reports
    found = report.diagnosis
    assert (report.kind, str(found.verdict), str(found.confidence)) == ("slowdown", "storage_fault", "medium")  # fmt: skip
    assert found.summary == f"R{READS[1:]}; 3 of 4 ranks wait for data: a step takes 2 times as long as it used to"  # fmt: skip
    assert [(one.kind, one.rank, one.reason) for one in found.culprits] == [("mount", 0, READS)]
    node.play(2 * PACE)
    assert len(node.store.reports) == 1
    node.slow, node.loading = {}, [0.0] * 4
    node.evidence = [RankEvidence()] * 4
    node.step_seconds = 0.5
    node.play(3 * PACE)
    assert node.run.incident is None
    assert node.store.reports[-1].state == "recovered"
    assert "no slow mount holds it up any more" in node.store.reports[-1].timeline[-1].what


@pytest.mark.parametrize(
    ("seconds", "ranks", "device"),
    [(0.5, 3, "0:52"), (0.9, 0, "0:52"), (0.9, 3, "0:99")],
    ids=["as fast as ever", "nobody waits there", "another mount"],
)
def test_a_slow_mount_alone_is_no_slowdown(seconds: float, ranks: int, device: str) -> None:
    node = Node()
    node.slow = {"0:52": READS}
    node.play(FIRST + 80)
    node.step_seconds = seconds
    held(node, ranks, device)
    node.play(2 * PACE)
    assert node.store.reports == []


@pytest.mark.parametrize("stage", [Stage.QUIET, Stage.SUSPECT])
def test_what_a_run_waits_for_between_steps_that_are_far_apart_is_told(stage: Stage) -> None:
    """Reads so slow that each step is suspected before it ends. Whoever waits least meanwhile is not named."""
    node = Node()
    node.play(FIRST + 80)
    node.step_seconds = 4.9
    held(node)
    node.waiting[2] = 0.02
    node.slow = {"0:52": READS}
    node.play(20)
    node.run.decide(msgspec.structs.replace(WATCHING, stage=stage))
    node.play(PACE)
    (report,) = node.store.reports
    assert str(report.diagnosis.verdict) == "storage_fault"
    assert "3 of 4 ranks wait for data" in report.diagnosis.summary
    node.run.decide(msgspec.structs.replace(WATCHING, stage=Stage.CONFIRMED))
    assert node.play(2 * PACE) == []


def test_a_slow_rank_stays_named_while_steps_are_far_apart() -> None:
    node = Node()
    node.play(FIRST + 80)
    node.step_seconds = 0.9
    node.waiting[2] = 0.02
    node.play(100)
    assert node.run.slowness is not None
    assert [one.rank for one in node.run.slowness.ranks] == [2]
    node.run.decide(msgspec.structs.replace(WATCHING, stage=Stage.QUIET))
    node.waiting = [0.9] * 4
    node.play(PACE)
    assert [one.rank for one in node.run.slowness.ranks] == [2]


def test_a_slow_mount_that_is_found_later_is_written_into_the_report_of_the_slow_rank() -> None:
    node = Node()
    node.waiting[2] = 0.02
    node.evidence[2] = RankEvidence(file_waiting=0.5, mount="/data (nfs4)", mount_device="0:52")
    node.loading[2] = 0.6
    node.play(200)
    node.slow = {"0:52": READS}
    node.play(5)
    first, last = node.store.reports
    assert last.id == first.id
    assert (str(first.diagnosis.verdict), first.diagnosis.culprits[0].rank) == ("straggler", 2)
    assert not any(READS in one for one in first.diagnosis.evidence)
    found = last.diagnosis
    assert (str(found.verdict), str(found.confidence)) == ("storage_fault", "medium")
    assert re.fullmatch(rf"R{re.escape(READS[1:])}; 1 of 4 ranks waits for data: the others wait for rank 2 \d+ % of the time", found.summary)  # fmt: skip
    assert [(one.kind, one.rank, one.reason) for one in found.culprits] == [("mount", 2, READS)]


def test_of_ranks_that_all_read_a_slow_mount_the_one_that_is_last_is_not_to_blame() -> None:
    node = Node()
    node.play(FIRST + 80)
    held(node, 4)
    node.loading = [0.2, 0.2, 0.9, 0.2]
    node.waiting = [0.7, 0.7, 0.02, 0.7]
    node.slow = {"0:52": READS}
    node.play(2 * PACE)
    found = node.store.reports[-1].diagnosis
    assert str(found.verdict) == "storage_fault"
    assert [(one.kind, one.rank) for one in found.culprits] == [("mount", 2)]


@pytest.mark.parametrize("held_rank", [0, None])
def test_a_slow_rank_that_does_not_wait_for_the_slow_mount_is_to_blame_itself(
    held_rank: int | None,
) -> None:
    """A mount that holds up another rank, or nobody, explains nothing."""
    node = Node()
    node.waiting[2] = 0.02
    if held_rank is not None:
        held(node, 1)
    node.slow = {"0:52": READS}
    node.play(200)
    found = node.store.reports[-1].diagnosis
    assert str(found.verdict) == "straggler"
    assert [one.rank for one in found.culprits] == [2]


def test_another_slow_rank_is_written_into_the_same_report() -> None:
    node = Node()
    node.waiting[2] = 0.02
    node.play(200)
    node.waiting = [0.02, 0.3, 0.3, 0.3]
    node.play(PACE + 30)
    first, *_, last = node.store.reports
    assert last.id == first.id
    assert [one.rank for one in last.diagnosis.culprits] == [0]


def test_a_stall_ends_the_slowdown_and_has_a_report_of_its_own() -> None:
    node = Node()
    node.waiting[2] = 0.02
    node.play(200)
    stalled = StallDecision(stage=Stage.BLAMED, sentence="no step for 62 s", open=True, key="j/0/7")
    node.run.decide(stalled)
    node.incidents.open(node.run, stalled)
    assert node.run.incident is not None
    assert node.run.incident.kind == "stall"
    assert [one.state for one in node.store.reports] == ["open", "ended"]
    assert node.play(2 * PACE) == []


@pytest.mark.parametrize("stage", [Stage.QUIET, Stage.CONFIRMED, Stage.BLAMED])
def test_a_quiet_run_is_not_sampled(stage: Stage) -> None:
    node = Node()
    node.run.decide(msgspec.structs.replace(WATCHING, stage=stage))
    assert node.play(2 * PACE) == []


def test_a_run_with_ranks_on_other_nodes_is_not_compared() -> None:
    """The one that waits least here may be waiting for somebody there."""
    assert Node(ranks=4, world_size=8).play(2 * PACE) == []
    assert Node(ranks=1, world_size=1).play(2 * PACE) == []


def test_a_run_that_becomes_slower_is_sampled_at_once() -> None:
    node = Node()
    node.play(FIRST + 80)
    node.step_seconds = 0.8
    result = node.play(60)
    assert len(result) == STRETCHES  # one alone would hide a rank that is a tenth slower
    assert result[0] <= 15  # two looks, of which the first may have begun before
    assert len(node.play(60)) == 0  # and not again and again


def test_a_failed_sample_leaves_the_run_alone_until_the_next_time() -> None:
    node = Node()
    node.play(FIRST)
    node.answer(OSError("gone"))
    assert node.play(PACE - 10) == []


def test_a_difference_that_stays_unclear_is_given_up_after_a_row() -> None:
    node = Node(ranks=2, world_size=2)
    node.waiting = [0.2, 0.3]
    shares: list[Any] = []
    put = node.answer

    def answer() -> None:
        node.waiting = [0.2, 0.3] if len(shares) % 2 else [0.28, 0.3]
        shares.append(None)
        put()

    node.answer = answer  # type: ignore[method-assign]
    node.waiting = [0.2, 0.3]
    shares.append(None)
    assert len(node.play(200)) <= LONG
    assert node.store.reports == []


def test_an_incident_survives_the_restart_of_an_agent() -> None:
    node = Node()
    node.waiting[2] = 0.02
    node.play(200)
    incident = node.store.kept[-1]
    assert incident is not None
    again = msgspec.json.decode(msgspec.json.encode(incident), type=Incident)
    assert judge(again).diagnosis == judge(incident).diagnosis


def test_a_run_that_reports_no_steps_is_sampled_a_minute_after_it_was_met() -> None:
    node = Node()
    node.step_seconds = 1e9
    assert node.play(100) == [WARM + 1]


@pytest.mark.parametrize(("seconds", "looks"), [(1.0, 2), (0.62, 2), (0.56, 4), (0.54, None)])
def test_a_trend_needs_a_minute_of_steady_steps(seconds: float, looks: int | None) -> None:
    """Much slower steps are believed after two looks, a tenth after four. Looks are 5 s apart, and a step takes 0.5 s before."""
    trend = SpeedTrend()
    for look in range(40):
        trend.add(1000 * look, 500.0 * look)
        assert not trend.is_slower
    slower = (trend.add(39000 + 1000 * n, 19500 + 1000 * seconds * n) or trend.is_slower for n in range(1, 20))  # fmt: skip
    assert next((n for n, found in enumerate(slower, 1) if found), None) == looks


def test_one_slow_look_is_no_trend() -> None:
    trend = SpeedTrend()
    for look in range(40):
        trend.add(10 * look, 5.0 * look)
    for look in range(20):
        trend.add(400 + 10 * look, 205.0 + 5.0 * look + 5.0 * (look >= 5) + 5.0 * (look >= 8))
        assert not trend.is_slower


def beside_others(slower: bool) -> Node:
    """A run of four GPUs whose hosts wait for them; from second 140 on another program computes on that of rank 1."""
    node = Node()
    node.waiting, node.on_gpu = [0.97, 0.98, 0.97, 0.98], 1.0
    node.evidence = [RankEvidence(gpu_neighbour="")] * 4
    node.play(140)
    began = node.now + 20
    node.step_seconds *= 2.0 if slower else 1.0
    node.play(20)
    node.evidence[1] = RankEvidence(gpu_neighbour="x (pid 9)", gpu_neighbour_since=began)
    return node


def test_a_program_on_the_gpu_of_one_rank_is_reported_in_time() -> None:
    node = beside_others(slower=True)
    assert node.watch.is_comparing, "the GPUs are read more often meanwhile"
    node.play(100)
    (report,) = node.store.reports
    assert [one.rank for one in report.diagnosis.culprits] == [1]
    assert "it shares its GPU with x (pid 9)" in report.diagnosis.summary
    node.evidence[1] = RankEvidence(gpu_neighbour="")
    node.step_seconds = 0.5
    node.play(3 * PACE)
    assert node.store.reports[-1].state == "recovered"
    assert not node.watch.is_comparing


def test_a_run_that_stays_slower_for_no_known_reason_costs_no_more_than_others() -> None:
    node = beside_others(slower=True)
    node.evidence[1] = RankEvidence(gpu_neighbour="")
    node.play(2 * PACE)
    assert len(node.play(3 * PACE)) == 3
    assert node.store.reports == []
    assert not node.watch.is_comparing


def test_a_program_on_a_gpu_of_a_run_that_is_no_slower_is_not_reported() -> None:
    node = beside_others(slower=False)
    assert not node.watch.is_comparing
    node.play(3 * PACE)
    assert node.store.reports == []
