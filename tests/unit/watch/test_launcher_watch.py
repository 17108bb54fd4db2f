"""Runs that wait for nodes: when their launcher is captured, who reports, and what is no incident."""

from dataclasses import dataclass, field

import msgspec
import pytest

from mldebug.core.model import (
    Confidence,
    Frame,
    Job,
    NodeCapture,
    NodeWait,
    ProcessCapture,
    ThreadStack,
    Verdict,
)
from mldebug.core.report_model import IncidentState
from mldebug.diagnosis.diagnose import diagnose
from mldebug.diagnosis.node_wait import missing_nodes, wait_words
from mldebug.stall.decision import StallWatch
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import Stage, StallDecision
from mldebug_agents.watch.launcher_watch import LauncherWatch
from mldebug_agents.watch.runs import Run

API = "torch/distributed/elastic/agent/server/api.py"
C10D = ("sleep", "next_rendezvous", "_rendezvous", "_initialize_workers", "main")
STATIC = ("multi_get", "_share_and_gather", "_assign_worker_ranks", "_rendezvous", "main")
CONNECTS = ("__init__", "_create_tcp_store", "create_backend", "main")
AT_EXIT = ("store_timeout", "barrier", "_exit_barrier", "run", "main")
IMPORTS = ("get_data", "exec_module", "_find_and_load")


def job(nodes: int = 2, *present: str, listed: str = "", again: bool = False) -> Job:
    wait = NodeWait(nodes=nodes, endpoint="n1:29400", present=present, again=again)
    return Job(
        id="a", name="train.py", launcher="torchrun", world_size=nodes, launcher_pid=7,
        started_at=1000.0, nodes=("n1",), node_list=listed, waits=wait,
    )  # fmt: skip


def captured(what: Job, *functions: str) -> NodeCapture:
    frames = tuple(Frame(function=one, file=API, path=f"/x/{API}", line=3) for one in functions)
    stacks = (ThreadStack(tid=7, name="MainThread", frames=frames),) if functions else ()
    launcher = ProcessCapture(pid=7, kind="launcher", stacks=stacks)
    return NodeCapture(node="n1", taken_at=1240.0, job=what, launcher=launcher)


# --- words and verdict ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (job(), "waits for nodes, 1 of 2 present since 4 min"),
        (
            job(64),
            "waits for nodes, 1 of 64 present since 4 min; those of other nodes are not counted here",
        ),
        (job(4, "n1", "n2"), "waits for nodes, 2 of 4 present (n[1-2]) since 4 min"),
        (
            job(4, "n1", "n2", listed="n[1-4]"),
            "waits for nodes, 2 of 4 present (n[1-2]) since 4 min; missing: n[3-4]",
        ),
        (job(2, listed="n[1-2]"), "waits for nodes, 1 of 2 present since 4 min; missing: n2"),
    ],
)
def test_how_many_are_there_and_who_is_missing(what: Job, words: str) -> None:
    assert wait_words(what, 1240.5) == words


@pytest.mark.parametrize(
    "what",
    [
        job(4, listed="n[1-4]"),  # nobody counts
        job(3, "n1", "n2", listed="n[1-4]"),  # more were given than the run needs
        job(4, "n1", "n9", listed="n[1-4]"),  # one of another name is there
        job(2, listed="n[1-"),
        job(2),
    ],
)
def test_nobody_is_missing_by_name_where_that_is_not_certain(what: Job) -> None:
    assert missing_nodes(what) == ()


@pytest.mark.parametrize("stands", [C10D, STATIC, CONNECTS])
def test_the_only_node_that_can_be_missing_is_named(stands: tuple[str, ...]) -> None:
    found = diagnose((captured(job(3, "n1", "n3", listed="n[1-3].cluster"), *stands),))
    (culprit,) = found.diagnosis.culprits
    assert (culprit.kind, culprit.node, culprit.rank) == ("node", "n2.cluster", None)
    assert found.diagnosis.verdict is Verdict.INIT_INCOMPLETE
    assert found.diagnosis.confidence is Confidence.MEDIUM
    assert found.stalled


def test_of_two_missing_nodes_none_is_blamed() -> None:
    found = diagnose((captured(job(3, "n1", listed="n[1-3]"), *C10D),)).diagnosis
    assert (found.culprits, found.confidence) == ((), Confidence.LOW)
    assert "missing: n[2-3]" in found.summary


def test_a_launcher_that_stands_elsewhere_waits_for_no_node() -> None:
    found = diagnose((captured(job(2, listed="n[1-2]"), *IMPORTS),)).diagnosis
    assert found.culprits == ()
    assert "has started no rank for 4 min: it stands in get_data" in found.summary


def test_the_barrier_at_the_exit_is_no_stall() -> None:
    found = diagnose((captured(job(again=True), *AT_EXIT),))
    assert (found.stalled, found.diagnosis.verdict) == (False, Verdict.UNKNOWN)


def test_captures_of_several_nodes_count_them() -> None:
    here = captured(job(3, listed="n[1-3]"), *C10D)
    found = diagnose((here, msgspec.structs.replace(here, node="n3"))).diagnosis
    assert [culprit.node for culprit in found.culprits] == ["n2"]


# --- the watch -----------------------------------------------------------------------------------


@dataclass
class Stand:
    """A watch with a clock of its own, and what it ordered."""

    now: float = 1000.0
    orders: list[StallDecision] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.watch = LauncherWatch(
            "n1",
            lambda job, settings: Run(job, StallWatch(settings)),
            lambda _, decision: self.orders.append(decision),
            self,
            lambda: self.now,
        )

    def look(self, *jobs: Job, started: int = 0, seconds: float = 0.0) -> Run | None:
        for _ in range(max(1, int(seconds))):
            self.now += min(1.0, seconds)
            self.watch.look(jobs, frozenset((started,)), StallSettings(init_timeout=300.0))
        return self.watch.runs.get("a")

    def open(self, run: Run, decision: StallDecision) -> None:
        assert decision.open
        self.reported.append("open")

    def captured(self, run: Run, capture: NodeCapture) -> None:
        self.reported.append("captured")

    def close(self, run: Run, state: IncidentState, why: str) -> None:
        self.reported.append(state)


def test_it_is_a_run_at_once_and_captured_in_time() -> None:
    stand = Stand()
    run = stand.look(job())
    assert run is not None
    assert run.decision is not None
    assert (run.decision.stage, stand.orders) == (Stage.WATCHING, [])
    stand.look(job(), seconds=299)
    assert stand.orders == []
    stand.look(job(), seconds=1)
    assert len(stand.orders) == 1
    stand.watch.captured(run, captured(job(), *C10D))
    assert stand.reported == ["open", "captured"]


def test_where_nothing_was_shown_it_is_looked_at_once_a_minute() -> None:
    stand = Stand()
    run = stand.look(job(again=True), seconds=301)
    assert run is not None
    for capture in (captured(job(again=True), *AT_EXIT), captured(job(again=True))):
        stand.watch.captured(run, capture)
    stand.look(job(again=True), seconds=110)
    assert (stand.reported, len(stand.orders)) == ([], 2)


def test_a_launcher_whose_stack_nobody_may_read_is_told_all_the_same() -> None:
    stand = Stand()
    run = stand.look(job(), seconds=301)
    assert run is not None
    stand.watch.captured(run, captured(job()))
    assert stand.reported == ["open", "captured"]


@pytest.mark.parametrize(("started", "state"), [(7, "recovered"), (0, "ended")])
def test_it_is_over_when_the_ranks_come_or_the_launcher_goes(started: int, state: str) -> None:
    stand = Stand()
    stand.look(job())
    assert stand.look(started=started) is None
    assert stand.reported == [state]


def test_of_the_nodes_that_count_each_other_the_first_reports() -> None:
    first, other = Stand(), Stand()
    for stand, names in ((first, ("n2", "n1")), (other, ("n1", "n0"))):
        stand.look(job(4))
        stand.watch.count({"a": names})
        run = stand.look(job(4), seconds=310)
        assert run is not None
        assert run.job.waits is not None
        assert run.job.waits.present == tuple(sorted(names))
    assert (len(first.orders) > 0, other.orders) == (True, [])
