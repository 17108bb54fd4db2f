"""Who is bad, from trials of pairs: never a wrong name, whatever is broken and however noisy it is."""

import json
import random
import socket
import time
from collections.abc import Callable, Iterable
from itertools import combinations
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mldebug.cli.main import main
from mldebug.probes.isolate import Isolation, isolate
from mldebug.probes.pairs import Outcome, PairLimits, Trial
from mldebug_agents.probes.child import ChildExit
from mldebug_agents.probes.inside import forks, seat_trial
from mldebug_agents.probes.inside import isolate as stand
from mldebug_agents.probes.inside.schedule import GroupTrial as Tried
from mldebug_agents.probes.inside.schedule import again, alone_again, plan, tournament
from mldebug_agents.probes.verbs import isolate as probe

Fault = frozenset[str]  # one name: a member; two: a link


def names(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


def world(
    members: list[str],
    faults: Iterable[Fault],
    noise: dict[Fault, float] | None = None,
    how: Outcome | float = 0.2,
) -> list[Trial]:
    """Every pair once; one that a fault touches fails, or has that share of the bandwidth."""
    trials = []
    for pair in combinations(members, 2):
        speed = 1e9 * (noise or {}).get(frozenset(pair), 1.0)
        broken = any(fault <= frozenset(pair) for fault in faults)
        if broken and isinstance(how, str):
            trials.append(Trial(members=pair, outcome=how))
        else:
            share = how if broken and isinstance(how, float) else 1.0
            trials.append(Trial(members=pair, bandwidth=speed * share))
    return trials


def named(answer: Isolation) -> set[Fault]:
    return {frozenset(one.members) for one in answer.culprits}


@given(count=st.integers(1, 40))
def test_in_a_tournament_each_meets_each_other_once_and_nobody_plays_twice_in_a_round(
    count: int,
) -> None:
    rounds = list(tournament(count))
    played = [frozenset(pair) for some in rounds for pair in some]
    assert len(played) == len(set(played)) == count * (count - 1) // 2
    for some in rounds:
        assert len({one for pair in some for one in pair}) == 2 * len(some)
    assert len(rounds) <= count


@st.composite
def broken_worlds(draw: st.DrawFn, least: int = 4) -> tuple[list[str], set[Fault], list[Trial]]:
    """Up to two faults of any kind, noise of a fifth."""
    members = names(draw(st.integers(least, 10)))
    member = st.sampled_from(members).map(lambda one: frozenset({one}))
    link = st.sampled_from([frozenset(pair) for pair in combinations(members, 2)])
    faults = draw(st.sets(st.one_of(member, link), max_size=2))
    noise = {frozenset(pair): draw(st.floats(0.85, 1.0)) for pair in combinations(members, 2)}
    how: Outcome | float = draw(
        st.one_of(st.sampled_from(["failed", "timed_out", "wrong"]), st.floats(0.01, 0.35))
    )
    return members, faults, world(members, faults, noise, how)


@given(broken_worlds())
def test_never_a_wrong_name_with_up_to_two_faults(
    broken: tuple[list[str], set[Fault], list[Trial]],
) -> None:
    members, faults, trials = broken
    answer = isolate(members, trials)
    assert named(answer) <= faults
    assert (answer.outcome == "fine") == (not faults)


@given(broken_worlds(least=5))
def test_with_five_members_every_fault_is_named(
    broken: tuple[list[str], set[Fault], list[Trial]],
) -> None:
    members, faults, trials = broken
    matching = {one for one in faults if not any(other < one for other in faults)}
    assert named(isolate(members, trials)) == matching


@given(broken_worlds(), st.data())
def test_never_a_wrong_name_where_pairs_are_missing_or_were_disturbed(
    broken: tuple[list[str], set[Fault], list[Trial]], data: st.DataObject
) -> None:
    members, faults, trials = broken
    left = data.draw(st.lists(st.sampled_from(trials), unique_by=id))
    disturbed = [
        Trial(members=one.members, bandwidth=(one.bandwidth or 1e9) * 0.3) for one in left[::3]
    ]
    assert named(isolate(members, left + disturbed)) <= faults


@given(
    count=st.integers(2, 10),
    shares=st.lists(st.floats(0.55, 1.0), min_size=45, max_size=45),
)
def test_noise_alone_is_nobodys_fault(count: int, shares: list[float]) -> None:
    pairs = [frozenset(pair) for pair in combinations(names(count), 2)]
    noise = dict(zip(pairs, shares, strict=False))
    assert not isolate(names(count), world(names(count), [], noise)).culprits


def test_one_slow_member_is_named_with_the_evidence() -> None:
    answer = isolate(names(4), world(names(4), [frozenset({"n2"})]))
    assert answer.outcome == "found"
    assert answer.sentence == "bad: n2"
    assert answer.culprits[0].kind == "member"
    assert (
        answer.culprits[0].evidence
        == "all of its 3 pairs are bad: with n0 it has 200 MB/s, the best 1 GB/s"
    )


def test_a_link_and_a_member_at_once() -> None:
    faults = [frozenset({"n0"}), frozenset({"n1", "n3"})]
    answer = isolate(names(5), world(names(5), faults, how="timed_out"))
    assert answer.sentence == "bad: n0, the link n1 - n3"


def test_a_slow_link_is_not_named_where_good_pairs_are_slow_at_times() -> None:
    link = frozenset({"n0", "n1"})
    busy = [Trial(members=("n2", "n3"), bandwidth=2e8), Trial(members=("n0", "n2"), bandwidth=3e8)]
    answer = isolate(names(4), world(names(4), [link]) + busy)
    assert (answer.outcome, answer.culprits) == ("unknown", ())
    assert answer.sentence == "cannot tell who is bad: n0 - n1 has 200 MB/s, the best 1 GB/s"
    far = [Trial(members=("n0", "n1"), bandwidth=5e7)]  # slower than whatever other work has slowed
    assert named(isolate(names(4), world(names(4), [link], how=0.05) + busy + far)) == {link}
    failed = world(names(4), [link], how="failed")
    assert named(isolate(names(4), failed + busy)) == {link}


NOISES: dict[str, Callable[[random.Random], float]] = {
    "a shared machine": lambda dice: dice.lognormvariate(0, 0.3),
    "a crowded machine": lambda dice: dice.lognormvariate(0, 0.7),
    "stalls now and then": lambda dice: dice.uniform(0.8, 1) * (0.1 if dice.random() < 0.15 else 1),
}


def tried(count: int, dice: random.Random, noise: str, fault: Fault = frozenset()) -> set[Fault]:
    """Who is named after everything that is tried, where each try has its own noise and a fault leaves a fiftieth."""

    def step(groups: list[list[int]]) -> list[Tried]:
        return [one(group, len(groups) == 1) for group in groups]

    def one(group: list[int], alone: bool) -> Tried:
        made = Tried(group=list(group), path="", alone=alone)
        made.seconds = 0.1
        who = frozenset(f"n{number}" for number in group)
        if len(group) > 1:
            made.bandwidth = NOISES[noise](dice) * (2e7 if fault and fault <= who else 1e9)
        return made

    first = [trial for groups in plan(count, 4096) for trial in step(groups)]
    more = [trial for groups in again(first, 0.8) for trial in step(groups)]
    results = [msgspec.convert(trial.as_event(names(count)), Trial) for trial in (*first, *more)]
    return named(isolate(names(count), results))


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("count", [3, 4, 5, 8])
def test_of_hundreds_of_noisy_runs_none_has_a_wrong_name(count: int, noise: str) -> None:
    dice = random.Random(count)
    for fault in (frozenset[str](), frozenset({"n1"}), frozenset({"n1", f"n{count - 1}"})):
        answers = [tried(count, dice, noise, fault) for _ in range(60)]
        assert all(answer <= {fault} for answer in answers)
        right = sum(answer == {fault} for answer in answers)
        if fault and noise != "a crowded machine" and (count > 3 or len(fault) == 1):
            assert right >= 54


@pytest.mark.parametrize("faults", [{"n0"}, {"n1"}, {"n0", "n1"}])
def test_of_two_members_nobody_is_named(faults: set[str]) -> None:
    answer = isolate(names(2), world(names(2), [frozenset(faults)], how="failed"))
    assert (answer.outcome, answer.culprits) == ("unknown", ())
    assert answer.sentence == "cannot tell who is bad: n0 - n1 failed"


def test_two_racks_with_a_slow_way_between_them_are_no_broken_links() -> None:
    between = [frozenset({a, b}) for a in ("n0", "n1") for b in ("n2", "n3")]
    answer = isolate(names(4), world(names(4), between))
    assert (answer.outcome, answer.culprits) == ("unknown", ())
    assert len(answer.suspects) == 4


def test_pairs_of_another_path_are_not_compared() -> None:
    fast = {frozenset({"n0", "n1"}): 50.0}
    trials = [
        Trial(members=one.members, bandwidth=one.bandwidth, path="NVLink" if one.bandwidth == 5e10 else "")
        for one in world(names(4), [], fast)
    ]  # fmt: skip
    assert isolate(names(4), trials).outcome == "fine"


def test_a_bandwidth_that_all_miss_is_seen_only_with_a_floor() -> None:
    trials = world(names(3), [])
    assert isolate(names(3), trials).outcome == "fine"
    answer = isolate(names(3), trials, PairLimits(floor=5e9))
    assert answer.outcome == "unknown"
    assert "expected are 5 GB/s" in answer.sentence


def test_a_member_that_fails_alone_is_named_by_that() -> None:
    alone = Trial(members=("n1",), outcome="failed", reason="CUDA error: device lost")
    answer = isolate(names(2), [alone, *world(names(2), [])])
    assert named(answer) == {frozenset({"n1"})}
    assert answer.culprits[0].evidence == "alone it failed: CUDA error: device lost"


def test_who_failed_alone_and_worked_in_another_try_is_not_named_but_for_wrong_values() -> None:
    fine = [*world(names(3), []), Trial(members=("n1",))]
    late = Trial(members=("n1",), outcome="timed_out")
    assert isolate(names(3), [late, *fine]).outcome == "fine"
    wrong = Trial(members=("n1",), outcome="wrong")
    answer = isolate(names(3), [wrong, *fine])
    assert named(answer) == {frozenset({"n1"})}
    assert answer.culprits[0].evidence == "alone it carried wrong values"


def test_where_nobody_works_alone_nobody_is_named() -> None:
    alone = [Trial(members=(name,), outcome="failed", reason="ImportError: no libnccl") for name in names(4)]  # fmt: skip
    answer = isolate(names(4), [*alone, *world(names(4), map(frozenset, names(4)), how="failed")])
    assert (answer.outcome, answer.culprits) == ("unknown", ())
    assert "ImportError: no libnccl, and 3 more" in answer.sentence


def test_a_member_that_never_came_is_named_by_that() -> None:
    trials = world(["n0", "n2"], [])
    answer = isolate(names(3), trials, absent={"n1": "it did not join within 60 s"})
    assert answer.sentence == "bad: n1"


def test_a_pair_that_failed_once_and_worked_again_is_unsure() -> None:
    trials = [*world(names(3), []), Trial(members=("n0", "n1"), outcome="timed_out")]
    answer = isolate(names(3), trials)
    assert answer.outcome == "fine"
    assert answer.unsure == ("n0 - n1 did not end in time in one try and worked in another",)


def test_what_was_measured_beside_others_is_compared_with_its_like() -> None:
    """Two pairs at once share the processors: the retried ones are faster than all the others."""
    trials = world(names(4), [frozenset({"n1"})])
    alone = [
        Trial(members=one.members, bandwidth=4 * (one.bandwidth or 0.0), alone=True)
        for one in trials
        if "n1" in one.members or one.members == ("n0", "n2")
    ]
    assert named(isolate(names(4), trials + alone)) == {frozenset({"n1"})}


def test_a_pair_that_is_slow_or_late_in_every_try_is_bad() -> None:
    late = [Trial(members=("n0", "n2"), outcome="timed_out")]
    trials = [*world(names(4), [frozenset({"n2"})]), *late]
    assert named(isolate(names(4), trials)) == {frozenset({"n2"})}


def test_wrong_values_are_never_excused_by_a_good_try() -> None:
    trials = [*world(names(4), []), Trial(members=("n0", "n1"), outcome="wrong")]
    assert named(isolate(names(4), trials)) == {frozenset({"n0", "n1"})}


def test_wrong_values_are_named_however_other_work_scatters() -> None:
    busy = [Trial(members=("n2", "n3"), bandwidth=2e8), Trial(members=("n0", "n1"), bandwidth=7e8)]
    trials = [*world(names(4), []), *busy, Trial(members=("n0", "n1"), outcome="wrong")]
    assert named(isolate(names(4), trials)) == {frozenset({"n0", "n1"})}


def test_a_way_that_is_cut_is_named_though_other_work_slows_its_ends() -> None:
    slow = dict.fromkeys(map(frozenset, combinations(names(5), 2)), 0.7) | {
        frozenset({"n2", "n3"}): 1.0
    }
    cut = Trial(members=("n1", "n4"), outcome="timed_out")
    trials = world(names(5), [frozenset({"n1", "n4"})], slow, how="timed_out")
    assert named(isolate(names(5), trials)) == set()  # one try alone may have been late by chance
    assert named(isolate(names(5), [*trials, cut])) == {frozenset({"n1", "n4"})}
    dead = world(names(5), [frozenset({"n1"})], slow, how="timed_out")
    assert named(isolate(names(5), dead * 2)) == {frozenset({"n1"})}


def test_a_deadline_that_good_pairs_nearly_miss_names_nobody() -> None:
    def trials(seconds: float) -> list[Trial]:
        result = world(names(4), [frozenset({"n3"})], how="timed_out")
        return [msgspec.structs.replace(one, seconds=30.0 if one.outcome == "timed_out" else seconds) for one in result]  # fmt: skip

    assert named(isolate(names(4), trials(5.0) * 2)) == {frozenset({"n3"})}
    answer = isolate(names(4), trials(20.0) * 2)
    assert (answer.outcome, answer.culprits) == ("unknown", ())
    alone = [Trial(members=(name,), seconds=20.0) for name in names(3)]
    late = Trial(members=("n3",), outcome="timed_out", seconds=30.0)
    assert named(isolate(names(4), [*alone, late, late, *world(names(4), [])])) == set()


def test_on_a_busy_machine_a_member_that_is_a_little_slower_is_no_fault_and_told() -> None:
    speeds = {
        ("n0", "n2"): (0.72, 1.2, 0.5),
        ("n0", "n1"): (0.46, 0.82, 0.7),
        ("n1", "n2"): (0.73, 0.84, 0.5),
    }
    busy = [
        Trial(members=pair, bandwidth=one * 1e9) for pair, some in speeds.items() for one in some
    ]
    answer = isolate(names(3), busy)
    assert (answer.outcome, answer.culprits, len(answer.unsure)) == ("fine", (), 2)
    assert answer.sentence == (
        "no fault found: 1 of 3 pairs do equally well, none is bad, and other work hides what is less"
    )
    quiet = [one for one in busy if one.members != ("n0", "n2")]
    quiet += [Trial(members=("n0", "n2"), bandwidth=1.2e9)] * 3
    assert isolate(names(3), quiet).outcome == "unknown"


def test_what_fails_only_together_names_nobody() -> None:
    together = Trial(members=tuple(names(4)), outcome="timed_out")
    answer = isolate(names(4), [together, *world(names(4), [])])
    assert (answer.outcome, answer.culprits) == ("unknown", ())
    assert "all 4 together" in answer.sentence


def test_nobody_and_nothing() -> None:
    assert isolate([], []).outcome == "unknown"
    assert isolate(["n0", "n1"], []).outcome == "unknown"


def test_nothing_is_fine_where_not_all_was_tried(capsys: pytest.CaptureFixture[str]) -> None:
    progress = probe.IsolateProgress(names(3), [], world(names(3), []))
    assert probe._answer(progress, PairLimits(), ChildExit(outcome="done"), as_json=False) == 0
    progress.on_event({"event": "untried", "groups": 2})
    assert probe._answer(progress, PairLimits(), ChildExit(outcome="done"), as_json=False) == 1
    cancelled = ChildExit(outcome="cancelled", reason="the training job x runs on this node")
    assert probe._answer(progress, PairLimits(), cancelled, as_json=False) == 1
    assert capsys.readouterr().out.splitlines() == [
        "no fault found: 3 of 3 pairs do equally well",
        "not all was tried: --duration left no time for 2 tries",
        "not all was tried: the training job x runs on this node",
    ]


def test_who_was_slow_in_what_was_cut_short_is_not_named_who_failed_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    link = frozenset({"n0", "n1"})
    cancelled = ChildExit(outcome="cancelled", reason="the training job x runs on this node")
    for how, first in (
        (0.2, "not all was tried: the training job x"),
        ("failed", "bad: the link n0 - n1"),
    ):
        progress = probe.IsolateProgress(names(4), [], world(names(4), [link], how=how))
        assert probe._answer(progress, PairLimits(), cancelled, as_json=False) == 1
        assert capsys.readouterr().out.startswith(first)
    progress = probe.IsolateProgress(names(4), [], world(names(4), [link]))
    assert probe._answer(progress, PairLimits(), ChildExit(outcome="done"), as_json=False) == 1
    assert capsys.readouterr().out.startswith("bad: the link n0 - n1")


def test_each_alone_all_together_and_every_pair_once() -> None:
    steps = list(plan(5, at_once=1))
    assert steps[0] == [[0], [1], [2], [3], [4]]
    assert steps[1] == [[0, 1, 2, 3, 4]]
    assert all(len(step) == 1 for step in steps[2:])
    assert len(steps) == 2 + 10
    assert len(list(plan(5, at_once=4))) == 2 + 5
    assert list(plan(2, at_once=4)) == [[[0], [1]], [[0, 1]]]


def test_who_did_not_work_alone_is_tried_once_more() -> None:
    tried = [Tried([number]) for number in range(3)] + [Tried([0, 1])]
    tried[1].outcome = tried[3].outcome = "timed_out"
    assert list(alone_again(tried)) == [[[1]]]
    assert list(alone_again(tried[:1])) == []


def test_doubtful_pairs_are_tried_again_beside_the_best_and_what_hangs_once_only() -> None:
    tried = {}
    for pair, bandwidth in (((0, 1), 9.0), ((0, 2), 10.0), ((1, 2), 3.0), ((1, 3), None)):
        tried[pair] = Tried(list(pair))
        tried[pair].bandwidth = bandwidth
    steps = [step[0] for step in again(list(tried.values()), 0.8)]
    again_and_again = [[0, 2], [0, 1], [1, 2]] * 3
    assert steps == [[0, 2], [0, 1], [1, 2], [1, 3], *again_and_again]
    assert list(again([tried[0, 1], tried[0, 2]], 0.8)) == []


def test_a_payload_that_does_not_fit_is_told_before_it_takes_the_memory() -> None:
    order = {"bytes": 1 << 50, "seats": 2}
    with pytest.raises(MemoryError, match=r"a payload of \d+ bytes needs \d+, \d+ may be taken"):
        seat_trial._check_memory(None, SimpleNamespace(type="cpu"), order)
    seat_trial._check_memory(None, SimpleNamespace(type="cpu"), {"bytes": 1 << 10, "seats": 2})


def test_a_port_that_somebody_has_is_told_with_the_way_out() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        other.listen()
        with pytest.raises(
            OSError, match=f"port {port} of this node: Address already in use"
        ) as raised:
            stand.check_port(port)
    assert "another port" in probe._way_out(ChildExit(outcome="failed", reason=str(raised.value)))
    stand.check_port(port)


def test_a_place_to_meet_that_nobody_knows_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    stand.check_address("127.0.0.1")

    def unknown(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(OSError, match=r"^n17: Name or service not known$"):
        stand.check_address("n17")


def test_a_share_that_is_no_number_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "isolate", "--slow-below", "nan"]) == 2
    assert "'nan' is no number" in capsys.readouterr().err


class Store:
    """A store of one process, in which other nodes tell how a step went after so many seconds; never where that is None."""

    def __init__(self, after: float | None) -> None:
        self.kept: dict[str, str] = {}
        self.after, self.begun = after, 0.0

    def set(self, key: str, value: str) -> None:
        self.kept[key] = value
        self.begun = time.monotonic()

    def check(self, keys: list[str]) -> bool:
        result = self.after is not None and time.monotonic() - self.begun >= self.after
        return keys[0] in self.kept or result

    def get(self, key: str) -> str:
        return self.kept.get(key) or json.dumps(
            {"0.0": {"bandwidth": 1e9, "seconds": 0.1}, "0.1": {"bandwidth": 2e9, "seconds": 0.2}}
        )


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (stand, forks):
        monkeypatch.setattr(module, "emit", lambda *_, **__: None)
    monkeypatch.setattr(stand, "GRACE", 0.1)
    monkeypatch.setattr(stand, "KILLED", 0.1)


def head(store: Store, step: float) -> stand.TrialLeader:
    """Node 0 of three members, one each."""
    made = stand.TrialLeader(
        {"step": step, "seconds": 60.0}, stand.NodeParticipant({"node": 0, "step": step}, store)
    )
    made._seats = [[[node, 0]] for node in range(3)]
    made._names = ["n0", "n1", "n2"]
    return made


@pytest.mark.usefixtures("quick")
def test_a_step_without_the_first_node_has_its_whole_deadline() -> None:
    """Node 0 went on after five seconds: the others were still in that step, and late in the next ones, too."""
    [trial] = head(Store(after=1.5), step=5.0)._try([[1, 2]])
    assert (trial.outcome, trial.bandwidth) == ("measured", 1e9)


@pytest.mark.usefixtures("quick")
def test_nodes_that_say_nothing_are_waited_for_in_full_once_alone() -> None:
    leader = head(Store(after=None), step=3.0)
    took = []
    for _ in range(2):
        began = time.monotonic()
        [trial] = leader._try([[1, 2]])
        took.append(time.monotonic() - began)
        assert trial.outcome == "timed_out"
    assert took[0] >= 3.2
    assert took[1] < 3.0
