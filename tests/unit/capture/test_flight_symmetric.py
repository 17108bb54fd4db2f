"""Flight Recorders of faults that hit all ranks alike name nobody, and those of one rank's fault name it: whichever rank stands where, whoever's dump
is missing, and however the nodes' clocks differ.
"""

import pickle
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, permutations

import pytest

from mldebug.capture.flight_recorder.analysis import Conclusion, analyse
from mldebug.capture.flight_recorder.dump import parse_dump
from shared.capture.dumps import START, Dump, as_json, calls, dump, made, transfer

WORLD = 4
ORDERS = tuple(permutations(range(WORLD)))
CLOCKS = (0.0, -0.04, 5.0, -90.0)  # seconds that the clock of a place goes ahead
Places = Sequence[int]  # the rank at each place
PAIRS = {"tp": (0, 1), "tp'": (2, 3), "dp": (0, 2), "dp'": (1, 3)}  # by places


def _groups(place: int, at: Places) -> dict[str, list[int]]:
    """Those of the rank at this place."""
    mine = {name: places for name, places in PAIRS.items() if place in places}
    pairs = {name: sorted(at[one] for one in places) for name, places in mine.items()}
    return {"0": list(range(WORLD)), **pairs}


def _pending(op: str, **more: object) -> Callable[[int, Places], Dump]:
    return lambda place, at: dump([*calls(3), made(op, 4, state="scheduled", **more)])  # type: ignore[arg-type]


def two_and_two(place: int, at: Places) -> Dump:
    op = "all_reduce" if place < 2 else "_all_gather_base"
    return dump([*calls(3), made(op, 4, state="scheduled")])


def two_sizes(place: int, at: Places) -> Dump:
    return dump([*calls(3), made("all_reduce", 4, state="scheduled", size=16 if place % 2 else 32)])


def each_elsewhere(place: int, at: Places) -> Dump:
    op = ("all_reduce", "broadcast", "_all_gather_base", "all_reduce_barrier")[place]
    return dump([*calls(3), made(op, 4, state="scheduled")])


def tokens_lost(place: int, at: Places) -> Dump:
    sent = [[10 * place + 8]]
    expected = [[10 * place + 7]]
    return dump([*calls(3), made("all_to_all", 4, state="scheduled", input_sizes=sent, output_sizes=expected)])  # fmt: skip


def ring_of(op: str, step: int) -> Callable[[int, Places], Dump]:
    def one(place: int, at: Places) -> Dump:
        return dump([*calls(3), transfer(op, at[place], at[(place + step) % WORLD])])

    return one


def batches(place: int, at: Places) -> Dump:
    """Each sends to the next and receives from the one before, in one batch, and it does not end."""
    ends = [("send", at[(place + 1) % WORLD]), ("recv", at[(place - 1) % WORLD])]
    parts = [transfer(op, at[place], peer, 1, time_created_ns=START + (5 + number) * 10**9) for number, (op, peer) in enumerate(ends)]  # fmt: skip
    return dump([*calls(3), *parts, made("coalesced", 0, state="scheduled", is_p2p=True, p2p_seq_id=1, at=8)])  # fmt: skip


def groups_in_two_orders(place: int, at: Places) -> Dump:
    """The outer two places take their pairs in one order, the inner ones in the other: a circle."""
    mine = [name for name, places in PAIRS.items() if place in places]
    order = mine if place in (0, 3) else mine[::-1]
    entries = [made("all_reduce", 1, group=name, state="scheduled", at=4 + n) for n, name in enumerate(order)]  # fmt: skip
    return dump([*calls(3), *entries[:1]], _groups(place, at))


def crossed_pairs(place: int, at: Places) -> Dump:
    """In each pair one reduces, and one gathers."""
    name = next(name for name, places in PAIRS.items() if place in places)
    op = "all_reduce" if place % 2 else "_all_gather_base"
    return dump([*calls(3), made(op, 1, group=name, state="scheduled", at=5)], _groups(place, at))


SYMMETRIC = {
    "all in one call": _pending("all_reduce"),
    "all at a barrier": _pending("all_reduce_barrier", size=1),
    "all in a broadcast": _pending("broadcast"),
    "two and two": two_and_two,
    "two sizes": two_sizes,
    "each elsewhere": each_elsewhere,
    "tokens lost": tokens_lost,
    "a ring of sends": ring_of("send", 1),
    "a ring of receives": ring_of("recv", 1),
    "pairs that receive from each other": lambda place, at: ring_of("recv", 1 if place % 2 == 0 else -1)(place, at),
    "batches of a ring": batches,
    "groups in two orders": groups_in_two_orders,
    "crossed pairs": crossed_pairs,
}  # fmt: skip


def late_one(place: int, at: Places) -> Dump:
    return dump(calls(3)) if place == 2 else dump(calls(4, last="scheduled"))


def odd_one(place: int, at: Places) -> Dump:
    return dump([*calls(3), made("all_reduce", 4, state="scheduled", size=32 if place == 2 else 16)])  # fmt: skip


def still_in_it(place: int, at: Places) -> Dump:
    state = "scheduled" if place == 2 else "completed"
    return dump([*calls(3), made("all_reduce", 4, state=state), made("all_reduce", 5, state="scheduled")])  # fmt: skip


def sent_nothing(place: int, at: Places) -> Dump:
    """A pipeline in which each waits for the one before, down to place 2."""
    before = {3: 2, 0: 3, 1: 0}
    waits = [transfer("recv", at[place], at[before[place]])] if place in before else []
    return dump([*calls(3), *waits])


def late_in_its_pair(place: int, at: Places) -> Dump:
    """Place 2 has not come to its tensor pair, place 3 waits there, 0 and 1 for these in their data pairs."""
    name = {0: "dp", 1: "dp'", 3: "tp'"}.get(place)
    waits = [made("all_reduce", 1, group=name, state="scheduled", at=5)] if name else []
    return dump([*calls(3), *waits], _groups(place, at))


OF_ONE = {"late": late_one, "odd": odd_one, "still in it": still_in_it, "sent nothing": sent_nothing, "late in its pair": late_in_its_pair}  # fmt: skip


def judged(fault: Callable[[int, Places], Dump], at: Places, number: int, lost: Sequence[int] = ()) -> Conclusion:  # fmt: skip
    """`number` chooses form and clocks; `lost`: ranks without a dump."""
    records = {}
    for place, rank in enumerate(at):
        ahead = CLOCKS[(place + number) % len(CLOCKS)] if number % 3 == 2 else 0.0
        one = _clocked(fault(place, at), ahead)
        if rank not in lost:
            records[rank] = parse_dump(as_json(one) if (number + place) % 2 else pickle.dumps(one, 2))  # fmt: skip
    return analyse(records)


def _clocked(one: Dump, ahead: float) -> Dump:
    moved = [it | {"time_created_ns": it["time_created_ns"] + int(ahead * 10**9)} for it in one["entries"]]  # fmt: skip
    return one | {"entries": moved}


@pytest.mark.parametrize("fault", SYMMETRIC)
def test_nobody_is_named_by_recorders_that_are_alike(fault: str) -> None:
    for number, at in enumerate(ORDERS):
        found = judged(SYMMETRIC[fault], at, number)
        assert found.culprits == (), (at, found.explanation)


@pytest.mark.parametrize("fault", SYMMETRIC)
def test_only_who_has_no_dump_may_be_named_where_some_are_missing(fault: str) -> None:
    for number, at in enumerate(ORDERS[::2]):
        for size in (1, 2):
            for lost in combinations(range(WORLD), size):
                found = judged(SYMMETRIC[fault], at, number, lost)
                assert found.kind == "no_dump" or not found.culprits, (at, lost, found.explanation)
                assert set(found.culprits) <= set(lost), (at, lost, found.explanation)


@pytest.mark.parametrize("fault", OF_ONE)
def test_the_fault_of_one_is_named_wherever_it_stands(fault: str) -> None:
    """Control, and that no number of a rank is dearer than another."""
    for number, at in enumerate(ORDERS):
        found = judged(OF_ONE[fault], at, number)
        assert found.culprits == (at[2],), (at, found.explanation)


def test_every_form_and_clock_is_tried() -> None:
    numbers = range(len(ORDERS))
    assert {number % 3 for number in numbers} == {0, 1, 2}
    named: Mapping[str, object] = {**SYMMETRIC, **OF_ONE}
    assert len(named) == len(SYMMETRIC) + len(OF_ONE)
