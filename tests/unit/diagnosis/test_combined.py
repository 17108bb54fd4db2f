"""One sentence from recorders, stacks, NCCL RAS, the GPUs and the kernel, word for word; and what it says where they differ."""

import json
from typing import Any

import msgspec

from mldebug.capture.flight_recorder.dump import parse_dump
from mldebug.capture.nccl_ras.answer import parse
from mldebug.capture.stacks.pyspy import parse_pyspy_json
from mldebug.core.model import (
    Diagnosis,
    FlightGroup,
    FlightRecord,
    Frame,
    NcclRas,
    NodeCapture,
    ProcessCapture,
    RankCapture,
)
from mldebug.diagnosis.diagnose import diagnose
from mldebug.hardware.gpu.sentences import sentence
from shared.capture.flights import call, group, has_done, waits_in
from shared.capture.rasserver import H200, HOST, answer, recorded_text
from shared.diagnosis.builders import WAITER, capture, process, rank, still
from shared.hardware.gpusigns import played

SLEEPS = process("load (data.py:7)", "<module> (train.py:50)", wchan="hrtimer_nanosleep", move=still(span=60.0))  # fmt: skip
LOADS = process(
    "poll (multiprocessing/popen_fork.py:27)",
    "_try_get_data (torch/utils/data/dataloader.py:1275)",
    "_next_data (torch/utils/data/dataloader.py:1445)",
    "__next__ (torch/utils/data/dataloader.py:708)",
    "epoch (train.py:212)",
    wchan="do_poll",
    move=still(span=60.0),
)
STOPPED = process(*WAITER, state="T", wchan="do_signal_stop")
STEP = Frame(function="step", file="train.py", line=210, path="/home/me/train.py")
GONE = {"unresponsive": True}


def ras(*counts: int, missing: dict[int, Any] | None = None) -> NcclRas:
    """An answer of this node; the pid of rank n is 100 + n."""
    result = answer({n: {"AllReduce": many} for n, many in enumerate(counts)}, missing=missing)
    return msgspec.structs.replace(parse(json.dumps(result).encode()), own=("127.0.0.1",))


def job(
    groups: dict[int, FlightGroup],
    odd: dict[int, ProcessCapture],
    nccl_ras: NcclRas | None = None,
    *,
    world: int = 4,
    devices: str = "",
) -> Diagnosis:
    """All but the odd ones wait in one line; `groups` is what their recorders tell."""
    ranks = []
    for number in range(world):
        what = odd.get(number) or process(*WAITER, move=still())
        one = rank(number, what, world=world)
        record = FlightRecord(groups=(groups[number],)) if number in groups else None
        ranks.append(msgspec.structs.replace(one, flight=record))
    return judged(capture(*ranks, world=world), nccl_ras, devices)


def judged(taken: NodeCapture, nccl_ras: NcclRas | None, devices: str = "") -> Diagnosis:
    return diagnose([msgspec.structs.replace(taken, ras=nccl_ras, devices=devices)]).diagnosis


def outline(found: Diagnosis) -> tuple[str, str, list[int | None], str]:
    return (
        str(found.verdict),
        str(found.confidence),
        [c.rank for c in found.culprits],
        found.summary,
    )


def recorded(which: str, pid: int) -> tuple[RankCapture, ...]:
    """Two ranks on H200: stacks and dumps as they were, and a kernel that says what the stacks show."""
    found = []
    for number in range(2):
        folder = H200 / f"hang-{which}"
        stacks = parse_pyspy_json((folder / f"pyspy-{which}-r{number}.json").read_bytes())
        record = parse_dump((folder / f"flight-recorder-rank{number}.pickle").read_bytes())
        one = rank(number, ProcessCapture(pid=pid + number, stacks=stacks), world=2)
        identity = msgspec.structs.replace(one.identity, pid=pid + number)
        found.append(msgspec.structs.replace(one, identity=identity, flight=record))
    return tuple(found)


def of_recording(which: str, pid: int, answer_: int, devices: str = "") -> Diagnosis:
    taken = msgspec.structs.replace(capture(*recorded(which, pid), world=2), taken_at=4e9)
    parsed = parse(recorded_text(which)[answer_].encode())
    return judged(taken, msgspec.structs.replace(parsed, own=(HOST,)), devices)


# --- all say the same ------------------------------------------------------------------------------


def test_recorded_rank_that_sleeps() -> None:
    """NCCL on two H200: stacks, raw dumps, RAS as text, and the fingerprint of the same fault."""
    devices = sentence(played("sleep")[-1].print)
    found = of_recording("sleep", 620, 1, devices)
    assert outline(found) == (
        *("rank_waiting", "medium", [1]),
        (
            "Rank 1 left all_reduce 56811 of group 0 at train.py:17 and since then does nothing in slow_data_loader "
            "(train.py:7); rank 0 waits in all_reduce 56812 of group 0 at train.py:21"
        ),
    )
    assert found.evidence == (
        "rank 0 (waiting): Python frames: synchronize called at train.py:21",
        "Flight Recorder: rank 0 waits in all_reduce 56812 of group 0, which rank 1 has not called",
        "NCCL RAS: rank 1 has launched 56805 AllReduce, the other up to 56806",
        (
            "GPU 0 waits in a collective (100 % busy, 125 W of usual 692 W, no memory traffic); "
            "GPU 1 runs nothing (0 % busy, 120 W of usual 691 W)"
        ),
    )


def test_recorded_ranks_in_different_collectives() -> None:
    found = of_recording("desync", 860, 1)
    assert outline(found) == (
        *("collective_mismatch", "low", []),
        (
            "All ranks wait: collective 28807 of group 0 is not the same for all (rank 0 all_reduce of 1048576 elements of Float, rank 1 "
            "broadcast of 1024 elements of Float); no majority tells who left the common path"
        ),
    )
    assert found.evidence[-1] == (
        "NCCL RAS: calls do not fit together: rank 0 has launched the most AllReduce (28801), rank 1 has launched the most Broadcast (6)"
    )


def test_the_data_loader_of_one_rank() -> None:
    before = msgspec.structs.replace(call("all_reduce", 5, done=True), frames=(STEP,))
    everybody = tuple(range(8))
    dp: dict[str, Any] = {"ranks": everybody}
    groups = {n: group(before, call("all_reduce", 6), **dp) for n in everybody if n != 2}
    groups = {n: msgspec.structs.replace(g, description="dp") for n, g in groups.items()}
    groups[2] = msgspec.structs.replace(group(before, **dp), description="dp")
    found = job(groups, {2: LOADS}, ras(6, 6, 5, 6, 6, 6, 6, 6), world=8)
    assert outline(found) == (
        *("dataloader_stalled", "medium", [2]),
        (
            "Rank 2 left all_reduce 5 of group dp at step (train.py:210) and since then waits for its DataLoader in epoch "
            "(train.py:212); ranks 0-1,3-7 wait in all_reduce 6 of group dp at sync (train.py:30)"
        ),
    )
    assert found.evidence[-2:] == (
        "Flight Recorder: ranks 0-1,3-7 wait in all_reduce 6 of group dp, which rank 2 has not called",
        "NCCL RAS: rank 2 has launched 5 AllReduce, the 7 others up to 6",
    )


def test_a_stopped_rank_has_no_recorder_and_does_not_answer() -> None:
    groups = {n: waits_in("all_reduce", 6) for n in range(3)}
    found = job(groups, {3: STOPPED}, ras(6, 6, 6, missing={3: GONE}))
    assert outline(found) == (
        *("rank_stopped", "high", [3]),
        "Rank 3 is stopped by a signal in sync (train.py:30); ranks 0-2 wait in all_reduce 6 of group 0 at sync (train.py:30)",
    )
    assert found.evidence == (
        "rank 3: state T (stopped)",
        "rank 0 (waiting): Python frames: all_reduce called at sync (train.py:30)",
        "rank 0 (waiting): the same frames in 8 samples over 2.0 s, 0 % CPU, 0 context switches",
        "Flight Recorder: ranks 0-2 wait in all_reduce 6 of group 0",
        "NCCL RAS: rank 3 does not answer: stopped, gone, or out of reach",
    )


LEFT = (
    "Rank 2 left all_reduce 5 of group 0 and since then sleeps in load (data.py:7); "
    "ranks 0-1,3 wait in all_reduce 6 of group 0 at sync (train.py:30)"
)


def test_the_kernel_says_what_a_rank_does_since() -> None:
    groups = {n: waits_in("all_reduce", 6) for n in (0, 1, 3)} | {2: has_done("all_reduce", 5)}
    found = job(groups, {2: SLEEPS}, ras(6, 6, 5, 6))
    assert outline(found) == ("rank_waiting", "high", [2], LEFT)
    assert found.evidence[:2] == (
        "rank 2: wait channel hrtimer_nanosleep",
        "rank 2: the same frames in 8 samples over 60.0 s, 0 % CPU, 0 context switches",
    )


def test_all_five_are_cited_in_one_diagnosis() -> None:
    """Enqueue frames, live stacks, NCCL RAS, the fingerprint of the GPUs, and where the kernel has the rank."""
    before = msgspec.structs.replace(call("all_reduce", 5, done=True), frames=(STEP,))
    groups = {n: waits_in("all_reduce", 6) for n in (0, 1, 3)} | {2: group(before)}
    devices = sentence(played("sleep")[-1].print)
    found = job(groups, {2: SLEEPS}, ras(6, 6, 5, 6), devices=devices)
    assert outline(found) == (
        *("rank_waiting", "high", [2]),
        (
            "Rank 2 left all_reduce 5 of group 0 at step (train.py:210) and since then sleeps in load (data.py:7); "
            "ranks 0-1,3 wait in all_reduce 6 of group 0 at sync (train.py:30)"
        ),
    )
    assert found.evidence == (
        "rank 2: wait channel hrtimer_nanosleep",
        "rank 2: the same frames in 8 samples over 60.0 s, 0 % CPU, 0 context switches",
        "rank 0 (waiting): Python frames: all_reduce called at sync (train.py:30)",
        "rank 0 (waiting): the same frames in 8 samples over 2.0 s, 0 % CPU, 0 context switches",
        "Flight Recorder: ranks 0-1,3 wait in all_reduce 6 of group 0, which rank 2 has not called",
        "NCCL RAS: rank 2 has launched 5 AllReduce, the 3 others up to 6",
        devices,
    )


def test_of_two_that_do_the_same_one_sentence_is_said() -> None:
    groups = {n: waits_in("all_reduce", 6, ranks=(*range(5),)) for n in (0, 1, 4)}
    groups |= {n: has_done("all_reduce", 5, ranks=(*range(5),)) for n in (2, 3)}
    found = job(groups, {2: SLEEPS, 3: SLEEPS}, world=5)
    assert outline(found)[2:] == (
        [2, 3],
        (
            "Ranks 2-3 left all_reduce 5 of group 0 and since then sleep in load (data.py:7); "
            "ranks 0-1,4 wait in all_reduce 6 of group 0 at sync (train.py:30)"
        ),
    )


# --- one says something else -----------------------------------------------------------------------


def test_ras_names_another_rank() -> None:
    groups = {n: waits_in("all_reduce", 6) for n in (0, 1, 3)} | {2: has_done("all_reduce", 5)}
    found = job(groups, {2: SLEEPS}, ras(6, 6, 6, 5))
    assert outline(found) == (
        *("rank_waiting", "medium", [2]),
        f"{LEFT}; but NCCL RAS says that rank 3 has launched 5 AllReduce, the 3 others up to 6",
    )


def test_ras_says_that_all_have_launched_the_same() -> None:
    groups = {n: waits_in("all_reduce", 6, backend="nccl") for n in (0, 1, 3)}
    groups[2] = has_done("all_reduce", 5, backend="nccl")
    found = job(groups, {2: SLEEPS}, ras(6, 6, 6, 6))
    assert outline(found) == (
        *("rank_waiting", "medium", [2]),
        f"{LEFT}; but NCCL RAS says that all 4 ranks answer and have launched the same 6 collectives",
    )


def test_the_recorder_says_that_the_sleeping_rank_has_called_and_another_has_not() -> None:
    groups = {n: waits_in("all_reduce", 6) for n in (0, 1, 2)} | {3: has_done("all_reduce", 5)}
    found = job(groups, {2: SLEEPS})
    assert outline(found) == (
        *("rank_waiting", "medium", [2]),
        (
            "Rank 2 sleeps in load (data.py:7); ranks 0-1,3 wait in all_reduce at sync (train.py:30); "
            "but the Flight Recorder says that rank 2 has called all_reduce 6 of group 0 and rank 3 has not"
        ),
    )


def test_ras_alone_names_nobody_and_never_makes_sure() -> None:
    """A rank that is behind may be a victim, so what it says of one that nothing else names stays evidence."""
    for item in (ras(6, 6, 5, 6), ras(6, 6, 6, missing={3: GONE})):
        assert outline(job({}, {}, item))[:3] == ("unknown", "low", [])
    loading = {2: LOADS}
    groups = {n: waits_in("all_reduce", 6) for n in (0, 1, 3)} | {2: has_done("all_reduce", 5)}
    plain, with_ras = (job(groups, loading, value) for value in (None, ras(6, 6, 5, 6)))
    assert (plain.confidence, with_ras.confidence) == ("medium", "medium")
