"""What the analyser concludes from the dumps of a job: PyTorch's weak cases, chains, circles, and what is missing."""

import pickle
import random
import time
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mldebug.capture.flight_recorder.analysis import KINDS, Conclusion, analyse
from mldebug.capture.flight_recorder.dump import parse_dump
from shared.capture.dumps import (
    Dump,
    calls,
    dump,
    late,
    made,
    not_started,
    odd_size,
    stuck,
    transfer,
)

WORLD = {"0": range(4)}


def judged(made_dumps: Mapping[int, Dump]) -> Conclusion:
    return analyse({rank: parse_dump(pickle.dumps(one, 2)) for rank, one in made_dumps.items()})


def without(made_dumps: dict[int, Dump], *ranks: int) -> dict[int, Dump]:
    return {rank: one for rank, one in made_dumps.items() if rank not in ranks}


# --- the six cases in which PyTorch's analyser errs, or is right -----------------------------------


def test_a_rank_that_never_came() -> None:
    found = judged(late(2))
    assert (found.kind, found.culprits, found.group, found.seq) == ("missing_rank", (2,), "0", 4)
    assert found.explanation == (
        "Rank 2 has not called all_reduce 4 of group 0, in which ranks 0-1,3 wait at train_step (train.py:21). Its last"
        " call there was all_reduce 3 at train_step (train.py:21)."
    )


def test_the_odd_one_is_named_and_not_the_others() -> None:
    found = judged(odd_size(0))
    assert (found.kind, found.culprits, found.seq) == ("mismatch", (0,), 4)
    assert found.explanation.startswith(
        "Collective 4 of group 0 is not the same for all: rank 0 calls all_reduce of 32 elements of Float"
    )


def test_all_are_in_it_and_it_does_not_end() -> None:
    found = judged(stuck())
    assert (found.kind, found.culprits, found.group, found.seq) == ("frozen", (), "0", 4)


def test_a_gpu_that_has_not_come_to_it() -> None:
    found = judged(not_started(2))
    assert (found.kind, found.culprits, found.seq) == ("stream_behind", (2,), 4)


def test_two_gpus_that_have_not_come_to_it() -> None:
    found = judged(not_started(2, world=8) | {5: not_started(5, world=8)[5]})
    assert (found.kind, found.culprits) == ("stream_behind", (2, 5))


def test_a_gpu_that_is_still_in_an_earlier_call() -> None:
    held = dump(
        [
            *calls(2),
            *(made("all_reduce", n, state="started" if n == 3 else "scheduled") for n in (3, 4)),
        ]
    )
    found = judged(stuck() | {3: held})
    assert (found.kind, found.culprits, found.seq) == ("stream_behind", (3,), 4)


def test_of_the_missing_one_there_is_no_dump() -> None:
    found = judged(without(late(2), 2))
    assert (found.kind, found.culprits, found.seq) == ("no_dump", (2,), 4)


def test_healthy() -> None:
    found = judged(dict.fromkeys(range(4), dump(calls(9))))
    assert (found.kind, found.culprits, found.group, found.seq) == ("healthy", (), None, None)


# --- votes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{"op": "broadcast"}, {"dtype": "BFloat16"}])
def test_another_operation_or_type(more: dict[str, str]) -> None:
    one = made(more.pop("op", "all_reduce"), 4, state="scheduled", **more)
    found = judged(stuck() | {3: dump([*calls(3), one])})
    assert (found.kind, found.culprits, found.seq) == ("mismatch", (3,), 4)


def test_a_tie_is_a_split() -> None:
    found = judged(stuck(count=4) | dict.fromkeys((2, 3), odd_size(0)[0]))
    assert (found.kind, found.culprits, found.seq) == ("split", (), 4)
    assert "no majority of its 4 members" in found.explanation


def test_who_did_not_answer_has_a_vote() -> None:
    """Two of four agree against one: the fourth might be of either side."""
    found = judged(without(odd_size(0), 3))
    assert (found.kind, found.culprits) == ("split", ())


def test_sizes_of_a_gather_may_differ() -> None:
    parts = [[8], [9], [10], [11]]
    by_rank = {
        rank: dump([*calls(3), made("all_gather", 4, size=8 + rank, output_sizes=parts, state="started")])
        for rank in range(4)
    }  # fmt: skip
    assert judged(by_rank).kind == "frozen"


def test_a_mismatch_that_went_through_is_told() -> None:
    odd = dump([*calls(3), made("all_reduce", 4, size=32), made("all_reduce", 5)])
    found = judged(dict.fromkeys(range(3), dump(calls(5))) | {3: odd})
    assert (found.kind, found.culprits, found.seq) == ("mismatch", (3,), 4)


def test_one_call_ahead_of_all_others() -> None:
    """Who waits alone may have made a call too many, and the answer says so: of the others nobody is named."""
    found = judged(dict.fromkeys(range(1, 4), dump(calls(3))) | {0: dump(calls(4, last="started"))})
    assert (found.kind, found.culprits) == ("missing_rank", ())
    assert "rank 0 may have made a call too many" in found.explanation


def test_it_has_ended_on_most() -> None:
    """Then all have come, also those without a dump."""
    found = judged({0: dump(calls(4)), 1: dump(calls(4)), 2: dump(calls(4)), 3: stuck()[0]})
    assert (found.kind, found.culprits) == ("stream_behind", (3,))


def test_a_victim_of_a_broadcast_is_not_named() -> None:
    early = dump([*calls(3), made("broadcast", 4, state="started")])
    later = dump([*calls(3), made("broadcast", 4), made("all_reduce", 5, state="started")])
    found = judged(dict.fromkeys(range(3), later) | {3: early})
    assert (found.kind, found.culprits) == ("unknown", ())


# --- several groups --------------------------------------------------------------------------------

GRID: dict[str, tuple[int, ...]] = {
    "tp0": (0, 1), "tp1": (2, 3), "dp0": (0, 2), "dp1": (1, 3),
}  # fmt: skip


def of_grid(rank: int, *entries: Dump, state: str = "started") -> Dump:
    """A rank of two pairs in both directions."""
    mine = {"0": range(4)} | {name: ranks for name, ranks in GRID.items() if rank in ranks}
    return dump(entries, mine)


def tp(rank: int, state: str) -> Dump:
    return made("all_reduce", 1, group=f"tp{rank // 2}", state=state)


def dp(rank: int, state: str) -> Dump:
    return made("all_gather", 1, group=f"dp{rank % 2}", state=state, at=2)


def test_a_chain_is_followed_to_its_end() -> None:
    """0 waits for 1, 1 for 3, and 3 has done nothing: it is the one, though only one rank waits for it itself."""
    found = judged(
        {
            0: of_grid(0, tp(0, "completed"), dp(0, "completed"), made("all_reduce", 2, group="tp0", state="started", at=3)),
            1: of_grid(1, tp(1, "completed"), dp(1, "started")),
            2: of_grid(2, tp(2, "completed"), dp(2, "completed")),
            3: of_grid(3, tp(3, "completed")),
        }
    )  # fmt: skip
    assert (found.kind, found.culprits, found.group, found.seq) == ("missing_rank", (3,), "dp1", 1)
    assert found.evidence[1].startswith("rank 0 waits in all_reduce 2 of group tp0")


def test_a_chain_that_ends_in_a_frozen_call() -> None:
    """0 waits for 1, 2 for 3, and these two are together in a call that does not end."""
    more = {"state": "started", "at": 3}
    ready = [tp(0, "completed"), dp(0, "completed")]
    found = judged(
        {
            0: of_grid(0, *ready, made("all_reduce", 2, group="tp0", **more)),
            1: of_grid(1, tp(1, "completed"), dp(1, "started")),
            2: of_grid(2, tp(2, "completed"), dp(2, "completed"), made("all_reduce", 2, group="tp1", **more)),
            3: of_grid(3, tp(3, "completed"), dp(3, "started")),
        }
    )  # fmt: skip
    assert (found.kind, found.culprits, found.group, found.seq) == ("frozen", (), "dp1", 1)


def test_a_circle_is_printed_as_one() -> None:
    """Rank 0 takes tensor parallel first and waits for 1, which waits for 3, for 2, for 0."""
    found = judged(
        {
            0: of_grid(0, tp(0, "started")),
            1: of_grid(1, dp(1, "started")),
            3: of_grid(3, tp(3, "started")),
            2: of_grid(2, dp(2, "started")),
        }
    )
    assert (found.kind, found.culprits, found.circle) == ("order_inversion", (), (0, 1, 3, 2))
    assert "rank 0 waits in all_reduce 1 of group tp0" in found.explanation
    assert "for rank 1; rank 1 waits in all_gather 1 of group dp1" in found.explanation


def test_who_takes_two_groups_of_all_in_another_order_is_named() -> None:
    groups = {"0": range(4), "a": range(4), "b": range(4)}
    usual = dump([made("all_reduce", 1, group="a", state="started")], groups)
    other = dump([made("all_reduce", 1, group="b", state="started")], groups)
    found = judged({0: usual, 1: usual, 2: other, 3: usual})
    assert (found.kind, found.culprits) == ("order_inversion", (2,))


def test_the_first_call_of_a_group() -> None:
    """Who has called nothing in it has no entry of it; its dump tells that it is a member."""
    groups = {"0": range(4), "a": range(4)}
    first = made("all_reduce", 1, group="a", state="started", at=9)
    waiting, behind = dump([*calls(3), first], groups), dump(calls(3), groups)
    found = judged({0: waiting, 1: behind, 2: waiting, 3: waiting})
    assert (found.kind, found.culprits, found.group, found.seq) == ("missing_rank", (1,), "a", 1)


def test_a_recorder_that_has_forgotten_is_no_evidence() -> None:
    groups = {"0": range(4), "a": range(4)}
    first = made("all_reduce", 1, group="a", state="started", at=9)
    waiting = dump([*calls(3), first], groups)
    cut = dump(calls(3), groups, first_record=5000)
    found = judged({0: waiting, 1: cut, 2: waiting, 3: waiting})
    assert (found.kind, found.culprits, found.group) == ("unknown", (), "a")
    assert "the dump of rank 1 holds no call of this group any more" in found.explanation


def test_rings_of_different_age_are_compared_where_both_remember() -> None:
    members = {"0": range(4)}
    young = dump(calls(300, first=290, last="started"), members, first_record=289)
    old = dump(calls(300, last="started"), members)
    assert judged({0: old, 1: young, 2: old, 3: young}).kind == "frozen"
    behind = dump(calls(299), members)
    assert judged({0: old, 1: young, 2: behind, 3: young}).culprits == (2,)


# --- sends and receives ------------------------------------------------------------------------------


def test_a_send_that_was_left_out() -> None:
    """3 waits for 2, which waits for 1, which has done nothing."""
    found = judged(
        {
            0: dump(calls(3)),
            1: dump(calls(3)),
            2: dump([*calls(3), transfer("recv", 2, 1)]),
            3: dump([*calls(3), transfer("recv", 3, 2)]),
        }
    )
    assert (found.kind, found.culprits, found.seq) == ("missing_rank", (1,), 1)
    assert found.explanation.startswith("Rank 1 has not met recv 1 from rank 1 of group 0")


def test_both_sides_of_a_send_are_there() -> None:
    pair = {
        2: dump([*calls(3), transfer("recv", 2, 1)]),
        1: dump([*calls(3), transfer("send", 1, 2)]),
    }
    found = judged({0: dump(calls(3)), 3: dump(calls(3))} | pair)
    assert (found.kind, found.culprits) == ("frozen", ())


def test_two_that_both_receive_first() -> None:
    pair = {
        1: dump([*calls(3), transfer("recv", 1, 2)]),
        2: dump([*calls(3), transfer("recv", 2, 1)]),
    }
    found = judged({0: dump(calls(3)), 3: dump(calls(3))} | pair)
    assert (found.kind, found.circle) == ("order_inversion", (1, 2))


# --- gloo ------------------------------------------------------------------------------------------


def gloo(count: int, *, pending: bool, text: str = "[]") -> Dump:
    """Its finished calls say `scheduled` and are retired; its group has no name."""
    entries = [
        made("all_reduce", n, state="scheduled", backend="gloo", retired=n < count or not pending)
        for n in range(1, count + 1)
    ]
    config = {"": {"name": "", "desc": "", "ranks": text}}
    return dump(entries) | {"pg_config": config}


@pytest.mark.parametrize("text", ["[]", "[0, 1, 2, 3]"])
def test_gloo_names_neither_groups_nor_states(text: str) -> None:
    assert judged(dict.fromkeys(range(4), gloo(4, pending=False, text=text))).kind == "healthy"
    hung = dict.fromkeys(range(4), gloo(5, pending=True, text=text))
    assert judged(hung | {2: gloo(4, pending=False, text=text)}).culprits == (2,)


def test_gloo_of_a_rank_that_has_called_nothing() -> None:
    hung = dict.fromkeys((0, 1, 3), gloo(1, pending=True))
    found = judged(hung | {2: dump([], {}) | {"pg_config": {}}})
    assert (found.kind, found.culprits, found.seq) == ("missing_rank", (2,), 1)
    assert "It has called nothing in this group yet." in found.explanation


def test_a_call_of_nccl_that_ran_into_its_timeout_has_not_ended() -> None:
    timed_out = dump([*calls(3), made("all_reduce", 4, state="started", retired=True)])
    found = judged(dict.fromkeys((0, 1, 3), timed_out) | {2: dump(calls(3))})
    assert (found.kind, found.culprits) == ("missing_rank", (2,))


def test_nothing_to_compare() -> None:
    found = judged({0: dump([], {}), 1: dump([], {})})
    assert (found.kind, found.culprits) == ("unknown", ())


# --- any ---------------------------------------------------------------------------------------------

FAULTS: dict[str, tuple[Callable[[], dict[int, Dump]], frozenset[int]]] = {
    "late": (lambda: late(5, world=8), frozenset({5})),
    "odd": (lambda: odd_size(5, world=8), frozenset({5})),
    "not started": (lambda: not_started(5, world=8), frozenset({5})),
    "stuck": (lambda: stuck(8), frozenset()),
    "healthy": (lambda: dict.fromkeys(range(8), dump(calls(4), {"0": range(8)})), frozenset()),
}


@settings(max_examples=60, deadline=None)
@given(
    fault=st.sampled_from(sorted(FAULTS)),
    lost=st.sets(st.integers(0, 7), max_size=7),
    order=st.randoms(use_true_random=False),
)
def test_lost_files_never_name_a_wrong_rank_and_their_order_is_nothing(
    fault: str, lost: set[int], order: random.Random
) -> None:
    make, guilty = FAULTS[fault]
    there = without(make(), *lost)
    shuffled = list(there.items())
    order.shuffle(shuffled)
    found = judged(there)
    assert found == judged(dict(shuffled))
    assert found.kind in KINDS
    named = set(found.culprits)
    assert named <= (lost if found.kind == "no_dump" else guilty), found
    if not lost:
        assert named == guilty


def test_five_hundred_ranks_take_a_moment() -> None:
    """The figure itself is a row of `tests/bench/flight.py`; here only that nothing grows with the square."""
    one, behind = (
        dump(calls(n, last=s), {"0": range(512)}) for n, s in ((50, "started"), (49, "completed"))
    )
    raw = {rank: pickle.dumps(behind if rank == 300 else one, 2) for rank in range(512)}
    began = time.process_time()
    found = analyse({rank: parse_dump(data) for rank, data in raw.items()})
    assert (found.kind, found.culprits) == ("missing_rank", (300,))
    assert time.process_time() - began < 15


@pytest.mark.timeout(20)
def test_a_dump_whose_numbers_lie_far_apart_is_judged_by_the_calls_that_it_holds() -> None:
    """Each number between the first call and the last was voted on: two dumps of one user kept the agent busy for years."""
    far = {rank: dump(calls(3)) for rank in range(4)}
    for one in far.values():
        one["entries"][-1]["collective_seq_id"] = 2**52
    assert judged(far).kind == "healthy"
    far[3]["entries"][-1]["input_sizes"] = [[7]]
    assert (judged(far).kind, judged(far).seq, judged(far).culprits) == ("mismatch", 2**52, (3,))
