"""Ranks of one run on several nodes: sampled at one moment, compared by the coordinator; a node that is missing or lies names nobody else's."""

import random
from collections.abc import Callable, Mapping

import msgspec
import pytest

from mldebug.cluster.announcement_size import ROOM, fitting
from mldebug.cluster.coordinator import Coordinator
from mldebug.cluster.known_peers import aged
from mldebug.cluster.messages import (
    Announcement,
    Relayed,
    RunNews,
    RunWord,
    Welcome,
    believed,
    believed_welcome,
    read,
)
from mldebug.core.model import Confidence, FlightRecord, Job, RankIdentity, TimedCall, TimedCalls
from mldebug.goodput.evidence import RankShares
from mldebug.goodput.recorded_waits import condensed
from mldebug.goodput.shared_samples import NodeSamples, SampleCall, SharedFinding, believed_samples
from mldebug.goodput.slowdown import judge_slowdown
from mldebug.goodput.straggler import SampledStretch, Slowness
from shared.goodput.recordings import records
from shared.goodput.simulated import Own, noisy, slower, stretch

KEY = ("env", "", "n1:29500")
PACE, INTERVAL, LEAD = 300.0, 2.0, 3.5
Change = Callable[[RankShares], RankShares]


class SimulatedNodes:
    """Nodes that announce a run to a coordinator every two seconds, each at its own second, and sample when they are called.

    `own`: what the ranks take for a step; `late`: seconds by which a node's stretch begins too late; `lies`: what a node makes of
    its shares before it sends them.
    """

    def __init__(self, nodes: int, each: int, own: Own) -> None:
        self.coordinator = Coordinator()
        self.names = [f"n{number + 1}" for number in range(nodes)]
        self.each, self.world, self.own = each, nodes * each, own
        self.now, self.seed = 1000.0, 0
        self.silent: set[str] = set()
        self.dumb: set[str] = set()  # of an older version: they know of no stretches
        self.late: dict[str, float] = {}
        self.lies: dict[str, Change] = {}
        self.recorders: Callable[[int], dict[int, FlightRecord]] = lambda _: {}
        self.slower = False
        self.stage = "watching"
        self.begins: dict[str, list[tuple[float, str]]] = {name: [] for name in self.names}
        self.taken: dict[str, tuple[str, float, tuple[RankShares, ...]]] = {}
        self.findings: dict[str, list[SharedFinding]] = {name: [] for name in self.names}
        self.stretches: dict[str, SampledStretch] = {}
        self.records: dict[str, dict[int, FlightRecord]] = {}
        self.beginnings: list[tuple[float, str]] = []

    def news(self, name: str) -> RunNews:
        first = self.names.index(name) * self.each
        found = RunNews(
            key=KEY, name="train.py", world_size=self.world, stage=self.stage, slower=self.slower,
            ranks=f"{first}-{first + self.each - 1}" if self.each > 1 else str(first),
        )  # fmt: skip
        if name in self.dumb:
            return found
        known = self.findings[name]
        found = msgspec.structs.replace(found, row=known[-1].row if known else "")
        if name not in self.taken:
            return found
        call, at, ranks = self.taken[name]
        recorded = {one.rank: self.records[call].get(one.rank) for one in ranks}
        timed = {rank: condensed(one) for rank, one in recorded.items() if one}
        samples = NodeSamples(call=call, age=self.now - at, seconds=5.0, ranks=ranks, timed=timed)
        return msgspec.structs.replace(found, samples=samples)

    def play(self, seconds: float) -> None:
        """Let time pass, half a second each turn."""
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            for number, name in enumerate(self.names):
                self._sample(name)
                if name not in self.silent and (self.now * 2 + number) % (INTERVAL * 2) == 0:
                    self._announce(name, number)
            self.coordinator.compare_ranks(self.now, lambda _: True, PACE, LEAD)

    def _announce(self, name: str, number: int) -> None:
        sent = Announcement(node=name, agent=f"agent {name}", port=9754, runs=(self.news(name),))
        sent = believed(read(msgspec.json.encode(sent), Announcement))
        self.coordinator.update(sent, f"10.0.0.{number}", self.now)
        word = self.coordinator.word(sent.runs[0], name, self.now)
        answer = Welcome(node="n1", agent="agent n1", runs=(word,))
        (word,) = believed_welcome(read(msgspec.json.encode(answer), Welcome)).runs
        if name in self.dumb:
            return
        if word.slowness is not None:
            self.findings[name].append(word.slowness)
        if word.sample is not None and word.sample.call not in {c for _, c in self.begins[name]}:
            at = self.now + word.sample.begins_in + self.late.get(name, 0.0)
            self.begins[name].append((at, word.sample.call))

    def _sample(self, name: str) -> None:
        for at, call in self.begins[name]:
            if not at + 5.0 <= self.now < at + 5.5:
                continue
            if call not in self.stretches:
                self.seed += 1
                self.stretches[call] = stretch(self.seed, self.world, self.own)
                self.records[call] = self.recorders(self.seed)
                self.beginnings.append((at, call))
            first = self.names.index(name) * self.each
            ranks = self.stretches[call].ranks[first : first + self.each]
            self.taken[name] = call, self.now, tuple(map(self.lies.get(name, _honest), ranks))

    @property
    def last(self) -> Slowness:
        """The newest finding, which all nodes that understand it have."""
        (found,) = {
            msgspec.json.encode(self.findings[name][-1].found)
            for name in self.names
            if name not in self.dumb
        }
        return msgspec.json.decode(found, type=Slowness)

    def judged(self, node: str) -> Confidence:
        """How sure the report of that node is."""
        first = self.names.index(node) * self.each
        ranks = tuple(
            RankIdentity(rank=rank, world_size=self.world, pid=100 + rank, node=node)
            for rank in range(first, first + self.each)
        )
        job = Job(id="j", name="train.py", launcher="env", world_size=self.world, ranks=ranks)
        explained = tuple(
            msgspec.structs.replace(
                one, excess=msgspec.structs.replace(one.excess, kind="work", place="f (t.py:1)")
            )
            for one in self.last.ranks
        )
        found = msgspec.structs.replace(self.last, ranks=explained)
        return judge_slowdown(job, found).diagnosis.confidence


def _honest(shares: RankShares) -> RankShares:
    return shares


def waits(share: float) -> Change:
    """A node that claims this share of waiting for its ranks."""
    return lambda shares: msgspec.structs.replace(shares, waiting=share)


@pytest.mark.parametrize(("nodes", "each"), [(2, 4), (3, 2), (4, 1), (4, 8)])
@pytest.mark.parametrize("slow", [0, -1])
def test_a_slow_rank_is_named_over_all_nodes(nodes: int, each: int, slow: int) -> None:
    rank = slow % (nodes * each)
    run = SimulatedNodes(nodes, each, slower(noisy(0.3), [rank], 1.3))
    run.play(200)
    assert [one.rank for one in run.last.ranks] == [rank]
    assert run.last.ranks[0].node == run.names[rank // each]
    assert run.last.rests_on == ""
    assert run.judged(run.names[rank // each]) is Confidence.MEDIUM


@pytest.mark.parametrize(("nodes", "each"), [(2, 1), (2, 4), (3, 2), (4, 2)])
@pytest.mark.parametrize("spread", [0.02, 0.15])
def test_nobody_is_named_in_a_healthy_run(nodes: int, each: int, spread: float) -> None:
    run = SimulatedNodes(nodes, each, noisy(0.3, spread))
    run.play(1000)
    assert all(not one.found.ranks for one in run.findings["n1"])
    assert len(run.findings["n1"]) >= 3


def test_a_node_whose_ranks_are_all_slow_is_named_beside_three_others() -> None:
    run = SimulatedNodes(4, 2, slower(noisy(0.3), [4, 5], 1.4))
    run.play(200)
    assert [(one.rank, one.node) for one in run.last.ranks] == [(4, "n3"), (5, "n3")]
    assert (run.last.rests_on, run.judged("n3")) == ("", Confidence.MEDIUM)


def test_all_nodes_begin_at_one_time() -> None:
    run = SimulatedNodes(4, 2, noisy(0.3))
    run.play(90)
    begun: dict[str, list[float]] = {}
    for starts in run.begins.values():
        for at, call in starts:
            begun.setdefault(call, []).append(at)
    assert begun
    assert all(len(times) == 4 and max(times) - min(times) < 0.1 for times in begun.values())


def test_a_steady_run_is_sampled_once_in_each_interval_and_a_slower_one_at_once() -> None:
    run = SimulatedNodes(2, 2, noisy(0.3))
    run.play(1000)
    times = [at for at, _ in run.beginnings]
    first = [at for number, at in enumerate(times) if number == 0 or at - times[number - 1] > 60]
    assert [round((at - 1070.0) / PACE) for at in first] == [0, 1, 2, 3]
    assert len(times) <= 6  # of the first looks one goes on, as a rank nearly stands apart
    run.slower = True
    run.play(30)
    assert len(run.beginnings) == len(times) + 1
    run.play(60)
    assert len(run.beginnings) == len(times) + 1  # and not again and again


def test_a_node_that_is_not_heard_of_names_nobody() -> None:
    """The slow rank is there, or the slow one is here and the run waits for somebody else: nobody knows."""
    run = SimulatedNodes(3, 2, slower(noisy(0.3), [1], 1.5))
    run.silent = {"n3"}
    run.play(400)
    assert run.findings["n1"] == []


def test_a_node_of_an_older_version_names_nobody() -> None:
    run = SimulatedNodes(3, 2, slower(noisy(0.3), [1], 1.5))
    run.dumb = {"n3"}
    run.play(900)
    assert run.findings["n1"] == []
    assert len(run.beginnings) == 3  # it is tried once in each interval


def test_a_node_with_fewer_ranks_names_nobody() -> None:
    run = SimulatedNodes(3, 2, slower(noisy(0.3), [1], 1.5))
    run.each, run.world = 2, 7
    run.play(400)
    assert run.findings["n1"] == []


@pytest.mark.parametrize("stage", ["quiet", "confirmed", "blamed"])
def test_a_run_that_is_quiet_is_not_sampled(stage: str) -> None:
    run = SimulatedNodes(2, 2, noisy(0.3))
    run.stage = stage
    run.play(400)
    assert run.beginnings == []


def test_stretches_that_lie_seconds_apart_are_not_compared() -> None:
    run = SimulatedNodes(2, 2, slower(noisy(0.3), [1], 1.5))
    run.late = {"n2": 3.0}
    run.play(400)
    assert run.findings["n1"] == []
    run.late = {"n2": 1.0}
    run.play(400)
    assert [one.rank for one in run.last.ranks] == [1]


def test_a_slowdown_that_is_over_is_counted_in_rows() -> None:
    run = SimulatedNodes(2, 4, slower(noisy(0.3), [1], 1.5))
    run.play(150)
    run.own = noisy(0.3)
    run.play(2 * PACE + 30)
    assert [one.calm for one in run.findings["n2"]] == [0, 1, 2]


def test_another_coordinator_begins_anew_and_comes_to_the_same_finding() -> None:
    run = SimulatedNodes(2, 4, slower(noisy(0.3), [1], 1.5))
    run.play(80)
    run.coordinator = Coordinator()
    run.play(200)
    assert [one.rank for one in run.last.ranks] == [1]


# --- who lies --------------------------------------------------------------------------------------


def mixed(seed: int) -> Own:
    """Ranks that differ a little, as in a real run."""
    chance = random.Random(seed)
    usual = [0.3 * chance.uniform(0.96, 1.0) for _ in range(32)]
    return lambda chance, rank: usual[rank] * chance.lognormvariate(0, 0.02)


CLAIMS: Mapping[str, Change] = {
    "all of the time": waits(1.0),
    "most of the time": waits(0.6),
    "a little more": lambda one: msgspec.structs.replace(one, waiting=min(1.0, one.waiting + 0.15)),
    "never": waits(0.0),
    "one of two": lambda one: msgspec.structs.replace(one, waiting=0.9 * (one.rank % 2)),
}


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("nodes", "each"), [(2, 1), (2, 2), (3, 1), (3, 2), (4, 4)])
def test_a_liar_gets_no_rank_of_another_node_named_at_medium(
    nodes: int, each: int, seed: int, claim: str
) -> None:
    run = SimulatedNodes(nodes, each, mixed(seed))
    run.lies = {"n2": CLAIMS[claim]}
    run.play(250)
    others = [one for one in run.last.ranks if one.node != "n2"]
    if others:
        assert run.last.rests_on == "n2"
        assert run.judged(others[0].node) is Confidence.LOW


def test_two_ranks_on_two_nodes_are_named_at_low_for_one_may_lie() -> None:
    run = SimulatedNodes(2, 1, slower(noisy(0.3), [0], 1.4))
    run.play(200)
    assert [one.rank for one in run.last.ranks] == [0]
    assert (run.last.rests_on, run.judged("n1")) == ("n2", Confidence.LOW)


BAD: dict[str, dict[str, object]] = {
    "of another node's rank": {"rank": 0},
    "below nothing": {"waiting": -0.1},
    "above all": {"waiting": 1.5},
    "no number": {"waiting": float("nan")},
    "without samples": {"samples": 0},
    "a place above all": {"places": {"f (t.py)": 7.0}},
    "a line of no file": {"places": {"f (t.py)": 0.5}, "lines": {"f (t.py)": 1 << 70}},
    "a line below nothing": {"places": {"f (t.py)": 0.5}, "lines": {"f (t.py)": -1}},
}


@pytest.mark.parametrize("kind", BAD)
def test_shares_that_cannot_be_are_not_taken(kind: str) -> None:
    one = RankShares(rank=2, samples=100, waiting=0.2)
    wrong = msgspec.structs.replace(one, **BAD[kind])
    for ranks in ((wrong,), (one, wrong)):
        samples = NodeSamples(call="c", age=1.0, seconds=5.0, ranks=ranks)
        news = RunNews(key=KEY, world_size=4, ranks="2-3", samples=samples)
        sent = Announcement(node="n2", agent="a", port=9754, runs=(news,))
        (got,) = believed(sent).runs
        assert (got.samples, got.ranks) == (None, "2-3")


def test_a_rank_is_taken_once_and_no_more_ranks_than_are_sampled() -> None:
    twice = [RankShares(rank=2, samples=100, waiting=share) for share in (0.2, 0.9)]
    many = [RankShares(rank=rank, samples=100, waiting=0.2) for rank in range(65)]
    for ranks, shown in ((twice, "2-3"), (many, "0-99")):
        samples = NodeSamples(call="c", age=1.0, seconds=5.0, ranks=tuple(ranks))
        news = RunNews(key=KEY, world_size=128, ranks=shown, samples=samples)
        assert believed(Announcement(node="n2", agent="a", port=1, runs=(news,))).runs[0].samples is None  # fmt: skip


def test_texts_of_shares_are_cleaned_and_bounded() -> None:
    places = {f"\x1b[31m{letter * 9000} (t.py)": 0.2 for letter in "abcdefgh"}
    one = RankShares(rank=2, samples=100, waiting=0.2, node="x" * 9000, places=places)
    samples = NodeSamples(call="c" * 9000, age=1.0, seconds=5.0, ranks=(one,))
    news = RunNews(key=KEY, world_size=4, ranks="2-3", samples=samples, row="r" * 9000)
    (got,) = believed(Announcement(node="n2", agent="a", port=9754, runs=(news,))).runs
    sent = msgspec.json.encode(got)
    assert len(sent) < 2000
    assert b"\\u001b" not in sent


def test_samples_are_left_out_first_where_an_announcement_is_too_large() -> None:
    shares = tuple(
        RankShares(rank=n, samples=100, waiting=0.2, places={f"f{n} ({'x' * 140})": 0.5})
        for n in range(64)
    )
    samples = NodeSamples(call="c", age=1.0, seconds=5.0, ranks=shares)
    runs = tuple(
        RunNews(
            key=(*KEY, str(n)), world_size=64, ranks="0-63", node_list="n[1-9]", samples=samples
        )
        for n in range(60)
    )
    sent = fitting(Announcement(node="n1", agent="a", port=1, runs=runs))
    assert len(msgspec.json.encode(sent)) <= ROOM
    assert [(one.samples, one.node_list) for one in sent.runs] == [(None, "n[1-9]")] * 60


def test_ages_grow_on_the_way_and_the_time_to_a_beginning_shrinks() -> None:
    samples = NodeSamples(call="c", age=1.0, seconds=5.0, ranks=())
    assert aged(RunNews(key=KEY, samples=samples), 2.0).samples == msgspec.structs.replace(samples, age=3.0)  # fmt: skip
    word = RunWord(
        key=KEY,
        sample=SampleCall(call="c", begins_in=3.0),
        slowness=SharedFinding(row="r", age=5.0, found=Slowness()),
    )
    later = aged(word, 2.0)
    assert later.sample is not None
    assert later.slowness is not None
    assert (later.sample.begins_in, later.slowness.age) == (1.0, 7.0)


def test_a_relayed_node_is_compared_too() -> None:
    run = SimulatedNodes(2, 2, noisy(0.3))
    run.play(20)
    news = run.news("n2")
    relayed = Relayed(node="n2", agent="agent n2", port=9754, address="10.0.0.9", runs=(news,))
    one = Announcement(node="n1", agent="agent n1", port=9754, runs=(run.news("n1"),), relayed=(relayed,))  # fmt: skip
    coordinator = Coordinator()
    for at in range(0, 80, 2):
        coordinator.update(one, "10.0.0.1", 100.0 + at)
        coordinator.update_relayed(one, 100.0 + at, "10.0.0.1")
        coordinator.compare_ranks(100.0 + at, lambda _: True, PACE, LEAD)
        if coordinator.word(news, "n2", 100.0 + at).sample is not None:
            return
    raise AssertionError("it was never called")


# --- by the Flight Recorders, where all hosts only wait for their GPUs ---------------------------------


def waits_for_gpu(shares: RankShares) -> RankShares:
    return msgspec.structs.replace(shares, waiting=0.95, on_gpu=0.95)


def on_gpus_of(nodes: int, each: int, late: float, noise: float = 0.01) -> SimulatedNodes:
    """A run whose last rank comes `late` seconds after the others to each collective; no stack shows it."""
    run = SimulatedNodes(nodes, each, noisy(0.3))
    run.lies = dict.fromkeys(run.names, waits_for_gpu)
    world = nodes * each
    run.recorders = lambda seed: records({world - 1: late}, world, 64, noise=noise, seed=seed)
    return run


@pytest.mark.parametrize(("nodes", "each"), [(2, 4), (3, 2), (4, 8)])
def test_a_rank_that_comes_last_by_the_recorders_of_all_nodes_is_named(nodes: int, each: int) -> None:  # fmt: skip
    run = on_gpus_of(nodes, each, 0.05)
    run.play(200)
    assert [one.rank for one in run.last.ranks] == [nodes * each - 1]
    assert (run.last.ranks[0].node, run.last.ranks[0].excess.kind) == (run.names[-1], "late")
    assert (run.last.recorded, run.last.rests_on) == (True, "")


@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_nobody_is_named_by_the_recorders_of_a_healthy_run(noise: float) -> None:
    run = on_gpus_of(2, 4, 0.0, noise)
    run.play(1000)
    assert all(not one.found.ranks for one in run.findings["n1"])
    assert len(run.findings["n1"]) >= 3


def test_nobody_is_named_where_the_recorder_of_one_rank_is_off() -> None:
    run = on_gpus_of(2, 4, 0.05)
    whole = run.recorders
    run.recorders = lambda seed: {rank: one for rank, one in whole(seed).items() if rank != 2}
    run.play(200)
    assert run.last.ranks == ()


def timed(calls: int = 4, seconds: float = 0.1, members: str = "0-7", groups: int = 1) -> tuple[TimedCalls, ...]:  # fmt: skip
    some = tuple(TimedCall(sequence=n, seconds=seconds, created_at=0.1 * n) for n in range(calls))
    return (TimedCalls(group="0", backend="nccl", members=members, calls=some),) * groups


@pytest.mark.parametrize(
    ("wrong", "of"),
    [
        (timed(1000), 0),
        (timed(seconds=-1.0), 0),
        (timed(seconds=1e300), 0),
        (timed(members="0-99999999"), 0),
        (timed(members="x"), 0),
        (timed(groups=9), 0),
        (timed(), 5),  # of a rank that this node does not have
    ],
)
def test_recordings_that_cannot_be_are_not_believed(wrong: tuple[TimedCalls, ...], of: int) -> None:
    shares = tuple(RankShares(rank=n, samples=100, waiting=0.9) for n in range(4))
    samples = NodeSamples(call="a", age=0.0, seconds=5.0, ranks=shares)
    for record, number, left in ((timed(), 0, [0]), (wrong, of, [])):
        found = believed_samples(msgspec.structs.replace(samples, timed={number: record}), ((0, 3),))  # fmt: skip
        assert found is not None
        assert len(found.ranks) == 4
        assert sorted(found.timed) == left
