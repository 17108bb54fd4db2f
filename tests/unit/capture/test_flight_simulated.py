"""Jobs of three kinds of parallelism that hang by one rank, played through: whoever is named is that rank.

Eight ranks in two stages, each with tensor and data parallel pairs. Hosts enqueue ahead of their GPUs, GPUs take calls in their order but for gradients, which
nobody waits for before the step ends. One rank stops calling, or its GPU does not come out of a call that has ended for the others.
"""

import pickle
import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mldebug.capture.flight_recorder.analysis import Conclusion, analyse
from mldebug.capture.flight_recorder.dump import parse_dump
from shared.capture.dumps import Dump, dump, made

WORLD = range(8)
STEPS, BATCHES = 2, 3


class Op(NamedTuple):
    """One call of one rank. `key` is the same for all who meet in it."""

    kind: str  # all_reduce, send, recv
    group: str
    key: tuple[object, ...]
    members: tuple[int, ...]
    number: int  # in its group, of its kind
    asynchronous: bool = False  # later calls do not wait for it


class Fault(NamedTuple):
    """`rank` makes no call from number `at` on, or its GPU stays in that call when all others have left it."""

    rank: int
    at: int
    on_gpu: bool


GROUPS: dict[str, tuple[int, ...]] = {"0": tuple(WORLD)}
for first in range(0, 8, 2):
    GROUPS[f"tp{first // 2}"] = (first, first + 1)
for stage in (0, 4):
    for lane in (0, 1):
        GROUPS[f"dp{stage}{lane}"] = (stage + lane, stage + lane + 2)
for lane in range(4):
    GROUPS[f"pp{lane}"] = (lane, lane + 4)


def program(rank: int) -> Iterator[tuple[str, str, bool]]:
    """What it calls: kind, group, and whether it goes on without waiting."""
    tp, pp = f"tp{rank // 2}", f"pp{rank % 4}"
    dp = f"dp{rank // 4 * 4}{rank % 2}"
    for _ in range(STEPS):
        for _ in range(BATCHES):
            if rank >= 4:
                yield "recv", pp, False
            yield "all_reduce", tp, False
            yield "all_reduce", tp, False
            yield ("send", pp, False) if rank < 4 else ("send", pp, True)
            if rank < 4:
                yield "recv", pp, False
                yield "all_reduce", tp, False
        yield "all_reduce", dp, True
        yield "all_reduce", "0", False


def ops_of(rank: int) -> list[Op]:
    counts: dict[tuple[str, str], int] = {}
    found = []
    for kind, group, asynchronous in program(rank):
        way = "collective" if kind == "all_reduce" else "pair"
        counts[group, way] = number = counts.get((group, way), 0) + 1
        key = (group, way, number)
        found.append(Op(kind, group, key, GROUPS[group], number, asynchronous))
    return found


PROGRAMS = [ops_of(rank) for rank in WORLD]
LENGTH = min(map(len, PROGRAMS))


class Played(NamedTuple):
    """By rank: how many calls its host has made, and which of them are done."""

    called: list[int]
    done: list[set[int]]


def play(faults: tuple[Fault, ...], ahead: int) -> Played:
    """Until nothing moves any more. `ahead`: calls that a host makes beyond what its GPU has done."""
    called, done = [0] * len(WORLD), [set[int]() for _ in WORLD]
    ended: set[tuple[object, ...]] = set()  # calls that all have come to
    moved = True
    while moved:
        moved = False
        for rank, ops in enumerate(PROGRAMS):
            last = min((f.at for f in faults if rank == f.rank and not f.on_gpu), default=len(ops))
            room = min(last, len(ops), len(done[rank]) + 1 + ahead)
            moved |= room > called[rank]
            called[rank] = max(called[rank], room)
        for rank in WORLD:
            for index in sorted(_reached(rank, called[rank], done[rank])):
                op = PROGRAMS[rank][index]
                if op.key not in ended and all(
                    _is_there(peer, op.key, called, done) for peer in op.members
                ):
                    ended.add(op.key)
                stays = any(f.on_gpu and rank == f.rank and index >= f.at for f in faults)
                if op.key in ended and not stays:
                    done[rank].add(index)
                    moved = True
    return Played(called, done)


def _reached(rank: int, called: int, done: set[int]) -> set[int]:
    """The calls that its GPU is in."""
    found = set()
    for index, op in enumerate(PROGRAMS[rank][:called]):
        if index in done:
            continue
        found.add(index)
        if not op.asynchronous:
            break
    return found


def _is_there(rank: int, key: tuple[object, ...], called: list[int], done: list[set[int]]) -> bool:
    """Is its GPU in that call, or has it been?"""
    index = next(n for n, op in enumerate(PROGRAMS[rank]) if op.key == key)
    return index in done[rank] or index in _reached(rank, called[rank], done[rank])


def dumps_of(played: Played, *, only_active: bool) -> dict[int, Dump]:
    return {rank: _dump(rank, played.called[rank], played.done[rank], only_active) for rank in WORLD}  # fmt: skip


def _dump(rank: int, called: int, done: set[int], only_active: bool) -> Dump:
    mine = {name: ranks for name, ranks in GROUPS.items() if rank in ranks}
    entries = [_entry(rank, op, index, index in done) for index, op in enumerate(PROGRAMS[rank][:called])]  # fmt: skip
    kept = [one for one in entries if not (only_active and one["state"] == "completed")]
    found = dump(kept, mine, first_record=0 if kept == entries else 1000)
    numbers = {name: number for number, name in enumerate(mine)}
    status = {
        str(numbers[group]): {
            "last_enqueued_collective": max(op.number for op in made_ if op.group == group),
            "last_completed_collective": max((op.number for n, op in enumerate(made_) if op.group == group and n in done), default=-1),
        }
        for made_ in [PROGRAMS[rank][:called]]
        for group in {op.group for op in made_}
    }  # fmt: skip
    return found | {"pg_status": status}


def _entry(rank: int, op: Op, index: int, done: bool) -> Dump:
    state = "completed" if done else "scheduled"
    if op.kind == "all_reduce":
        return made("all_reduce", op.number, group=op.group, state=state, at=1 + index)
    own = op.members.index(rank)
    arrow = "->" if op.kind == "send" else "<-"
    more = {"is_p2p": True, "p2p_seq_id": op.number}
    return made(f"{op.kind} {own}{arrow}{1 - own}", 0, group=op.group, state=state, at=1 + index, **more)  # fmt: skip


def judged(*faults: Fault, ahead: int, only_active: bool, lost: frozenset[int] = frozenset()) -> Conclusion:  # fmt: skip
    found = dumps_of(play(faults, ahead), only_active=only_active)
    records = {rank: parse_dump(pickle.dumps(one, 2)) for rank, one in found.items() if rank not in lost}  # fmt: skip
    return analyse(records)


FAULTS = st.builds(Fault, st.sampled_from(WORLD), st.integers(1, LENGTH - 2), st.booleans())


@settings(max_examples=250, deadline=None)
@given(fault=FAULTS, ahead=st.integers(0, 12), only_active=st.booleans())
def test_nobody_else_is_named(fault: Fault, ahead: int, only_active: bool) -> None:
    found = judged(fault, ahead=ahead, only_active=only_active)
    assert set(found.culprits) <= {fault.rank}, found


@settings(max_examples=150, deadline=None)
@given(
    fault=FAULTS,
    ahead=st.integers(0, 12),
    only_active=st.booleans(),
    lost=st.frozensets(st.sampled_from(WORLD), max_size=3),
)
def test_dumps_that_are_missing_name_nobody_else(
    fault: Fault, ahead: int, only_active: bool, lost: frozenset[int]
) -> None:
    found = judged(fault, ahead=ahead, only_active=only_active, lost=lost)
    allowed = lost if found.kind == "no_dump" else {fault.rank}
    assert set(found.culprits) <= allowed, found


@pytest.mark.parametrize("only_active", [False, True])
def test_most_are_named(only_active: bool) -> None:
    """A rank that stops calling, and one whose GPU stays in a call that has ended for another."""
    chance = random.Random(7)
    stopped = stuck = 0
    for _ in range(60):
        rank, at, ahead = chance.choice(WORLD), chance.randrange(1, LENGTH - 2), chance.randrange(8)
        stopped += judged(Fault(rank, at, on_gpu=False), ahead=ahead, only_active=only_active).culprits == (rank,)  # fmt: skip
        stuck += judged(Fault(rank, at, on_gpu=True), ahead=ahead, only_active=only_active).culprits == (rank,)  # fmt: skip
    assert (stopped, stuck) == (60, 60)


# --- two at once, as NVIDIA/nvidia-resiliency-ext injects them (tests/attribution/unit/fr_traces) ----


@settings(max_examples=250, deadline=None)
@given(first=FAULTS, second=FAULTS, ahead=st.integers(0, 12), only_active=st.booleans())
def test_of_two_at_once_nobody_else_is_named(
    first: Fault, second: Fault, ahead: int, only_active: bool
) -> None:
    found = judged(first, second, ahead=ahead, only_active=only_active)
    assert set(found.culprits) <= {first.rank, second.rank}, found


@pytest.mark.parametrize("only_active", [False, True])
@pytest.mark.parametrize(
    ("ranks", "on_gpu", "kind"),
    [
        ((4, 6), True, "stream_behind"),  # in two tensor groups of the last stage
        ((0, 3), True, "stream_behind"),  # in two tensor groups of the first
        ((4, 6), False, "missing_rank"),  # their recorders are empty of pending calls
        ((5, 6), False, "missing_rank"),
    ],
    ids=[
        "GPUs, last stage",
        "GPUs, first stage",
        "hosts, one data group",
        "hosts, two data groups",
    ],
)
def test_two_that_fail_in_one_moment_are_both_named(
    ranks: tuple[int, int], on_gpu: bool, kind: str, only_active: bool
) -> None:
    at = next(n for n, op in enumerate(PROGRAMS[ranks[0]]) if op.group.startswith("tp") and n > 8)
    found = judged(*(Fault(rank, at, on_gpu) for rank in ranks), ahead=6, only_active=only_active)
    assert (found.kind, found.culprits) == (kind, ranks), found
