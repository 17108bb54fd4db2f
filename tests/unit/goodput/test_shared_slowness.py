"""The ranks here of a run over several nodes: sampled when the coordinator calls, not more often, and one node opens the incident."""

import time

import msgspec
import pytest

from mldebug.core.model import Job, RankIdentity
from mldebug.goodput.evidence import RankEvidence, RankShares
from mldebug.goodput.shared_samples import SampleCall, SharedFinding
from mldebug.goodput.straggler import Excess, SampledStretch, Slowness, SlowRank
from mldebug.stall.decision import StallWatch
from mldebug.stall.rules import StallSettings
from mldebug.stall.signals import Stage, StallDecision
from mldebug_agents.system.workers import Result
from mldebug_agents.watch.runs import Run
from mldebug_agents.watch.shared_slowness import MAX_CALLS, SharedSlowness
from mldebug_agents.watch.wait_sampler import SampleOrder

PACE = 300.0
WATCHING = StallDecision(stage=Stage.WATCHING, sentence="")


class NodeOfTwo:
    """Ranks 2 and 3 of four; what was ordered, and which incidents were opened and closed."""

    def __init__(self) -> None:
        self.now = 100.0
        self.orders: list[SampleOrder] = []
        self.slow_ranks: list[tuple[int, ...]] = []
        self.closed: list[str] = []
        self.shared = SharedSlowness(self._put, self, lambda: self.now)
        ranks = tuple(RankIdentity(rank=n, world_size=4, pid=100 + n, node="n2") for n in (2, 3))
        job = Job(id="j", name="train.py", launcher="env", world_size=4, ranks=ranks)
        self.run = Run(job, StallWatch(StallSettings()))
        self.run.decide(WATCHING)

    def _put(self, order: SampleOrder) -> bool:
        self.orders.append(order)
        return True

    def slow(self, run: Run, found: Slowness) -> None:
        self.slow_ranks.append(tuple(one.rank for one in found.ranks))

    def no_longer_slow(self, run: Run, state: str, why: str) -> None:
        self.closed.append(why)

    def tick(self, now: float) -> list[str]:
        self.now, self.orders = now, []
        self.shared.tick({"j": self.run}, PACE)
        return [one.call for one in self.orders]

    def answer(self, call: str) -> None:
        shares = tuple(RankShares(rank=n, samples=100, waiting=0.2) for n in (2, 3))
        order = SampleOrder(self.run.job, call=call)
        stretch = SampledStretch(at=1.0, seconds=5.0, ranks=shares)
        self.shared.on_result(Result("slowness", order, stretch, None))

    def finding(self, row: str, *ranks: int, calm: int = 0) -> None:
        slow = tuple(SlowRank(rank=n, waiting=0.1, excess=Excess(kind="same")) for n in ranks)
        found = SharedFinding(row=row, calm=calm, age=30.0, found=Slowness(ranks=slow, loss=0.2))
        self.shared.found(self.run, found)


def called(name: str, begins_in: float = 3.0) -> SampleCall:
    return SampleCall(call=name, begins_in=begins_in)


def test_a_stretch_is_taken_once_at_its_time_and_sent_with_its_age() -> None:
    node = NodeOfTwo()
    for _ in range(3):
        node.shared.call(node.run, called("a"))  # each announcement is answered with it
    assert [node.tick(100.0), node.tick(102.9), node.tick(103.0), node.tick(104.0)] == [[], [], ["a"], []]  # fmt: skip
    assert node.shared.samples(node.run) is None
    node.now = 108.0
    node.answer("a")
    node.now = 110.0
    samples = node.shared.samples(node.run)
    assert samples is not None
    assert (samples.call, samples.age, [one.rank for one in samples.ranks]) == ("a", 2.0, [2, 3])


def test_an_answer_to_an_older_call_is_dropped() -> None:
    node = NodeOfTwo()
    node.shared.call(node.run, called("a"))
    node.shared.call(node.run, called("b"))
    node.answer("a")
    assert node.shared.samples(node.run) is None


@pytest.mark.parametrize("begins_in", [-1.0, 1e9, float("nan")])
def test_a_call_for_another_time_is_not_taken(begins_in: float) -> None:
    node = NodeOfTwo()
    node.shared.call(node.run, called("a", begins_in))
    assert node.tick(1e6) == []


def test_a_coordinator_cannot_have_a_run_sampled_all_the_time() -> None:
    node = NodeOfTwo()
    taken = 0
    for number in range(100):
        node.tick(100.0 + 2 * number)
        node.shared.call(node.run, called(f"call {number}", 0.0))
        taken += len(node.tick(101.0 + 2 * number))
    assert taken == MAX_CALLS


@pytest.mark.parametrize("stage", [Stage.QUIET, Stage.CONFIRMED, Stage.BLAMED])
def test_a_run_that_is_quiet_meanwhile_is_not_sampled(stage: Stage) -> None:
    node = NodeOfTwo()
    node.shared.call(node.run, called("a"))
    node.run.decide(msgspec.structs.replace(WATCHING, stage=stage))
    assert node.tick(200.0) == []


def test_the_node_of_the_first_slow_rank_opens_the_incident() -> None:
    node = NodeOfTwo()
    node.finding("1", 2)
    node.finding("1", 2)  # said again
    assert node.slow_ranks == [(2,)]
    assert node.run.slowness is not None
    assert node.run.slowness.since == pytest.approx(time.time() - 30.0, abs=5.0)
    node.finding("2", 0, 2)
    assert node.slow_ranks == [(2,)]
    assert node.closed == ["a rank on another node is slow now"]


@pytest.mark.parametrize(
    ("first", "count", "slower", "opened"),
    [(2, 4, 1.8, [()]), (0, 4, 1.8, []), (2, 3, 1.8, []), (2, 4, 0.0, [])],
    ids=["held here", "held elsewhere first", "not all ranks are known", "no slower steps"],
)
def test_the_node_of_the_first_rank_that_waits_for_a_slow_mount_opens_the_incident(
    first: int, count: int, slower: float, opened: list[tuple[int, ...]]
) -> None:
    node = NodeOfTwo()
    node.shared = SharedSlowness(node._put, node, lambda: node.now, lambda _: slower)
    waits = RankEvidence(file_waiting=0.5, mount="/data (nfs4)", mount_slow="reads of /data take 48 ms instead of 3 ms")  # fmt: skip
    shares = tuple(
        RankShares(rank=n, samples=100, waiting=0.2, loading=0.6 if n >= first else 0.0, evidence=waits if n >= first else RankEvidence())
        for n in range(count)
    )  # fmt: skip
    found = SharedFinding(row="1", age=30.0, found=Slowness(shares=shares))
    node.shared.found(node.run, found)
    assert node.slow_ranks == opened


def test_a_slowdown_is_closed_after_two_calm_rows() -> None:
    node = NodeOfTwo()
    node.finding("1", 3)
    node.finding("2", calm=1)
    assert node.closed == []
    node.finding("3", calm=2)
    assert node.closed == ["its ranks wait alike again"]
    assert node.shared.row(node.run) == "3"


def test_another_attempt_begins_anew() -> None:
    node = NodeOfTwo()
    node.shared.call(node.run, called("a"))
    node.tick(103.0)
    node.answer("a")
    node.run.set_job(msgspec.structs.replace(node.run.job, attempt=1))
    assert node.shared.samples(node.run) is None
