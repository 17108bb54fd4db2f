"""Flight Recorders of all ranks together: who is named, and when nobody may be. Every case hangs at one and the same line."""

import pickle
from pathlib import Path

import msgspec
import pytest

from mldebug.capture.flight_recorder.analysis import analyse
from mldebug.capture.flight_recorder.dump import parse_dump
from mldebug.core.model import Diagnosis, FlightGroup, FlightRecord, NodeCapture
from mldebug.diagnosis.diagnose import diagnose
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
from shared.capture.flights import call, group, has_done, job, waits_in
from shared.diagnosis.builders import capture, process, rank, still

Records = dict[int, tuple[FlightGroup, ...] | None]
SITE = "at sync (train.py:30)"
H200 = Path(__file__).parents[2] / "fixtures" / "h200"


def diagnosed(taken: NodeCapture) -> Diagnosis:
    return diagnose([taken]).diagnosis


def outcome(taken: NodeCapture) -> tuple[str, list[int | None], str]:
    found = diagnosed(taken)
    return str(found.verdict), [one.rank for one in found.culprits], str(found.confidence)


def all_but(number: int, theirs: FlightGroup, its: FlightGroup, world: int = 4) -> Records:
    return {rank: (its,) if rank == number else (theirs,) for rank in range(world)}


# --- named ---------------------------------------------------------------------------------------


def test_without_flight_recorder_the_same_line_names_nobody() -> None:
    assert outcome(job({})) == ("unknown", [], "low")


def test_one_collective_behind_is_named_with_both_numbers() -> None:
    everyone = tuple(range(8))
    theirs, its = (waits_in("all_reduce", n, ranks=everyone) for n in (6, 5))
    found = diagnosed(job(all_but(2, theirs, its, 8), world=8))
    assert ([one.rank for one in found.culprits], found.confidence) == ([2], "high")
    assert found.summary == (
        "Rank 2 is one collective behind in group 0 (all_reduce 5 of 6): "
        f"it waits in all_reduce 5 {SITE}, ranks 0-1,3-7 in all_reduce 6"
    )
    assert found.culprits[0].reason == "is one collective behind in group 0 (all_reduce 5 of 6)"


def test_several_behind_are_named_together() -> None:
    everyone = tuple(range(5))
    records: Records = {
        rank: (waits_in("all_reduce", 3 if rank < 2 else 9, ranks=everyone),) for rank in everyone
    }
    found = diagnosed(job(records, world=5))
    assert [one.rank for one in found.culprits] == [0, 1]
    assert found.summary.startswith(
        "Ranks 0-1 are 6 collectives behind in group 0 (all_reduce 3 of 9): they wait in all_reduce 3"
    )


def test_two_groups_of_the_same_ranks_in_another_order() -> None:
    first, second = {"name": "0"}, {"name": "1"}
    theirs = (has_done("all_reduce", 50, **first), waits_in("all_reduce", 21, **second))
    its = (waits_in("all_reduce", 51, **first), has_done("all_reduce", 20, **second))
    found = diagnosed(job({0: theirs, 1: theirs, 2: its, 3: theirs}))
    assert [one.rank for one in found.culprits] == [2]
    assert found.confidence == "high"
    assert found.summary == (
        "Rank 2 has not called all_reduce 21 of group 1, in which ranks 0-1,3 wait: "
        f"it waits in all_reduce 51 of group 0 instead {SITE}"
    )


FIRST = group(call("all_reduce", 1), name="1")
INSTEAD = waits_in("all_reduce", 51, name="0")


def first_call(*its: FlightGroup) -> Records:
    """The others wait in the first call of group 1, rank 2 in a later one of group 0."""
    theirs = (has_done("all_reduce", 50, name="0"), FIRST)
    return {0: theirs, 1: theirs, 2: its, 3: theirs}


def test_who_has_not_made_the_first_call_of_a_group_is_named() -> None:
    found = diagnosed(job(first_call(group(name="1"), INSTEAD)))
    assert [one.rank for one in found.culprits] == [2]
    assert found.confidence == "high"
    assert found.summary == (
        "Rank 2 has not called all_reduce 1 of group 1, in which ranks 0-1,3 wait: "
        f"it waits in all_reduce 51 of group 0 instead {SITE}"
    )


def test_another_operation_at_the_same_number() -> None:
    records = all_but(1, waits_in("all_reduce", 6), waits_in("broadcast", 6))
    found = diagnosed(job(records))
    assert [one.rank for one in found.culprits] == [1]
    assert found.summary == (
        f"Rank 1 calls broadcast as collective 6 of group 0 {SITE}: ranks 0,2-3 call all_reduce"
    )


def test_the_evidence_tells_each_operation_apart() -> None:
    found = diagnosed(job(all_but(1, waits_in("all_reduce", 6), waits_in("broadcast", 6))))
    assert [fact for fact in found.evidence if fact.startswith("Flight Recorder")] == [
        "Flight Recorder: ranks 0,2-3 wait in all_reduce 6 of group 0",
        "Flight Recorder: rank 1 waits in broadcast 6 of group 0",
    ]


def test_another_operation_is_named_also_where_its_caller_has_left_it() -> None:
    """The root of a broadcast goes on once it has sent."""
    its = group(call("broadcast", 6, done=True), call("all_reduce", 7))
    assert outcome(job(all_but(1, waits_in("all_reduce", 6), its)))[1] == [1]


def test_another_size_at_the_same_number() -> None:
    """The first rank is no truth: the majority is."""
    records = all_but(0, waits_in("all_reduce", 6), waits_in("all_reduce", 6, elements=128))
    found = diagnosed(job(records))
    assert [one.rank for one in found.culprits] == [0]
    assert f"with 128 elements of Float {SITE}: ranks 1-3 call it with 64" in found.summary


def test_who_waits_in_something_that_is_not_recorded_is_named_too() -> None:
    store = process("wait (torch/futures/__init__.py:9)", "sync (train.py:30)", move=still())
    records = all_but(3, waits_in("all_reduce", 6), has_done("all_reduce", 5))
    assert outcome(job(records, odd={3: store}))[1] == [3]


@pytest.mark.parametrize(
    "op",
    ["all_gather_base", "reduce_scatter_base", "all_gather_into_tensor_coalesced", "reduce_scatter_single"],
)  # fmt: skip
def test_another_size_in_a_gather_into_one_tensor(op: str) -> None:
    records = all_but(2, waits_in(op, 6), waits_in(op, 6, elements=32))
    found = diagnosed(job(records))
    assert [one.rank for one in found.culprits] == [2]
    assert f"Rank 2 calls {op} 6 of group 0 with 32 elements of Float" in found.summary


# --- nobody --------------------------------------------------------------------------------------


def test_who_is_not_told_to_be_in_a_group_is_no_evidence() -> None:
    """It may not have made the group yet, or not tell how often it has called it."""
    assert outcome(job(first_call(INSTEAD))) == ("unknown", [], "low")


def test_who_makes_a_group_anew_is_not_behind_in_it() -> None:
    """It is in the start of the group, where others may have kept it."""
    starts = process(
        "_store_based_barrier (torch/distributed/distributed_c10d.py:9)",
        "init_process_group (torch/distributed/distributed_c10d.py:9)",
        "build (train.py:9)",
        move=still(),
    )
    assert outcome(job(first_call(group(name="1"), INSTEAD), odd={2: starts}))[1] == []


def test_no_call_of_one_backend_is_none_of_the_other() -> None:
    """A group of two backends counts the calls of one of them."""
    assert outcome(job(first_call(group(name="1", backend="nccl"), INSTEAD)))[1] == []


def test_who_waits_for_others_before_its_first_call_may_be_a_victim() -> None:
    pair = waits_in("all_reduce", 9, name="2", ranks=(0, 2))
    assert outcome(job(first_call(group(name="1"), pair)))[1] == []


def test_of_two_who_have_not_made_the_first_call_nobody_is_named() -> None:
    theirs, its = (has_done("all_reduce", 50), FIRST), (group(name="1"), INSTEAD)
    assert outcome(job({0: theirs, 1: theirs, 2: its, 3: its}))[1] == []


@pytest.mark.parametrize(
    "its",
    [waits_in("all_gather", 6, elements=8), waits_in("gather", 6), waits_in("reduce_scatter", 6)],
)
def test_sizes_may_differ_where_an_operation_allows_it(its: FlightGroup) -> None:
    op = its.calls[-1].op
    assert outcome(job(all_but(1, waits_in(op, 6, elements=99), its)))[1] == []


def test_a_tie_is_a_split() -> None:
    records: Records = {n: (waits_in("all_reduce" if n < 2 else "broadcast", 6),) for n in range(4)}
    found = diagnosed(job(records))
    assert (found.verdict, found.culprits, found.confidence) == ("collective_mismatch", (), "low")
    assert "ranks 0-1 all_reduce of 64 elements" in found.summary
    assert outcome(job({n: (waits_in("all_reduce", 5 + n // 2),) for n in range(4)}))[1] == []


def test_who_did_not_answer_is_no_evidence() -> None:
    theirs = (waits_in("all_reduce", 6),)
    assert outcome(job({0: theirs, 1: theirs, 3: theirs})) == ("unknown", [], "low")
    its = (waits_in("all_reduce", 5),)
    assert (
        outcome(job({0: theirs, 1: None, 2: its, 3: theirs}))[1] == []
    )  # two of four are no majority


def test_of_a_majority_that_answered_with_one_missing_it_is_medium() -> None:
    everyone = tuple(range(6))
    records = all_but(
        2, waits_in("all_reduce", 6, ranks=everyone), waits_in("all_reduce", 5, ranks=everyone), 6
    )
    records[5] = None
    assert outcome(job(records, world=6)) == ("collective_mismatch", [2], "medium")


def test_all_alike_and_stuck_names_nobody_and_says_so() -> None:
    found = diagnosed(job({n: (waits_in("all_reduce", 6),) for n in range(4)}))
    assert (found.verdict, found.culprits) == ("unknown", ())
    assert (
        "all 4 members of group 0 have called all_reduce 6 alike, and it does not end"
        in found.summary
    )
    assert not any("TIMING" in one for one in found.next_steps), "a setting of NCCL alone"


@pytest.mark.parametrize("state", ["scheduled", "started"])
def test_a_call_that_does_not_end_names_the_setting_that_would_have_told_more(state: str) -> None:
    """Without the times of NCCL no recorder tells whose GPU has come to a call: an endless kernel on one looks as a hung network."""
    group = waits_in("all_reduce", 6, backend="nccl")
    (done, pending) = group.calls
    calls = (done, msgspec.structs.replace(pending, state=state))
    found = diagnosed(job(dict.fromkeys(range(4), (msgspec.structs.replace(group, calls=calls),))))
    hints = [one for one in found.next_steps if one.startswith("TORCH_NCCL_ENABLE_TIMING=1  # ")]
    assert (str(found.verdict), len(hints)) == ("unknown", int(state == "scheduled"))


def test_where_sizes_differ_that_may_nobody_says_alike() -> None:
    records = all_but(2, waits_in("all_gather", 6), waits_in("all_gather", 6, elements=32))
    found = diagnosed(job(records))
    assert (found.verdict, found.culprits) == ("unknown", ())
    assert found.summary.endswith(
        "members of group 0 have called all_gather 6 and nobody is behind, "
        "but their sizes or types differ: are they meant to?"
    )


def test_where_sizes_differ_that_may_the_lines_of_the_stacks_name_nobody() -> None:
    elsewhere = process(
        "all_gather (torch/distributed/distributed_c10d.py:3252)", "sync (train.py:31)", move=still()
    )  # fmt: skip
    records = all_but(3, waits_in("all_gather", 6), waits_in("all_gather", 6, elements=32))
    assert outcome(job(records, odd={3: elsewhere}))[:2] == ("unknown", [])


def test_the_root_of_a_scatter_alone_tells_a_size() -> None:
    other = msgspec.structs.replace(call("scatter", 6), elements=None, dtypes="")
    records = all_but(0, group(other), waits_in("scatter", 6))
    assert "alike" in diagnosed(job(records)).summary


def test_all_alike_overrules_the_lines_of_the_stacks() -> None:
    """Two lines of a script may call the same collective."""
    elsewhere = process(
        "all_reduce (torch/distributed/distributed_c10d.py:3252)",
        "sync (train.py:31)",
        move=still(),
    )
    records: Records = {n: (waits_in("all_reduce", 6),) for n in range(4)}
    assert outcome(job({}, odd={3: elsewhere})) == ("collective_mismatch", [3], "medium")
    assert outcome(job(records, odd={3: elsewhere}))[:2] == ("unknown", [])


def test_a_circle_over_two_groups_is_told_as_one() -> None:
    """Rank 0 has left out a collective of its pair; in the whole group only its victim is behind."""
    pair = {"name": "1", "ranks": (0, 1)}
    world = waits_in("all_reduce", 12)
    behind = has_done("all_reduce", 11)
    records: Records = {
        0: (world, has_done("all_reduce", 10, **pair)),
        1: (behind, waits_in("all_reduce", 11, **pair)),
        2: (world,),
        3: (world,),
    }
    found = diagnosed(job(records))
    assert (found.verdict, found.culprits, found.confidence) == (
        "collective_mismatch",
        (),
        "medium",
    )
    assert found.summary.startswith("Ranks wait for each other in a circle: ranks 0,2-3 wait in")
    assert (
        "rank 1 waits in all_reduce 11 of group 1 (ranks 0-1), which rank 0 has not called"
        in found.summary
    )


def test_two_ranks_in_a_circle_are_told_and_not_named() -> None:
    one = (
        waits_in("all_reduce", 5, name="0", ranks=(0, 1)),
        has_done("all_reduce", 7, name="1", ranks=(0, 1)),
    )
    two = (
        has_done("all_reduce", 4, name="0", ranks=(0, 1)),
        waits_in("all_reduce", 8, name="1", ranks=(0, 1)),
    )
    assert outcome(job({0: one, 1: two}, world=2)) == ("collective_mismatch", [], "medium")


def test_a_pending_receive_makes_a_victim_of_who_is_behind() -> None:
    instead = waits_in("all_reduce", 9, name="1")
    records = all_but(2, waits_in("all_reduce", 6), has_done("all_reduce", 5))
    records[2] = (has_done("all_reduce", 5), instead)
    assert outcome(job(records))[1] == [2]
    assert outcome(job(records, sends={2: ("recv 2<-1",)}))[1] == []


UNRECORDED = {
    "recv": "recv (torch/distributed/distributed_c10d.py:9)",
    "batch_isend_irecv": "batch_isend_irecv (torch/distributed/distributed_c10d.py:9)",
    "monitored_barrier": "monitored_barrier (torch/distributed/distributed_c10d.py:9)",
    "new_group": "new_group (torch/distributed/distributed_c10d.py:9)",
    "the store": "get_all (torch/distributed/elastic/utils/store.py:9)",
    "first": "_wait (mldebug_training/helpers/first.py:9)",
    "an unrecorded backend": "all_reduce (torch/distributed/distributed_c10d.py:9)",
}


@pytest.mark.parametrize("call_", UNRECORDED.values(), ids=UNRECORDED.keys())
def test_who_is_behind_in_a_wait_that_no_recorder_holds_may_be_the_victim(call_: str) -> None:
    """Gloo records no send: the one that left out a send waits in the collective, and its victim is behind."""
    there = process(call_, "exchange (train.py:9)", move=still())
    records = all_but(3, waits_in("all_reduce", 6), has_done("all_reduce", 5))
    found = diagnosed(job(records, odd={3: there}))
    assert (found.verdict, found.culprits, found.confidence) == ("collective_mismatch", (), "low")
    assert found.summary.startswith("Rank 3 waits ")
    assert found.summary.endswith(
        " exchange (train.py:9) and has not called all_reduce 6 of group 0, in which ranks 0-2 wait; "
        "whom it waits for no recorder tells"
    )


def test_who_waits_for_its_gpu_is_named_where_nccl_holds_all_that_runs_there() -> None:
    gpu = process("synchronize (torch/cuda/__init__.py:9)", "loss (train.py:9)", move=still())
    for backend, named in (("nccl", [3]), ("gloo", [])):
        theirs = waits_in("all_reduce", 6, backend=backend)
        records = all_but(3, theirs, has_done("all_reduce", 5, backend=backend))
        verdict, culprits, confidence = outcome(job(records, odd={3: gpu}))
        assert (verdict, culprits) == ("collective_mismatch", named)
        assert confidence == ("medium" if named else "low")


def test_a_stack_and_a_recorder_that_disagree_are_no_certainty() -> None:
    """All members answered; the stack of one waits in a receive, and its recorder in a collective that it began before."""
    receives = process(UNRECORDED["recv"], "exchange (train.py:9)", move=still())
    records = all_but(2, waits_in("all_reduce", 6), waits_in("broadcast", 6))
    assert outcome(job(records)) == ("collective_mismatch", [2], "high")
    assert outcome(job(records, odd={0: receives})) == ("collective_mismatch", [2], "medium")


def test_an_earlier_collective_with_a_root_makes_no_culprit() -> None:
    records = all_but(2, waits_in("all_reduce", 6), waits_in("reduce", 5))
    assert outcome(job(records))[1] == []


def test_who_does_not_wait_at_all_is_left_to_the_others() -> None:
    asleep = process("load (train.py:7)", wchan="hrtimer_nanosleep", move=still())
    records = all_but(2, waits_in("all_reduce", 6), has_done("all_reduce", 5))
    found = diagnosed(job(records, odd={2: asleep}))
    assert (found.verdict, [one.rank for one in found.culprits]) == ("rank_waiting", [2])
    assert any("which rank 2 has not called" in fact for fact in found.evidence)


def test_a_call_that_was_made_while_we_looked_says_that_the_job_moves() -> None:
    fresh = group(call("all_reduce", 5, done=True), call("all_reduce", 6, at=1_800_000_000.0))
    assert outcome(job(all_but(2, fresh, waits_in("all_reduce", 5))))[1] == []


def test_groups_of_one_name_and_other_members_are_not_compared() -> None:
    left, right = {"name": "7", "ranks": (0, 1)}, {"name": "7", "ranks": (2, 3)}
    records: Records = {
        0: (waits_in("all_reduce", 6, **left),), 1: (waits_in("all_reduce", 6, **left),),
        2: (waits_in("all_reduce", 40, **right),), 3: (waits_in("all_reduce", 40, **right),),
    }  # fmt: skip
    assert outcome(job(records))[1] == []


def test_a_rank_that_claims_to_be_in_a_group_of_others_has_no_say() -> None:
    records = all_but(
        2, waits_in("all_reduce", 6, ranks=(0, 1, 3)), waits_in("all_reduce", 5, ranks=(0, 1, 3))
    )
    assert outcome(job(records))[1] == []


def test_stored_evidence_that_is_damaged_names_nobody() -> None:
    records = all_but(2, waits_in("all_reduce", 6), waits_in("all_reduce", 5))
    broken = {
        n: tuple(msgspec.structs.replace(g, members="0-x") for g in value or ())
        for n, value in records.items()
    }
    assert outcome(job(broken)) == ("unknown", [], "low")


def test_it_survives_storage() -> None:
    taken = job(all_but(2, waits_in("all_reduce", 6), waits_in("all_reduce", 5)))
    again = msgspec.json.decode(msgspec.json.encode(taken), type=NodeCapture)
    assert again == taken
    assert outcome(again)[1] == [2]


# --- as `mldebug flight-recorder` says -----------------------------------------------------------------

NOT_MET = [made("all_reduce", n, group="1", state="started", at=9) for n in (1,)]
OFFLINE: dict[str, dict[int, Dump]] = {
    "late": late(2),
    "another size": odd_size(0),
    "its GPU has not come to it": not_started(2),
    "frozen": stuck(),
    "no majority": stuck() | dict.fromkeys((2, 3), odd_size(0)[0]),
    "one ahead": dict.fromkeys(range(1, 4), dump(calls(3))) | {0: late(2)[0]},
    "no dump": {rank: one for rank, one in late(2).items() if rank != 2},
    "ended on most": {rank: dump(calls(4)) for rank in range(3)} | {3: stuck()[0]},
    "forgotten": dict.fromkeys(range(3), stuck()[0])
    | {3: dump([*calls(3), *NOT_MET], {"0": range(4), "1": range(4)})},
}
LIVE = {  # who is named; None: whoever the command names
    "no dump": (),  # nobody could ask it: no evidence
}


def hung(records: dict[int, FlightRecord], world: int) -> NodeCapture:
    """All ranks wait for their GPUs."""
    gpu = process("synchronize (torch/cuda/__init__.py:9)", "loss (train.py:9)", move=still())
    ranks = [rank(number, gpu, world=world) for number in range(world)]
    ranks = [msgspec.structs.replace(one, flight=records.get(n)) for n, one in enumerate(ranks)]
    return msgspec.structs.replace(capture(*ranks, world=world), taken_at=2e9)


def live(records: dict[int, FlightRecord], world: int) -> list[int | None]:
    """Who is named then."""
    return [one.rank for one in diagnosed(hung(records, world)).culprits]


@pytest.mark.parametrize("case", OFFLINE)
def test_the_judge_of_a_live_job_and_the_command_name_the_same(case: str) -> None:
    records = {n: parse_dump(pickle.dumps(one, 2)) for n, one in OFFLINE[case].items()}
    assert live(records, 4) == [*LIVE.get(case, analyse(records).culprits)]


def test_two_that_both_receive_first_are_told_as_a_circle() -> None:
    sides = {1: transfer("recv", 1, 2), 2: transfer("recv", 2, 1)}
    made_ = {n: dump([*calls(3), *([sides[n]] if n in sides else [])]) for n in range(4)}
    found = diagnosed(hung({n: parse_dump(pickle.dumps(one, 2)) for n, one in made_.items()}, 4))
    assert (found.verdict, found.culprits) == ("collective_mismatch", ())
    assert found.summary.startswith(
        "Ranks wait for each other in a circle: rank 1 waits in recv 1 from rank 2 of group 0, which rank 2 has not met"
    )


@pytest.mark.parametrize(("hang", "named"), [("sleep", [1]), ("desync", [])])
def test_recordings_of_two_gpus_name_nobody_else(hang: str, named: list[int]) -> None:
    """One of two is no majority, and a job that runs wants one."""
    files = sorted((H200 / f"hang-{hang}").glob("flight-recorder-rank*.pickle"))
    records = {n: parse_dump(path.read_bytes()) for n, path in enumerate(files)}
    assert [*analyse(records).culprits] == named
    assert live(records, 2) == []


def test_records_of_a_job_of_other_ranks_are_not_believed() -> None:
    """A job of 4 has written over the files of four of our eight ranks, and its rank 2 is one behind."""
    theirs = late(rank=2, world=4)
    ours = dict.fromkeys(range(4, 8), stuck(world=8)[0])
    for dumps in (theirs, theirs | ours):
        found = diagnosed(
            hung({n: parse_dump(pickle.dumps(one, 2)) for n, one in dumps.items()}, 8)
        )
        assert not found.culprits
        assert "Flight Recorder of ranks 0-3: not believed, it is of a job of other ranks (0-3)" in found.evidence  # fmt: skip
