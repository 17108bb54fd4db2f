"""The hang fingerprint against recordings of two H200: whole, late, as other cards, with noise, with values removed."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mldebug.hardware.gpu.baseline import Load
from mldebug.hardware.gpu.fingerprint import (
    MAX_GPUS,
    GpuFingerprint,
    GpuState,
    RunBaselines,
    fingerprint_of,
)
from mldebug.hardware.gpu.readings import GpuActivity, GpuWatch
from mldebug.hardware.gpu.samples import Average, GpuSign, RankSign, sign_of
from mldebug.hardware.gpu.sentences import sentence
from shared.hardware.gpusigns import (
    CARDS,
    H200,
    Card,
    SignedMoment,
    during,
    moments,
    played,
    without,
)

FIXTURES = Path(__file__).parents[2] / "fixtures" / "h200"
HANGS = ("sleep", "loop", "stop")  # rank 1 never comes
SPINS = ("kernel", "frozen")  # both GPUs spin
WAIT = ("collective_wait", "never_arrived")
EITHER = (GpuState.COLLECTIVE_WAIT, GpuState.COMPUTE_SPIN)


def fault(story: list[SignedMoment]) -> list[SignedMoment]:
    """The looks of the hang, once it has settled."""
    name = next(one.moment.phase for one in story if one.moment.phase.startswith("FAULT"))
    return during(story, name, after=12.0)


def states(looks: list[SignedMoment]) -> set[tuple[str, ...]]:
    return {one.states for one in looks}


# --- whole recordings --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", HANGS)
def test_a_recorded_hang_shows_who_waits_and_who_never_came(name: str) -> None:
    story = played(name)

    assert states(fault(story)) == {WAIT}
    assert states(during(story, "train")) == {("training", "training")}


@pytest.mark.parametrize("name", HANGS)
def test_three_looks_after_the_last_work_it_is_known(name: str) -> None:
    story = played(name)
    worked = [any(one.memory_utilization_ratio for one in look.moment.signs) for look in story]
    ended = max(number for number, did in enumerate(worked) if did)  # the last traffic of any GPU
    first = next(n for n, look in enumerate(story) if look.states == WAIT and n > ended - 5)

    assert first - ended <= 3


@pytest.mark.parametrize("name", SPINS)
def test_a_kernel_that_never_ends_cannot_be_told_from_a_wait_where_all_spin(name: str) -> None:
    looks = fault(played(name))

    assert states(looks) == {("unknown", "unknown")}
    assert {one.maybe for look in looks for one in look.print.gpus} == {EITHER}
    assert {one.load for look in looks for one in look.print.gpus} == {Load.SPINNING}
    assert {one.progress for look in looks for one in look.print.gpus} == {False}


def test_a_stack_that_waits_tells_them_apart() -> None:
    def reported(sign: GpuSign) -> GpuSign:
        return msgspec.structs.replace(sign, rank=RankSign(rank=sign.index, waiting=True))

    looks = fault(played("frozen", change=reported))

    assert states(looks) == {("collective_wait", "collective_wait")}


PHASES = [
    ("evaluate", {("training", "training")}),
    ("checkpoint", {("checkpointing", "collective_wait")}),
]


@pytest.mark.parametrize(("phase", "expected"), PHASES)
def test_phases_of_a_healthy_run(phase: str, expected: set[tuple[str, ...]]) -> None:
    assert states(during(played("sleep"), phase)) == expected


def test_slow_input_is_never_a_wait() -> None:
    looks = during(played("sleep"), "slow_input", after=4.0)
    matching = [state for look in looks for state in look.states]

    assert set(matching) <= {"input_starved", "training", "unknown"}
    assert matching.count("input_starved") > 0.8 * len(matching)


def test_before_the_first_step_all_are_idle() -> None:
    looks = [one for one in played("sleep") if not one.moment.phase]

    assert {one.states for one in looks[1:]} == {("idle", "idle")}


def test_without_the_ranks_writes_a_checkpoint_looks_like_a_rank_that_did_not_come() -> None:
    """So the fingerprint alone never alarms: it says what else this may be."""
    story = played("sleep", ranks=False)
    looks = during(story, "checkpoint")

    assert states(looks) == {("never_arrived", "collective_wait")}
    assert all(GpuState.CHECKPOINTING in one.print.gpus[0].maybe for one in looks)
    known = fault(played("sleep"))
    assert not any(GpuState.CHECKPOINTING in one.print.gpus[1].maybe for one in known)


# --- other cards, noise, other intervals -------------------------------------------------------------


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
@pytest.mark.parametrize("name", HANGS)
@pytest.mark.parametrize("every", [1, 2, 5])
def test_hangs_on_other_cards(card: Card, name: str, every: int) -> None:
    """With noise of 2 % of the limit, at other intervals."""
    story = played(name, card=card, noise=0.02 * card.limit, every=every)

    assert states(fault(story)) == {WAIT}


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
def test_healthy_phases_on_other_cards(card: Card) -> None:
    story = played("sleep", card=card, noise=0.02 * card.limit)

    assert states(during(story, "train")) == {("training", "training")}
    assert states(during(story, "evaluate")) == {("training", "training")}
    assert states(during(story, "checkpoint")) == {("checkpointing", "collective_wait")}


@pytest.mark.parametrize("card", CARDS.values(), ids=CARDS)
@pytest.mark.parametrize("name", SPINS)
def test_both_spin_on_other_cards(card: Card, name: str) -> None:
    story = played(name, card=card, noise=0.02 * card.limit)

    assert states(fault(story)) == {("unknown", "unknown")}
    assert {one.maybe for one in fault(story)[-1].print.gpus} == {EITHER}


# --- values that cannot be read ----------------------------------------------------------------------

REMOVED = [
    ("power_watts", "energy_joules"),
    ("energy_joules",),
    ("power_watts",),
    ("memory_utilization_ratio",),
]


@pytest.mark.parametrize("fields", REMOVED, ids="+".join)
@pytest.mark.parametrize("name", HANGS)
def test_hangs_with_values_removed(name: str, fields: tuple[str, ...]) -> None:
    """Without memory utilization the steps of the rank teach the usual power."""
    story = played(name, change=without(*fields))

    assert states(fault(story)) == {WAIT}
    assert states(during(story, "train", after=5.0)) == {("training", "training")}


@pytest.mark.parametrize("turns", [2, 3, 4])
@pytest.mark.parametrize("name", HANGS)
def test_hangs_where_the_energy_comes_by_turns(name: str, turns: int) -> None:
    """With many GPUs each tells its energy only now and then."""
    looks: Counter[str] = Counter()

    def rarely(sign: GpuSign) -> GpuSign:
        looks[sign.uuid] += 1
        its_turn = (looks[sign.uuid] + sign.index) % turns == 0
        return sign if its_turn else without("energy_joules")(sign)

    story = played(name, change=rarely)

    assert states(fault(story)) == {WAIT}
    assert states(during(story, "train", after=5.0)) == {("training", "training")}


@pytest.mark.parametrize("fields", REMOVED[:3], ids="+".join)
def test_healthy_phases_with_values_removed(fields: tuple[str, ...]) -> None:
    story = played("sleep", change=without(*fields))

    assert states(during(story, "evaluate")) == {("training", "training")}
    assert states(during(story, "checkpoint")) == {("checkpointing", "collective_wait")}


def test_with_power_alone_and_no_step_nothing_is_claimed() -> None:
    story = played("stop", ranks=False, change=without("memory_utilization_ratio"))
    hang = fault(story)

    assert states(hang) == {("unknown", "unknown")}
    assert GpuState.NEVER_ARRIVED in hang[-1].print.gpus[1].maybe


def test_a_slice_without_utilization_is_unknown_but_for_its_work() -> None:
    """MIG: no utilization, and the power is that of the whole board."""
    nothing = without("utilization_ratio", "memory_utilization_ratio")
    assert states(played("stop", change=nothing)) == {("unknown", "unknown")}

    def by_hardware(sign: GpuSign) -> GpuSign:
        memory = sign.memory_utilization_ratio or 0.0
        activity = GpuActivity(
            window_seconds=1.0,
            graphics_ratio=sign.utilization_ratio,
            dram_ratio=memory,
            tensor_ratio={"any": memory / 4},
        )
        return nothing(msgspec.structs.replace(sign, activity=activity))

    story = played("stop", change=by_hardware)
    assert states(fault(story)) == {WAIT}
    assert states(during(story, "train")) == {("training", "training")}


ABSURD: list[dict[str, Any]] = [
    {"power_watts": math.nan},
    {"energy_joules": math.nan},
    {"energy_joules": math.inf},
    {"memory_utilization_ratio": -1.0},
    {"memory_utilization_ratio": math.nan},
    {"utilization_ratio": 1e9},
    {"power_watts": -5.0, "energy_joules": -1.0},
    {"power_watts": 1e12},
]


def test_one_absurd_power_does_not_become_the_usual_one() -> None:
    memory = RunBaselines()
    for at in range(40):
        power = 20_000.0 if at == 20 else 300.0 - 250.0 * (at < 3)
        sign = GpuSign(uuid="a", index=0, utilization_ratio=1.0, memory_utilization_ratio=0.4, power_watts=power)  # fmt: skip
        look = memory.look(float(at), [sign], 1)

    assert look.gpus[0].usual_watts == pytest.approx(300, rel=0.2)


MEANS = [
    # joules and watts at two looks, seconds between, what is taken for the power now
    ((1000.0, 100.0), (1500.0, 90.0), 5.0, 100.0),
    ((1000.0, 100.0), (500.0, 90.0), 5.0, 90.0),  # the counter began anew
    ((1000.0, 100.0), (9e5, 90.0), 5.0, 90.0),  # it jumped
    ((1000.0, 100.0), (2500.0, 90.0), 15.0, 100.0),
    ((1000.0, 100.0), (3000.0, 90.0), 20.0, 90.0),  # too long ago: it would hide a hang
    ((1000.0, 100.0), (1500.0, 90.0), 0.0, 90.0),
    ((1000.0, 100.0), (1500.0, None), 5.0, 100.0),
    ((None, 100.0), (1500.0, 90.0), 5.0, 90.0),
    ((1000.0, 100.0), (None, None), 5.0, None),
]


def test_the_mean_goes_over_looks_without_a_reading_of_the_energy() -> None:
    average = Average()
    results = [
        average.power(GpuSign(uuid="a", index=0, energy_joules=joules, power_watts=90.0), at)
        for at, joules in ((0.0, 1000.0), (5.0, None), (10.0, 2000.0), (15.0, None), (30.0, 4000.0))
    ]
    assert results == [90.0, 90.0, 100.0, 90.0, 90.0]  # the last reading is too long ago


@pytest.mark.parametrize(("first", "second", "seconds", "power"), MEANS)
def test_the_power_is_a_mean_of_the_energy_where_it_can_be(
    first: tuple[float | None, float], second: tuple[float | None, float | None], seconds: float, power: float | None
) -> None:  # fmt: skip
    average = Average()
    signs = [GpuSign(uuid="a", index=0, energy_joules=e, power_watts=w) for e, w in (first, second)]
    average.power(signs[0], 10.0)

    assert average.power(signs[1], 10.0 + seconds) == power


NUMBERS = st.none() | st.floats() | st.sampled_from([0.0, 0.5, 1.0, 125.0, 690.0])
SIGNS = st.builds(
    GpuSign,
    uuid=st.sampled_from(["a", "b", "c"]),
    index=st.integers(0, 3),
    utilization_ratio=NUMBERS,
    memory_utilization_ratio=NUMBERS,
    power_watts=NUMBERS,
    energy_joules=NUMBERS,
    rank=st.none() | st.builds(RankSign, rank=st.integers(0, 3), stepping=st.none() | st.booleans(), written_bytes_per_second=NUMBERS),
)  # fmt: skip


@given(looks=st.lists(st.lists(SIGNS, max_size=4), max_size=12), world=st.integers(0, 4))
def test_whatever_is_read_never_breaks_it(looks: list[list[GpuSign]], world: int) -> None:
    memory = RunBaselines()
    for at, signs in enumerate(looks):
        look = memory.look(5.0 * at, signs, world)
        assert len(look.gpus) == len(signs)
        assert sentence(look) or not signs
        memory = msgspec.json.decode(msgspec.json.encode(memory), type=RunBaselines)
        for one in memory.gpus.values():
            assert one.levels.floor is None or 0 < one.levels.floor < 100_000


@pytest.mark.parametrize("values", ABSURD, ids=str)
def test_one_absurd_look_in_between_changes_nothing_later(values: dict[str, Any]) -> None:
    memory = RunBaselines()
    results = []
    for number, moment in enumerate(moments("stop")):
        signs = moment.signs
        if number == 20:
            signs = tuple(msgspec.structs.replace(one, **values) for one in signs)
        results.append(SignedMoment(moment, memory.look(moment.at, signs, world_size=2)))

    assert states(fault(results)) == {WAIT}
    assert msgspec.json.decode(msgspec.json.encode(memory), type=RunBaselines) == memory


def test_an_energy_counter_that_begins_anew() -> None:
    """A reloaded driver: the momentary power is used for one look."""
    memory, results = RunBaselines(), []
    for number, moment in enumerate(moments("stop")):
        less = 1e9 if number >= 25 else -1e9
        signs = tuple(
            msgspec.structs.replace(one, energy_joules=(one.energy_joules or 0.0) - less)
            for one in moment.signs
        )
        results.append(SignedMoment(moment, memory.look(moment.at, signs, world_size=2)))

    assert states(fault(results)) == {WAIT}
    assert {one.states for one in results[22:28]} == {("training", "training")}


# --- the agent comes late, or again ------------------------------------------------------------------


@pytest.mark.parametrize("name", HANGS)
def test_levels_survive_the_agent(name: str) -> None:
    memory, results = RunBaselines(), []
    for number, moment in enumerate(moments(name)):
        if number % 7 == 0:
            memory = msgspec.json.decode(msgspec.json.encode(memory), type=RunBaselines)
        results.append(SignedMoment(moment, memory.look(moment.at, moment.signs, world_size=2)))

    assert [one.states for one in results] == [one.states for one in played(name)]


@pytest.mark.parametrize("name", HANGS)
def test_an_agent_that_comes_in_the_middle_of_the_hang_sees_it_by_the_quiet_one_beside(
    name: str,
) -> None:
    memory = RunBaselines()
    late = [one for one in moments(name) if "FAULT" in one.phase and one.into > 8]
    results = [SignedMoment(one, memory.look(one.at, one.signs, world_size=2)) for one in late]

    assert states(results[2:]) == {WAIT}


def test_an_agent_that_comes_when_all_spin_claims_nothing() -> None:
    memory = RunBaselines()
    late = [one for one in moments("frozen") if "FAULT" in one.phase and one.into > 8]
    results = [SignedMoment(one, memory.look(one.at, one.signs, world_size=2)) for one in late]

    assert states(results) == {("unknown", "unknown")}
    assert {one.progress for one in results[-1].print.gpus} == {None}


def test_the_usual_power_is_that_of_work_and_not_of_the_way_there() -> None:
    story = played("sleep")
    last = story[-1].print.gpus[0]

    assert last.usual_watts == pytest.approx(690, abs=15)
    assert last.power_watts == pytest.approx(125, abs=2)


def test_memory_stays_bounded() -> None:
    memory = RunBaselines()
    for number in range(3 * MAX_GPUS):
        memory.look(float(number), [GpuSign(uuid=f"MIG-{number}", index=0, power_watts=50.0)])

    assert len(memory.gpus) == MAX_GPUS


# --- full reads (GPM) --------------------------------------------------------------------------------


def full(name: str) -> list[GpuSign]:
    """Both GPUs of a full NVML recording, with what the hardware's own counters say."""
    recorded = json.loads((FIXTURES / f"nvml-{name}.json").read_text())
    return [_full(index, recorded[f"gpu{index}"]) for index in (0, 1)]


def _full(index: int, values: dict[str, Any]) -> GpuSign:
    gpm = values["gpm"]
    names = (
        "GRAPHICS_UTIL",
        "SM_UTIL",
        "ANY_TENSOR_UTIL",
        "DRAM_BW_UTIL",
        "NVLINK_TOTAL_RX_PER_SEC",
    )
    by_name = {name: gpm[f"NVML_GPM_METRIC_{name}"]["v"] / 100 for name in names}
    link = 100 * by_name["NVLINK_TOTAL_RX_PER_SEC"]
    return GpuSign(
        uuid=values["UUID"]["v"],
        index=index,
        utilization_ratio=values["UtilizationRates"]["v"]["gpu"] / 100,
        memory_utilization_ratio=values["UtilizationRates"]["v"]["memory"] / 100,
        power_watts=values["PowerUsage"]["v"] / 1000,
        activity=GpuActivity(
            window_seconds=1.0,
            graphics_ratio=by_name["GRAPHICS_UTIL"],
            sm_active_ratio=by_name["SM_UTIL"],
            tensor_ratio={"any": by_name["ANY_TENSOR_UTIL"]},
            dram_ratio=by_name["DRAM_BW_UTIL"],
            nvlink_receive_bytes_per_second=link * 2**20,
        ),
    )


FULL = [
    ("training", ("training", "training")),
    ("hang-sleep", WAIT),
    ("hang-desync", ("unknown", "unknown")),
    ("idle", ("idle", "idle")),
]


@pytest.mark.parametrize(("name", "expected"), FULL)
def test_full_reads_need_no_baseline(name: str, expected: tuple[str, ...]) -> None:
    memory = RunBaselines()
    memory.look(0.0, full(name), 2)
    look = memory.look(5.0, full(name), 2)

    assert tuple(one.state for one in look.gpus) == expected


def test_a_kernel_on_all_multiprocessors_is_no_collective() -> None:
    memory = RunBaselines()
    signs = full("hang-desync")
    changed = msgspec.structs.replace(signs[0].activity, sm_active_ratio=0.99)  # type: ignore[type-var]
    signs[0] = msgspec.structs.replace(signs[0], activity=changed)
    memory.look(0.0, signs, 2)

    assert memory.look(5.0, signs, 2).gpus[0].state is GpuState.COMPUTE_SPIN


def test_power_of_work_without_memory_traffic_for_long_is_a_spin() -> None:
    memory = RunBaselines()

    def look(at: int, power: float, traffic: float) -> GpuFingerprint:
        sign = GpuSign(
            uuid="a",
            index=0,
            utilization_ratio=1.0,
            memory_utilization_ratio=traffic,
            power_watts=power,
        )
        return memory.look(float(at), [sign], 2).gpus[0]

    look(0, 40, 0.0)
    for at in range(1, 10):
        assert look(at, 300, 0.4).state is GpuState.TRAINING
    results = [look(at, 280, 0.0) for at in range(10, 15)]

    assert [one.state for one in results] == [GpuState.UNKNOWN] * 2 + [GpuState.COMPUTE_SPIN] * 3
    assert {one.progress for one in results} == {None}, "it may compute, and it may never end"


@pytest.mark.parametrize(("active", "progress"), [(0.15, False), (0.7, None), (None, None)])
def test_the_power_of_a_small_model_s_work_does_not_hide_that_its_gpu_spins(
    active: float | None, progress: bool | None
) -> None:
    """A toy takes 130 W at work and 125 W in a collective: only the counters tell that nothing moves, on few multiprocessors."""
    memory = RunBaselines()
    for at in range(3):
        memory.look(float(at), [GpuSign(uuid="a", index=0, utilization_ratio=0.0, power_watts=75.0)], 2)  # fmt: skip
    at_work = {"uuid": "a", "index": 0, "utilization_ratio": 1.0, "power_watts": 130.0}
    for at in range(3, 10):
        memory.look(float(at), [GpuSign(memory_utilization_ratio=0.01, **at_work)], 2)  # type: ignore[arg-type]
    activity = GpuActivity(window_seconds=5.0, dram_ratio=0.0002, sm_active_ratio=active)
    spins = GpuSign(
        memory_utilization_ratio=0.0, activity=activity, **{**at_work, "power_watts": 125.0}
    )  # type: ignore[arg-type]
    results = [memory.look(float(at), [spins], 2).gpus[0] for at in range(10, 15)]
    assert {one.progress for one in results} == {progress}


@pytest.mark.parametrize(
    ("shared", "waiting", "states"),
    [
        (False, None, (GpuState.COLLECTIVE_WAIT, GpuState.NEVER_ARRIVED)),
        (True, True, (GpuState.COLLECTIVE_WAIT, GpuState.NEVER_ARRIVED)),
        (True, None, (GpuState.UNKNOWN, GpuState.UNKNOWN)),
        (True, False, (GpuState.UNKNOWN, GpuState.UNKNOWN)),
    ],
)
def test_a_kernel_that_spins_on_a_shared_gpu_may_be_the_other_program_s(
    shared: bool, waiting: bool | None, states: tuple[GpuState, ...]
) -> None:
    """Another job hangs on GPU 0, where our rank has not arrived either: it waits for nobody, and rank 1 keeps nobody waiting."""
    memory, sign = RunBaselines(), full("hang-desync")[0]
    spins = msgspec.structs.replace(
        sign, uuid="a", shared=shared, rank=RankSign(rank=0, waiting=waiting)
    )
    rests = GpuSign(uuid="b", index=1, utilization_ratio=0.0, power_watts=75.0, memory_utilization_ratio=0.0)  # fmt: skip
    found = [memory.look(float(at), [spins, rests], 2) for at in range(0, 30, 5)][-1]
    assert tuple(one.state for one in found.gpus) == states
    assert found.gpus[0].progress is False, "whoever spins, nobody moves anything"


def test_a_run_of_one_rank_waits_for_nobody() -> None:
    memory = RunBaselines()
    sign = full("hang-desync")[0]
    memory.look(0.0, [sign], 1)

    assert memory.look(5.0, [sign], 1).gpus[0].state is GpuState.COMPUTE_SPIN


# --- over nodes and in words -------------------------------------------------------------------------


def test_the_looks_of_two_nodes_are_told_together() -> None:
    """Each node alone sees its own GPU only: one spins, one is quiet."""
    apart = [
        RunBaselines(gpus={}),
        RunBaselines(gpus={}),
    ]
    results = []
    for moment in moments("sleep"):
        own = [
            apart[node].look(
                moment.at, [msgspec.structs.replace(moment.signs[node], node=f"n{node}")], 2
            )
            for node in (0, 1)
        ]
        both = fingerprint_of(moment.at, [gpu for one in own for gpu in one.gpus], 2)
        results.append((own, both))
    own, both = results[-1]

    assert own[0].gpus[0].state is GpuState.UNKNOWN
    assert own[1].gpus[0].state is GpuState.UNKNOWN
    assert GpuState.NEVER_ARRIVED in own[1].gpus[0].maybe
    assert tuple(one.state for one in both.gpus) == WAIT
    assert sentence(both).startswith("n0: GPU 0 waits in a collective (100 % busy")


def test_the_sentence() -> None:
    assert sentence(played("sleep")[-1].print) == (
        "GPU 0 waits in a collective (100 % busy, 125 W of usual 692 W, no memory traffic); "
        "GPU 1 runs nothing (0 % busy, 120 W of usual 691 W)"
    )
    assert sentence(played("frozen")[-1].print).startswith(
        "GPUs 0-1 spin in a collective or in a kernel that does not end (100 % busy"
    )
    assert sentence(RunBaselines().look(0.0, [])) == ""


def test_a_sign_is_made_from_the_watch_read() -> None:
    watch = GpuWatch(
        uuid="GPU-1",
        index=3,
        utilization_ratio=0.5,
        memory_utilization_ratio=0.25,
        power_watts=77.0,
        energy_joules=9.0,
    )
    sign = sign_of(watch, node="n1", rank=RankSign(rank=7))

    assert (sign.uuid, sign.index, sign.node, sign.busy) == ("GPU-1", 3, "n1", 0.5)
    assert (sign.memory_utilization_ratio, sign.power_watts, sign.energy_joules) == (
        0.25,
        77.0,
        9.0,
    )
    assert sign.rank is not None
    assert sign.rank.rank == 7


def test_the_recordings_are_played_as_they_are() -> None:
    """The scaled cards keep the recorded watts where the card is the recorded one."""
    first = next(iter(moments("sleep", card=H200)))

    assert first.signs[0].power_watts == pytest.approx(80, abs=1)
