"""What answers of NCCL RAS prove: movement between two, who is behind in one, and whose processes it speaks of."""

import json
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from mldebug.capture.nccl_ras.answer import parse
from mldebug.capture.nccl_ras.process_map import global_ranks, home
from mldebug.capture.nccl_ras.progress import behind, brief, differs, moved
from mldebug.core.model import Diagnosis, NcclRas, NodeCapture
from mldebug.diagnosis.diagnose import diagnose
from shared.capture.rasserver import HOST, answer, recorded, recorded_text
from shared.diagnosis.builders import WAITER, capture, process, rank, still

GONE = {"unresponsive": True}
DEAD = {"unresponsive": True, "considered_dead": True}


def merged_answer(*answers: dict[str, Any], own: tuple[str, ...] = ("127.0.0.1",)) -> NcclRas:
    """Several communicators in one answer."""
    rows = [one for each in answers for one in each["communicators"]]
    whole = parse(json.dumps({**answers[0], "communicators": rows}).encode())
    return msgspec.structs.replace(whole, own=own)


def counts(*all_reduces: int, **more: Any) -> dict[str, Any]:
    return answer({n: {"AllReduce": many} for n, many in enumerate(all_reduces)}, **more)


# --- movement ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (counts(5, 5), counts(5, 5), False),
        (counts(5, 5), counts(6, 5), True),
        (counts(5, 4), counts(5, 5), True),
        (counts(5, 5), counts(5, 5, key="0x9"), None),
        (counts(5, 5), counts(5, missing={1: GONE}), None),
        (counts(5, missing={1: GONE}), counts(5, missing={1: GONE}), False),
        (counts(5, missing={1: GONE}), counts(6, missing={1: GONE}), True),
        (counts(5, missing={1: GONE}), answer({1: {"AllReduce": 4}}, missing={0: GONE}), None),
    ],
)
def test_a_count_that_changed_is_movement(
    before: dict[str, Any], after: dict[str, Any], expected: bool | None
) -> None:
    """Only the same ranks can be compared: one that answers no more takes its launches with it."""
    assert moved(merged_answer(before), merged_answer(after)) is expected
    assert moved(brief(merged_answer(before)), brief(merged_answer(after))) is expected


def test_text_shows_no_movement() -> None:
    first, second = (parse(text.encode()) for text in recorded_text("sleep"))
    assert moved(first, second) is None


@pytest.mark.parametrize("name", ["sleep", "loop", "kernel", "frozen"])
def test_recorded_training_moves_and_recorded_hangs_do_not(name: str) -> None:
    """All ranks launch up to the fault and not once after it: the last questions were 25 s and more into the hang."""
    answers = [parse(one.encode()) for _, one in recorded(name) if one[:1] == "{"]
    steps = [moved(*pair) for pair in pairwise(answers)]
    assert steps[0] is True
    assert steps[-2:] == [False, False]


# --- who is behind ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "lacks"), [("sleep", 25), ("loop", 25)])
def test_the_rank_that_never_came_is_behind_in_the_recordings(name: str, lacks: int) -> None:
    found = behind(parse(recorded(name)[-1][1].encode()).communicators[0])
    assert found is not None
    assert ([one.rank for one in found.ranks], found.most - found.count) == ([1], lacks)


def test_recorded_text_of_a_rank_that_never_came() -> None:
    found = behind(parse(recorded_text("sleep")[1].encode()).communicators[0])
    assert found is not None
    assert ([one.rank for one in found.ranks], found.many, found.most) == ([1], 1, 56806)


@pytest.mark.parametrize("name", ["kernel", "frozen"])
def test_equal_counts_name_nobody(name: str) -> None:
    """A kernel that never ends on one rank: all have launched it."""
    one = parse(recorded(name)[-1][1].encode()).communicators[0]
    assert (behind(one), differs(one)) == (None, ())


def test_ranks_that_lack_different_calls_name_nobody() -> None:
    """Recorded: rank 0 is in an all_reduce, rank 1 in a broadcast, and each lacks what the other has called."""
    one = parse(recorded_text("desync")[1].encode()).communicators[0]
    assert behind(one) is None
    assert [(level.function, level.count) for level in differs(one)] == [
        ("AllReduce", 28801),
        ("Broadcast", 6),
    ]


def test_most_of_a_level_may_be_left_out() -> None:
    text = recorded_text("sleep")[0].replace(
        "  Rank 1 has launched up to operation 56805 -- GPU 1 managed by process 621 on node 192.0.2.2",
        "  30 ranks have launched up to operation 56805",
    )
    found = behind(
        msgspec.structs.replace(parse(text.encode()).communicators[0], size=64, answered=64)
    )
    assert found is not None
    assert (found.ranks, found.many, found.count) == ((), 30, 56805)


# --- whose processes -------------------------------------------------------------------------------


def test_ours_is_the_host_with_one_of_our_addresses() -> None:
    """In containers the pids of all nodes may be the same."""
    there = counts(1, 1, host="10.0.0.2", key="0x2")
    here = counts(1, 1, host="10.0.0.1")
    assert home(merged_answer(there, here, own=("127.0.0.1", "10.0.0.1")), {100, 101}) == "10.0.0.1"
    assert home(merged_answer(there, here, own=("127.0.0.1",)), {100, 101}) == ""
    assert home(merged_answer(there, here, own=("10.0.0.1",)), {7}) == ""


def test_ours_is_else_the_only_host_that_has_all_our_processes() -> None:
    assert home(merged_answer(counts(1, 1, host="10.0.0.1"), own=()), {100, 101}) == "10.0.0.1"
    assert home(merged_answer(counts(1, 1, host="10.0.0.1"), own=()), {100, 102}) == ""
    assert home(merged_answer(counts(1, 1), own=()), set()) == ""


def test_global_ranks_of_other_nodes_follow_from_the_communicator_of_all() -> None:
    world = counts(1, 1, 1, 1)
    for row, host in zip(world["communicators"][0]["ranks"], "aabb", strict=True):
        row["host"], row["pid"] = host, 100 + row["rank"] % 2
    part = counts(1, 1, key="0x5", host="b")
    found = global_ranks(merged_answer(world, part), 4, {("a", 100): 0, ("a", 101): 1})
    assert found == {("a", 100): 0, ("a", 101): 1, ("b", 100): 2, ("b", 101): 3}


@pytest.mark.parametrize("known", [{("127.0.0.1", 100): 1}, {("127.0.0.1", 900): 0}, {}])
def test_a_communicator_that_contradicts_what_is_known_tells_no_ranks(
    known: dict[tuple[str, int], int],
) -> None:
    """Or one of which nothing is known: `new_group` may number its ranks as it likes."""
    assert global_ranks(merged_answer(counts(1, 1)), 2, known) == {}


def test_a_process_with_several_gpus_is_no_rank() -> None:
    world = counts(1, 1, pids={0: 100, 1: 100})
    assert global_ranks(merged_answer(world), 2, {("127.0.0.1", 100): 0}) == {}


# --- in a report -----------------------------------------------------------------------------------


def hang(ras: NcclRas | None, world: int = 4, ranks: int = 4) -> NodeCapture:
    """All wait in one line; the pid of rank n is 100 + n."""
    taken = capture(
        *(rank(n, process(*WAITER, pid=100 + n, move=still()), world=world) for n in range(ranks)),
        world=world,
    )
    return msgspec.structs.replace(taken, ras=ras)


def lines(*captures: NodeCapture) -> list[str]:
    found: Diagnosis = diagnose(captures).diagnosis
    return [one for one in found.evidence if one.startswith("NCCL RAS")]


@pytest.mark.parametrize(
    ("ras", "expected"),
    [
        (
            merged_answer(counts(6, 6, 5, 6)),
            ["rank 2 has launched 5 AllReduce, the 3 others up to 6"],
        ),
        (
            merged_answer(counts(6, 5, 5, 7)),
            ["ranks 1-2 have launched 5 AllReduce, the 2 others up to 7"],
        ),
        (
            merged_answer(counts(6, 6, 6, missing={3: GONE})),
            ["rank 3 does not answer: stopped, gone, or out of reach"],
        ),
        (
            merged_answer(counts(6, 6, missing={2: DEAD, 3: GONE})),
            [
                "rank 2 is taken for dead by NCCL",
                "rank 3 does not answer: stopped, gone, or out of reach",
            ],
        ),
        (
            merged_answer(counts(6, 6, 6, missing={3: {}})),
            ["rank 3 has left the communicator of 4"],
        ),
        (
            merged_answer(counts(6, 6, 6, 6)),
            ["all 4 ranks answer and have launched the same 6 collectives"],
        ),
        (
            merged_answer(answer({0: {"AllReduce": 6, "Broadcast": 1}, 1: {"AllReduce": 5, "Broadcast": 2}})),
            [
                "calls do not fit together in a communicator of 2: rank 0 has launched the most AllReduce (6), "
                + "rank 1 has launched the most Broadcast (2)"
            ],
        ),
        (merged_answer(counts(0, 0, 0, 0)), []),
        (merged_answer(counts(6, 6, 5, 6, pids={n: 900 + n for n in range(4)})), [
            "process 902 on 127.0.0.1 has launched 5 AllReduce in a communicator of 4, the 3 others up to 6"
        ]),
    ],
)  # fmt: skip
def test_sentences(ras: NcclRas, expected: list[str]) -> None:
    assert lines(hang(ras)) == [f"NCCL RAS: {one}" for one in expected]


def test_evidence_changes_no_verdict() -> None:
    """Counts are launches: whoever is behind may be a victim of another group, or replay a graph."""
    with_ras = diagnose([hang(merged_answer(counts(6, 6, 5, 6)))]).diagnosis
    without = diagnose([hang(None)]).diagnosis
    assert (with_ras.verdict, with_ras.culprits, with_ras.summary) == (
        *(without.verdict, without.culprits),
        without.summary,
    )


def test_a_rank_of_another_node_is_called_by_its_rank() -> None:
    """Found by the communicator of all, in which this node's ranks stand where they should."""
    ras = merged_answer(counts(6, 6, 6, 5))
    for_two = hang(ras, ranks=2)
    assert lines(for_two) == ["NCCL RAS: rank 3 has launched 5 AllReduce, the 3 others up to 6"]


def test_of_two_nodes_the_fuller_answer_speaks() -> None:
    poor, full = merged_answer(counts(6, missing={1: GONE})), merged_answer(counts(6, 5))
    assert lines(hang(poor, 2, 2), hang(full, 2, 2)) == lines(hang(full, 2, 2))


def test_recorded_names() -> None:
    """The recording's own host and pids."""
    ras = parse(recorded("sleep")[-1][1].encode())
    one, two = (rank(n, process(*WAITER, pid=594 + n, move=still()), world=2) for n in range(2))
    ranks = tuple(
        msgspec.structs.replace(r, identity=msgspec.structs.replace(r.identity, pid=594 + n))
        for n, r in enumerate((one, two))
    )
    taken = capture(*ranks, world=2)
    ras = msgspec.structs.replace(ras, own=(HOST,))
    assert lines(msgspec.structs.replace(taken, ras=ras)) == [
        "NCCL RAS: rank 1 has launched 12718 AllReduce, the other up to 12743"
    ]
