"""Dumps of several moments in one folder, names that people give them, and full recorders: what is not of this hang names nobody."""

from pathlib import Path

import pytest

from mldebug.capture.flight_recorder.analysis import Conclusion, analyse
from mldebug.capture.flight_recorder.files.folder import read_folder
from shared.capture.dumps import Dump, calls, dump, late, made, transfer, write

MINUTE = 60


def judged(folder: Path) -> Conclusion:
    found = read_folder(folder)
    return analyse(found.records, found.unreadable)


def after(dumps: dict[int, Dump], seconds: int) -> dict[int, Dump]:
    """The same calls, so much later."""
    return {
        rank: one
        | {
            "entries": [
                it | {"time_created_ns": it["time_created_ns"] + seconds * 10**9}
                for it in one["entries"]
            ]
        }
        for rank, one in dumps.items()
    }


# --- several dumps of one rank ----------------------------------------------------------------------


@pytest.mark.parametrize("names", [("attempt0_", "attempt1_"), ("b_rank_", "a_rank_")])
def test_the_newer_of_two_hangs_counts(names: tuple[str, str], tmp_path: Path) -> None:
    """Whatever the names of their files, and though rank 3 has not dumped a second time."""
    write(tmp_path, late(1), prefix=names[0])
    newer = after(late(2), 20 * MINUTE)
    del newer[3]
    write(tmp_path, newer, prefix=names[1])
    found = judged(tmp_path)
    assert (found.kind, found.culprits) == ("missing_rank", (2,)), found.explanation


def test_one_copy_beside_them_changes_nothing(tmp_path: Path) -> None:
    """Control: of several files of one rank it is the one that is named as most others are."""
    write(tmp_path, late(2))
    write(tmp_path, after({0: dump(calls(9))}, MINUTE), prefix="copy_")
    assert judged(tmp_path).culprits == (2,)


def test_a_time_behind_the_rank_is_no_rank(tmp_path: Path) -> None:
    for rank, one in late(1).items():
        write(tmp_path, {21300: one}, prefix=f"nccl_trace_rank_{rank}_20251113_0")
    for rank, one in after(late(2), 20 * MINUTE).items():
        write(tmp_path, {23410: one}, prefix=f"nccl_trace_rank_{rank}_20251113_0")
    found = judged(tmp_path)
    assert (found.kind, found.culprits) == ("missing_rank", (2,)), found.explanation


def test_a_pid_behind_the_rank_is_no_rank(tmp_path: Path) -> None:
    for rank, one in late(2).items():
        write(tmp_path, {4711 + 97 * rank: one}, prefix=f"fr_rank{rank}_pid")
    assert judged(tmp_path).culprits == (2,)


@pytest.mark.parametrize("prefix", ["trace_node_rank0_", "host-17_", "a1b2_"])
def test_a_number_before_the_rank_is_no_rank(prefix: str, tmp_path: Path) -> None:
    """Control."""
    assert judged(write(tmp_path, late(2), prefix=prefix)).culprits == (2,)


def test_the_last_number_is_the_rank_where_it_tells_more(tmp_path: Path) -> None:
    """Control: a word before it that happens to be `rank8`."""
    write(tmp_path, late(2), prefix="rank8gpu_trace_")
    assert judged(tmp_path).culprits == (2,)


# --- a dump of an earlier moment --------------------------------------------------------------------


def outrun_by(op: str, state: str = "completed") -> dict[int, Dump]:
    """Rank 1 ends at call 3; the others have finished 4 and wait in 5."""
    others = dump([*calls(3), made(op, 4, state=state), made("all_reduce", 5, state="scheduled")])
    return dict.fromkeys((0, 2, 3), others) | {1: dump(calls(3))}


@pytest.mark.parametrize("op", ["all_reduce", "_all_gather_base", "all_to_all", "barrier"])
def test_a_dump_that_lacks_what_the_others_have_finished_is_of_an_earlier_moment(
    op: str, tmp_path: Path
) -> None:
    found = judged(write(tmp_path, outrun_by(op)))
    assert found.culprits == (), found.explanation
    assert "it is of an earlier moment: others have finished" in found.explanation


@pytest.mark.parametrize("op", ["broadcast", "_broadcast_oop", "reduce", "scatter", "gather"])
def test_a_call_that_members_leave_before_all_have_come_proves_no_other_moment(
    op: str, tmp_path: Path
) -> None:
    """Control."""
    found = judged(write(tmp_path, outrun_by(op)))
    assert (found.kind, found.culprits) == ("missing_rank", (1,)), found.explanation


def test_what_is_pending_proves_no_other_moment(tmp_path: Path) -> None:
    """Control."""
    found = judged(write(tmp_path, outrun_by("all_reduce", "scheduled")))
    assert (found.kind, found.culprits) == ("missing_rank", (1,)), found.explanation


def test_a_group_made_anew_is_no_earlier_moment(tmp_path: Path) -> None:
    """Control: it counts from 1 again, and rank 1 has called it later than what the others have finished in the old one."""
    dumps = outrun_by("all_reduce")
    dumps[1] = dump([made("all_reduce", 1, at=9), made("all_reduce", 2, state="scheduled", at=10)])
    assert "earlier moment" not in judged(write(tmp_path, dumps)).explanation


# --- full recorders ----------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [880_000, 0])
def test_a_recorder_of_sends_alone_tells_nothing_of_the_calls_before_them(
    first: int, tmp_path: Path
) -> None:
    """Only one that has dropped none shows that a group was never used."""
    groups = {"0": range(4), "tp": range(4)}
    waits = dump(calls(5 if first else 1, last="scheduled", group="tp"), groups)
    sends = [transfer("send", 0, 1, number, state="completed") for number in range(1, 9)]
    found = judged(
        write(tmp_path, {0: dump(sends, groups, first_record=first), 1: waits, 2: waits, 3: waits})
    )
    assert found.culprits == (() if first else (0,)), found.explanation


def test_sends_may_be_the_newest_calls_of_all(tmp_path: Path) -> None:
    """It failed with an error."""
    groups = {"0": range(2)}
    found = judged(write(tmp_path, {0: dump([transfer("recv", 0, 1)], groups), 1: dump([], groups)}))  # fmt: skip
    assert (found.kind, found.culprits) == ("missing_rank", (1,)), found.explanation


@pytest.mark.parametrize("backend", ["nccl", "ncclx", "xccl", "hccl", "rccl"])
def test_a_call_that_ran_into_its_timeout_is_pending(backend: str, tmp_path: Path) -> None:
    """NCCL and its kin retire it, without having completed it."""
    waits = dump(calls(4, last="scheduled", backend=backend))
    waits["entries"][-1]["retired"] = True
    found = judged(write(tmp_path, dict.fromkeys((0, 1, 3), waits) | {2: dump(calls(3, backend=backend))}))  # fmt: skip
    assert (found.kind, found.culprits) == ("missing_rank", (2,)), found.explanation


def test_what_gloo_has_retired_is_done(tmp_path: Path) -> None:
    """Control: it marks nothing as completed."""
    ended = dump(
        [one | {"state": "scheduled", "retired": True} for one in calls(4, backend="gloo")]
    )
    assert judged(write(tmp_path, dict.fromkeys(range(4), ended))).kind == "healthy"


# --- batches -------------------------------------------------------------------------------------------


def ring(rank: int, steps: int) -> Dump:
    """Ring attention: in each step a batch of a send to the next rank and a receive from the one before."""
    entries = []
    for step in range(1, steps + 1):
        state = "scheduled" if step == steps else "completed"
        for op, peer in (("send", (rank + 1) % 4), ("recv", (rank - 1) % 4)):
            entries.append(transfer(op, rank, peer, step, time_created_ns=10**18 + len(entries)))
        end = made("coalesced", 0, state=state, is_p2p=True, p2p_seq_id=step)
        entries.append(end | {"time_created_ns": 10**18 + len(entries)})
    return dump(entries)


def test_a_batch_in_which_all_have_met_is_no_circle(tmp_path: Path) -> None:
    found = judged(write(tmp_path, {rank: ring(rank, 3) for rank in range(4)}))
    assert (found.kind, found.culprits, found.circle) == ("frozen", (), ()), found.explanation


def test_who_is_in_no_batch_is_named(tmp_path: Path) -> None:
    """Control: rank 2 has not come to the third step."""
    dumps = {rank: ring(rank, 3) for rank in (0, 1, 3)}
    done = ring(2, 3)
    done["entries"] = done["entries"][:6]
    done["entries"][5]["state"] = "completed"
    found = judged(write(tmp_path, dumps | {2: done}))
    assert (found.kind, found.culprits) == ("missing_rank", (2,)), found.explanation
