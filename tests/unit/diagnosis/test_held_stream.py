"""All have launched the same and one GPU runs nothing: named only where nothing speaks against it.

The captures are those of two H200s; the looks at their GPUs are made of the figures that the same captures tell in words.
"""

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from mldebug.core.model import Diagnosis, GpuSample, NodeCapture, RankDevice
from mldebug.diagnosis.diagnose import diagnose

RECORDED = Path(__file__).parents[2] / "fixtures" / "h200" / "hangs"
ALL = sorted(file.stem for file in RECORDED.iterdir() if "kill" not in file.stem)
FROZEN = ("untouched-frozen", "hook-frozen")
OWN = ("figures-frozen", "figures-hook_frozen", "fifo-frozen", "dump-frozen", "server-frozen")
HELD = (*FROZEN, *OWN, "full-frozen")
FIGURES = re.compile(r"GPUs? (\S+) .*\((\d+) % busy, (\d+) W of usual (\d+) W")
LOOKS = (10.0, 8.0, 6.0, 4.0, 2.0, 0.0)  # seconds before the capture

Change = Callable[[RankDevice], RankDevice]


def recorded(name: str) -> NodeCapture:
    """With its looks at the GPUs, or some by the figures of its own sentence; none where it has none."""
    taken = msgspec.json.decode((RECORDED / f"{name}.json").read_bytes(), type=NodeCapture)
    if taken.gpus:
        return taken
    found = (FIGURES.match(one) for one in taken.devices.split("; "))
    by_name = {gpu: one for one in found if one for gpu in ((0, 1) if one[1] == "0-1" else (int(one[1]),))}  # fmt: skip
    devices = (device(taken, gpu, int(one[2]) / 100, float(one[3])) for gpu, one in by_name.items())
    return replace(taken, gpus=tuple(sorted(devices, key=lambda one: one.rank)))


def device(taken: NodeCapture, rank: int, busy: float, watts: float) -> RankDevice:
    looks = tuple(
        GpuSample(at=taken.taken_at - ago, busy_ratio=busy, memory_ratio=0.0, power_watts=watts)
        for ago in LOOKS
    )
    pid = taken.ranks[rank].identity.pid
    return RankDevice(rank=rank, uuid=f"GPU-{rank}", index=rank, pids=(pid,), samples=looks)


def judged(taken: NodeCapture) -> tuple[str, list[int | None], str]:
    found = diagnose([taken]).diagnosis
    return str(found.verdict), [one.rank for one in found.culprits], str(found.confidence)


def diagnosis(taken: NodeCapture) -> Diagnosis:
    return diagnose([taken]).diagnosis


@pytest.mark.parametrize("name", ALL)
def test_the_gpus_name_the_one_that_is_held_and_change_no_other_verdict(name: str) -> None:
    taken = recorded(name)
    found, before = judged(taken), judged(replace(taken, gpus=()))
    assert found == (("rank_waiting", [1], "low") if name in HELD else before)


def test_the_sentence_says_what_it_rests_on() -> None:
    found = diagnosis(recorded("untouched-frozen"))
    assert found.summary == (
        "Rank 1 waits for its GPU in Job.step (hangs.py:86), and that runs nothing (0 % busy, 125 W): its stream waits for something that"
        " is no kernel; the GPU of rank 0 spins in the collective (100 % busy, 127 W), and both have launched the same number of collectives (NCCL RAS)"
    )
    assert found.evidence[0] == "rank 1: 6 looks at GPU 1 in 10 s found no kernel on it"
    recorder = diagnosis(recorded("hook-frozen")).summary
    assert "(the Flight Recorder and NCCL RAS)" in recorder


# --- traps -----------------------------------------------------------------------------------------


def each_look(change: Callable[[GpuSample], GpuSample]) -> Change:
    return lambda one: replace(one, samples=tuple(map(change, one.samples)))


QUIET_ONE: dict[str, Change] = {
    "by a convention alone its own": lambda one: replace(one, sure=False),
    "a slice": lambda one: replace(one, sliced=True),
    "it has others as well": lambda one: replace(one, others=1),
    "somebody else is on it": lambda one: replace(one, pids=(*one.pids, 4711)),
    "who is on it is not told": lambda one: replace(one, pids=()),
    "the other rank's": lambda one: replace(one, uuid="GPU-0"),
    "one look": lambda one: replace(one, samples=one.samples[-1:]),
    "no looks": lambda one: replace(one, samples=()),
    "looks of one moment": lambda one: replace(
        one, samples=tuple(replace(look, at=one.samples[-1].at) for look in one.samples)
    ),
    "looks before it stopped": each_look(lambda look: replace(look, at=look.at - 60.0)),
    "looks of the future": each_look(lambda look: replace(look, at=look.at + 1e6)),
    "busy at times": lambda one: replace(
        one, samples=(*one.samples[:-1], replace(one.samples[-1], busy_ratio=0.6))
    ),
    "not told whether busy": each_look(lambda look: replace(look, busy_ratio=None)),
    "it copies": each_look(lambda look: replace(look, memory_ratio=0.3)),
    "less than nothing": each_look(lambda look: replace(look, busy_ratio=-1e9)),
    "busy without sense": each_look(lambda look: replace(look, busy_ratio=1e9)),
    "memory without sense": each_look(lambda look: replace(look, memory_ratio=-4.0)),
    "another rank's name": lambda one: replace(one, rank=7),
    "a pid that is not the rank's": lambda one: replace(one, pids=(4711,)),
    "at the power of work": lambda one: replace(
        one, usual_watts=690.0, samples=tuple(replace(it, power_watts=690.0) for it in one.samples)
    ),
    "multiprocessors at work": lambda one: replace(
        one, sm_active_ratio=0.5, sm_since=one.samples[-2].at, sm_read_at=one.samples[-1].at
    ),
    "a fingerprint of work": lambda one: replace(one, state="training"),
    "one look without its power": lambda one: replace(
        one,
        usual_watts=690.0,
        samples=(*one.samples[:-1], replace(one.samples[-1], power_watts=None)),
    ),
    "a little traffic": each_look(lambda look: replace(look, memory_ratio=0.01)),
    "throttled: all the time busy, at the power of rest": each_look(
        lambda look: replace(look, busy_ratio=1.0, power_watts=70.0)
    ),
}
BUSY_ONE: dict[str, Change] = {
    "at the power of work": lambda one: replace(
        one, usual_watts=690.0, samples=tuple(replace(it, power_watts=690.0) for it in one.samples)
    ),
    "a fingerprint of work": lambda one: replace(one, state="training"),
    "the quiet one's pid": lambda one: replace(one, pids=(4711,)),
    "quiet, too": each_look(lambda look: replace(look, busy_ratio=0.0)),
    "it computes": each_look(lambda look: replace(look, memory_ratio=0.4)),
    "traffic is not told": each_look(lambda look: replace(look, memory_ratio=None)),
    "more than a whole": each_look(lambda look: replace(look, busy_ratio=40.0)),
    "a kernel on all multiprocessors": lambda one: replace(
        one, sm_active_ratio=0.99, sm_since=one.samples[-2].at, sm_read_at=one.samples[-1].at
    ),
    "somebody else is on it": lambda one: replace(one, pids=(*one.pids, 4711)),
    "a slice": lambda one: replace(one, sliced=True),
}


def changed(taken: NodeCapture, rank: int, change: Change) -> NodeCapture:
    return replace(taken, gpus=tuple(change(one) if one.rank == rank else one for one in taken.gpus))  # fmt: skip


@pytest.mark.parametrize("name", FROZEN)
@pytest.mark.parametrize("trap", QUIET_ONE)
def test_a_quiet_gpu_that_proves_nothing(trap: str, name: str) -> None:
    found = judged(changed(recorded(name), 1, QUIET_ONE[trap]))
    assert found[:2] == ("unknown", [])


@pytest.mark.parametrize("name", FROZEN)
@pytest.mark.parametrize("trap", BUSY_ONE)
def test_a_busy_gpu_that_does_not_wait(trap: str, name: str) -> None:
    found = judged(changed(recorded(name), 0, BUSY_ONE[trap]))
    assert found[:2] == ("unknown", [])


def test_two_words_about_one_rank_are_none() -> None:
    taken = recorded("untouched-frozen")
    assert judged(replace(taken, gpus=(*taken.gpus, taken.gpus[1])))[1] == []


def test_few_looks_are_one_sign() -> None:
    taken = recorded("untouched-frozen")
    few = replace(taken, gpus=tuple(replace(one, samples=one.samples[-2:]) for one in taken.gpus))
    assert judged(few) == ("rank_waiting", [1], "low")


# --- counts ----------------------------------------------------------------------------------------


def without_ras(taken: NodeCapture) -> NodeCapture:
    return replace(taken, ras=None)


def in_text(taken: NodeCapture) -> NodeCapture:
    """Equal counts are not told there."""
    assert taken.ras is not None
    rows = tuple(replace(one, launched=None, ranks=()) for one in taken.ras.communicators)
    return replace(taken, ras=replace(taken.ras, form="text", communicators=rows))


def with_stages(taken: NodeCapture) -> NodeCapture:
    """A communicator of some of the ranks, as those of a pipeline have: what they send and receive is not counted."""
    assert taken.ras is not None
    world = taken.ras.communicators[0]
    some = replace(world, key="0xabc", size=1, answered=1, ranks=world.ranks[:1])
    return replace(taken, ras=replace(taken.ras, communicators=(world, some)))


def with_sends(taken: NodeCapture) -> NodeCapture:
    assert taken.ras is not None
    world = taken.ras.communicators[0]
    rows = tuple(replace(one, counts={**one.counts, "Send": 5}) for one in world.ranks)
    others = taken.ras.communicators[1:]
    return replace(taken, ras=replace(taken.ras, communicators=(replace(world, ranks=rows), *others)))  # fmt: skip


def with_an_absent_one(taken: NodeCapture) -> NodeCapture:
    assert taken.ras is not None
    world, *others = taken.ras.communicators
    return replace(taken, ras=replace(taken.ras, communicators=(replace(world, absent_count=1), *others)))  # fmt: skip


def of_more_ranks(taken: NodeCapture) -> NodeCapture:
    return replace(taken, job=replace(taken.job, world_size=4))


@pytest.mark.parametrize(
    "change", [without_ras, in_text, with_stages, with_sends, with_an_absent_one, of_more_ranks]
)
def test_nobody_is_named_where_equal_counts_are_not_sure(
    change: Callable[[NodeCapture], NodeCapture],
) -> None:
    assert judged(change(recorded("untouched-frozen")))[:2] == ("unknown", [])


def test_a_recorder_of_some_of_the_ranks_says_nothing_of_the_others() -> None:
    taken = recorded("hook-frozen")
    assert judged(replace(of_more_ranks(taken), ras=None))[:2] == ("unknown", [])
    one = replace(taken, ranks=(taken.ranks[0], replace(taken.ranks[1], flight=None)))
    assert judged(one)[:2] == ("unknown", [])


@pytest.mark.parametrize("name", FROZEN)
@pytest.mark.parametrize("behind", ["untouched-off_by_one", "untouched-sleep"])
def test_counts_that_differ_speak_against_it(behind: str, name: str) -> None:
    taken = recorded(name)
    mine = {one.identity.rank: one.identity.pid for one in taken.ranks}
    other = recorded(behind)
    theirs = {one.identity.pid: one.identity.rank for one in other.ranks}
    assert other.ras is not None
    rows = tuple(
        replace(one, ranks=tuple(replace(row, pid=mine[theirs[row.pid or 0]]) for row in one.ranks))
        for one in other.ras.communicators
    )
    result = diagnosis(replace(taken, ras=replace(other.ras, communicators=rows)))
    assert not result.culprits, result.summary


def test_a_recorder_that_tells_of_another_call_speaks_against_it() -> None:
    """The Flight Recorders of ranks that called different sizes, beside the GPUs of one that is held."""
    taken, shape = recorded("hook-frozen"), recorded("hook-shape")
    ranks = tuple(replace(one, flight=other.flight) for one, other in zip(taken.ranks, shape.ranks, strict=True))  # fmt: skip
    assert judged(replace(taken, ranks=ranks))[1] == []


def test_a_rank_that_waits_for_no_gpu_is_not_held() -> None:
    """Its stack is that of one that waits inside backward: for whom, its GPU does not tell."""
    taken, gloo = recorded("untouched-frozen"), recorded("gloo-denied-mismatch")
    first = taken.ranks[1]
    process = replace(gloo.ranks[0].process, pid=first.process.pid)
    stack = tuple(replace(one, tid=first.process.pid) if one.tid == gloo.ranks[0].process.pid else one for one in process.stacks)  # fmt: skip
    moved = replace(first, process=replace(process, stacks=stack))
    assert judged(replace(taken, ranks=(taken.ranks[0], moved)))[1] == []
