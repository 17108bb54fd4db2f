"""Folders of plain `py-spy dump` (no native frames) of DDP are judged as a person would: who stands in backward waits for the peer that is elsewhere."""

from pathlib import Path

import pytest

from mldebug.cli.commands.diagnose import judge, read_evidence
from mldebug.core.model import Confidence, Diagnosis

STEP = ("train (train.py:210)", "<module> (train.py:351)")
BACKWARDS = {
    "torch 2": ("_engine_run_backward (torch/autograd/graph.py:840)", "backward (torch/autograd/__init__.py:353)", "backward (torch/_tensor.py:625)"),
    "torch 1.13": ("backward (torch/autograd/__init__.py:197)", "backward (torch/_tensor.py:487)"),
}  # fmt: skip
ELSEWHERE = {
    "its DataLoader": ("_try_get_data (torch/utils/data/dataloader.py:1275)", "_get_data (torch/utils/data/dataloader.py:1444)", "__next__ (torch/utils/data/dataloader.py:732)", *STEP),
    "a line of its own": ("retry (net.py:9)", *STEP),
    "its exit": ("_shutdown (threading.py:1600)",),
    "its forward": ("attention (model.py:5)", "forward (torch/nn/parallel/distributed.py:1690)", *STEP),
}  # fmt: skip
COLLECTIVES = {
    "a barrier": ("barrier (torch/distributed/distributed_c10d.py:4800)", "wrapper (torch/distributed/c10d_logger.py:81)", "save (train.py:230)", *STEP),
    "an all_reduce": ("all_reduce (torch/distributed/distributed_c10d.py:2924)", "wrapper (torch/distributed/c10d_logger.py:81)", "log (train.py:250)", *STEP),
    "a gather": ("all_gather_object (torch/distributed/distributed_c10d.py:3200)", "evaluate (train.py:260)", *STEP),
}  # fmt: skip
DEVICE = ("synchronize (torch/cuda/__init__.py:1040)", "log (train.py:250)", *STEP)


def judged(
    root: Path,
    backward: tuple[str, ...],
    other: tuple[str, ...],
    *,
    ranks: int,
    active: bool = True,
    odd: tuple[int, ...] = (1,),
    lost: int = -1,
) -> Diagnosis:
    """The verdict on the dumps of that many ranks, those of `odd` elsewhere. `active`: py-spy says that the others are on a CPU."""
    for rank in range(ranks):
        stands, status = (other, "idle") if rank in odd else ((*backward, *STEP), "active" if active else "idle")  # fmt: skip
        head = (f"Process {2000 + rank}: python train.py --world_size={ranks}", "Python v3.11.9 (/usr/bin/python3.11)", "", f'Thread {2000 + rank} ({status}): "MainThread"')  # fmt: skip
        if rank != lost:
            (root / f"rank{rank}.txt").write_text("\n".join((*head, *(f"    {one}" for one in stands), "")))  # fmt: skip
    return judge(read_evidence(root)).report.diagnosis


def named(found: Diagnosis) -> list[int]:
    return [one.rank for one in found.culprits]


@pytest.mark.parametrize("backward", BACKWARDS.values(), ids=BACKWARDS)
@pytest.mark.parametrize("active", [True, False], ids=["active", "idle"])
@pytest.mark.parametrize("ranks", [3, 4, 8])
@pytest.mark.parametrize("other", [*ELSEWHERE.values(), *COLLECTIVES.values()], ids=[*ELSEWHERE, *COLLECTIVES])  # fmt: skip
def test_who_is_elsewhere_is_named_at_low(
    backward: tuple[str, ...], active: bool, ranks: int, other: tuple[str, ...], tmp_path: Path
) -> None:
    found = judged(tmp_path, backward, other, ranks=ranks, active=active)
    assert (named(found), found.confidence) == ([1], Confidence.LOW), found.summary


@pytest.mark.parametrize("active", [True, False], ids=["active", "idle"])
@pytest.mark.parametrize("other", [*ELSEWHERE.values(), *COLLECTIVES.values()], ids=[*ELSEWHERE, *COLLECTIVES])  # fmt: skip
def test_of_two_ranks_who_stands_in_backward_is_not_the_culprit(
    active: bool, other: tuple[str, ...], tmp_path: Path
) -> None:
    """It may wait for the gradients of the other, which has left the common path."""
    found = judged(tmp_path, BACKWARDS["torch 2"], other, ranks=2, active=active)
    assert named(found) in ([], [1]), found.summary
    assert found.confidence is Confidence.LOW


@pytest.mark.parametrize("active", [True, False], ids=["active", "idle"])
def test_two_and_two_are_a_split(active: bool, tmp_path: Path) -> None:
    found = judged(tmp_path, BACKWARDS["torch 2"], COLLECTIVES["a barrier"], ranks=4, active=active, odd=(1, 2))  # fmt: skip
    assert named(found) == [], found.summary


def test_the_one_that_is_left_in_backward_is_still_named(tmp_path: Path) -> None:
    """Control: the others have passed it, and it computes, or has a batch more than they."""
    found = judged(tmp_path, BACKWARDS["torch 2"], COLLECTIVES["a barrier"], ranks=4, odd=(0, 2, 3))
    assert named(found) == [1], found.summary


def test_who_waits_for_its_gpu_has_come_out_of_backward_and_is_not_named(tmp_path: Path) -> None:
    """Control: its collectives are enqueued, the others still launch theirs."""
    found = judged(tmp_path, BACKWARDS["torch 2"], DEVICE, ranks=4)
    assert named(found) == [] or found.confidence is Confidence.LOW, found.summary


@pytest.mark.parametrize("lost", range(4))
def test_a_rank_without_a_dump_is_told_first(lost: int, tmp_path: Path) -> None:
    other = ELSEWHERE["a line of its own"]
    found = judged(tmp_path, BACKWARDS["torch 2"], other, ranks=4, lost=lost)
    assert found.summary.startswith(f"Rank {lost} has no dump: look at it first; ")
    assert found.next_steps[0].startswith("py-spy dump --nonblocking --pid PID > rankN.txt  #")
    assert found.confidence is Confidence.LOW
    assert set(named(found)) <= {1}


def test_whoever_brings_dumps_is_told_which_others_would_say_more(tmp_path: Path) -> None:
    """Their processes are on another machine, or over: nothing is to be typed about a process here."""
    found = judged(tmp_path, BACKWARDS["torch 2"], ELSEWHERE["a line of its own"], ranks=4)
    assert found.next_steps[-1].startswith("mldebug dump  # on a node of the job")
    assert any(step.startswith("py-spy dump --native ") for step in found.next_steps)
    assert not any("/proc/" in step or "--watch" in step for step in found.next_steps)


LAUNCHES = {
    "the optimizer": ("_multi_tensor_adamw (torch/optim/adamw.py:600)", "step (torch/optim/adamw.py:220)", *STEP),
    "a layer": ("forward (torch/nn/modules/linear.py:130)", "_call_impl (torch/nn/modules/module.py:1790)", *STEP),
}  # fmt: skip
ENDS = {
    "the end": ("destroy_process_group (torch/distributed/distributed_c10d.py:2100)", "main (train.py:345)"),
    "a new group": ("new_group (torch/distributed/distributed_c10d.py:5000)", "mesh (train.py:30)", *STEP),
    "a store": ("_store_based_barrier (torch/distributed/distributed_c10d.py:900)", "mesh (train.py:30)", *STEP),
}  # fmt: skip


@pytest.mark.parametrize("stands", [*LAUNCHES.values(), BACKWARDS["torch 2"]], ids=[*LAUNCHES, "backward"])  # fmt: skip
@pytest.mark.parametrize("other", [*COLLECTIVES.values(), *ENDS.values()], ids=[*COLLECTIVES, *ENDS])  # fmt: skip
@pytest.mark.parametrize("active", [True, False], ids=["active", "idle"])
def test_of_two_ranks_who_gives_its_gpu_work_is_never_named_surely(
    stands: tuple[str, ...], other: tuple[str, ...], active: bool, tmp_path: Path
) -> None:
    """Where the GPU's queue is full any call of PyTorch waits, and that GPU may wait for the other rank."""
    found = judged(tmp_path, stands, other, ranks=2, active=active)
    assert found.confidence is Confidence.LOW, found.summary


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_line_of_its_own_in_which_it_sleeps_is_named_at_medium(
    ranks: int, tmp_path: Path
) -> None:
    """Control: it is in no call of PyTorch."""
    found = judged(tmp_path, COLLECTIVES["a barrier"][:1], ELSEWHERE["a line of its own"], ranks=ranks, active=False)  # fmt: skip
    assert (named(found), found.confidence) == ([1], Confidence.MEDIUM), found.summary


@pytest.mark.parametrize("active", [True, False], ids=["active", "idle"])
@pytest.mark.parametrize("stragglers", [(3,), (0, 5, 7, 9)])
@pytest.mark.parametrize("other", ["a barrier", "an all_reduce"])
def test_ranks_with_a_batch_more_than_the_others_are_not_named_surely(
    other: str, stragglers: tuple[int, ...], active: bool, tmp_path: Path
) -> None:
    """Posted: 12 ranks of Lightning with DDP, a sampler that gave some of them one batch more. These wait in backward for gradients that nobody sends."""
    away = tuple(rank for rank in range(12) if rank not in stragglers)
    found = judged(tmp_path, BACKWARDS["torch 2"], COLLECTIVES[other], ranks=12, active=active, odd=away)  # fmt: skip
    assert found.confidence is Confidence.LOW, found.summary
    assert named(found) in ([], list(stragglers)), found.summary


STEP_REDUCE = ("all_reduce (torch/distributed/distributed_c10d.py:2924)", *STEP)


def dumped(root: Path, *stacks: tuple[str, ...], world: int) -> Diagnosis:
    """The verdict on plain dumps of ranks 0, 1, … of a job of that many."""
    for rank, frames in enumerate(stacks):
        body = "".join(f"    {frame}\n" for frame in frames)
        head = f"Process {500 + rank}: python train.py --world-size {world}\n"
        (root / f"rank{rank}.txt").write_text(f'{head}Thread {500 + rank} (idle): "MainThread"\n{body}')  # fmt: skip
    return judge(read_evidence(root)).report.diagnosis


def test_who_loads_is_not_named_alone_beside_another_suspect(tmp_path: Path) -> None:
    """The detector of loaders named its own ranks where nobody could tell who waits for whom."""
    loads, own = ELSEWHERE["its DataLoader"], ELSEWHERE["a line of its own"]
    found = dumped(tmp_path, STEP_REDUCE, loads, own, STEP_REDUCE, STEP_REDUCE, world=5)
    assert [one.rank for one in found.culprits] in ([], [1, 2])
    assert found.confidence is Confidence.LOW


def test_who_loads_is_not_named_while_a_rank_was_not_seen(tmp_path: Path) -> None:
    found = dumped(tmp_path, STEP_REDUCE, ELSEWHERE["its DataLoader"], STEP_REDUCE, world=4)
    assert found.culprits == ()
    assert found.summary.startswith("Rank 3 has no dump")


def test_who_loads_is_named_beside_waiting_ranks(tmp_path: Path) -> None:
    found = dumped(tmp_path, STEP_REDUCE, ELSEWHERE["its DataLoader"], STEP_REDUCE, world=3)
    assert [one.rank for one in found.culprits] == [1]
    assert found.confidence is Confidence.MEDIUM


@pytest.mark.parametrize("call", ["barrier", "all_reduce"])
def test_one_ahead_of_three_in_native_code_is_named_at_low_at_most(
    tmp_path: Path, call: str
) -> None:
    """Three may still sort their shards, and the one that has done so may wait for them: that they wait is inferred."""
    waits = (f"{call} (torch/distributed/distributed_c10d.py:2924)", "load (data.py:44)", *STEP)
    for rank in range(4):
        frames = waits if rank == 3 else ("load (data.py:40)", *STEP)
        body = "".join(f"    {frame}\n" for frame in frames)
        text = f'Process {500 + rank}: python train.py\nThread {500 + rank} (active): "MainThread"\n{body}'
        (tmp_path / f"rank{rank}.txt").write_text(text)
    found = judge(read_evidence(tmp_path)).report.diagnosis
    assert [one.rank for one in found.culprits] in ([], [3])
    assert found.confidence is Confidence.LOW


FED = {
    "a barrier of multiprocessing": ("wait (threading.py:355)", "_wait (threading.py:716)", "wait (threading.py:675)", "meet (train.py:30)"),
    "a queue between processes": ("wait (multiprocessing/connection.py:1136)", "_poll (multiprocessing/connection.py:447)", "get (multiprocessing/queues.py:117)", "batch (train.py:33)"),
    "a queue": ("wait (threading.py:355)", "get (queue.py:171)", "batch (train.py:33)"),
    "the answer of a server": ("readinto (socket.py:705)", "_read_status (http/client.py:292)", "ask (train.py:25)"),
}  # fmt: skip


@pytest.mark.parametrize("what", FED)
@pytest.mark.parametrize("many", [2, 3])
def test_half_that_may_wait_for_the_others_is_not_named(
    tmp_path: Path, what: str, many: int
) -> None:
    """Who feeds the queue of most ranks may be the one that waits in a collective."""
    stacks = (STEP_REDUCE,) * (4 - many) + ((*FED[what], *STEP),) * many
    found = dumped(tmp_path, *stacks, world=4)
    assert found.culprits == ()
    assert found.confidence is Confidence.LOW


@pytest.mark.parametrize("what", FED)
def test_one_that_waits_so_is_named(tmp_path: Path, what: str) -> None:
    stacks = (*(STEP_REDUCE,) * 3, (*FED[what], *STEP))
    found = dumped(tmp_path, *stacks, world=4)
    assert [one.rank for one in found.culprits] == [3]
    assert found.confidence is Confidence.MEDIUM


def test_those_that_have_ended_before_one_are_not_named(tmp_path: Path) -> None:
    """The one has a batch more, or the others have one less."""
    ended = ("_shutdown (threading.py:1624)",)
    assert dumped(tmp_path, ended, ended, ended, STEP_REDUCE, world=4).culprits == ()


GIVES_WORK = ("run (triton/runtime/jit.py:419)", "replay (torch/cuda/graphs.py:88)", "forward (fla/ops/gla/chunk.py:90)",
              "_sample (transformers/generation/utils.py:3200)", "general_gemm (transformer_engine/pytorch/cpp_extensions/gemm.py:110)",
              "_bench_of (torch/nn/modules/linear.py:125)", "launcher (<string>:6)")  # fmt: skip
WORKS_ITSELF = ("compile (triton/compiler/compiler.py:322)", "read (pandas/io/parsers/c_parser_wrapper.py:230)",
                "autotune_to_one_config (torch/_inductor/runtime/triton_heuristics.py:940)", "open (pathlib.py:1119)")  # fmt: skip


@pytest.mark.parametrize("frame", GIVES_WORK)
def test_who_gives_its_gpu_work_may_wait_for_it(tmp_path: Path, frame: str) -> None:
    found = dumped(tmp_path, *(STEP_REDUCE,) * 3, (frame, *STEP), world=4)
    assert found.confidence is Confidence.LOW
    assert "compiles" not in found.summary
    assert "<string>" not in found.summary


@pytest.mark.parametrize("frame", WORKS_ITSELF)
def test_who_works_by_itself_is_named(tmp_path: Path, frame: str) -> None:
    found = dumped(tmp_path, *(STEP_REDUCE,) * 3, (frame, *STEP), world=4)
    assert [one.rank for one in found.culprits] == [3]
    assert found.confidence is Confidence.MEDIUM


@pytest.mark.parametrize("places", [1, 2])
def test_one_that_does_nothing_known_is_named_at_low_where_the_others_wait_at_different_places(
    places: int, tmp_path: Path
) -> None:
    """So stand the ranks of a job that works, dumped one after the other. Control: one place is a hang."""
    second = STEP_REDUCE if places == 1 else COLLECTIVES["a barrier"]
    found = dumped(tmp_path, STEP_REDUCE, ("replace (pathlib.py:1187)", "announce (train.py:60)", *STEP), second, STEP_REDUCE, world=4)  # fmt: skip
    assert [one.rank for one in found.culprits] in ([], [1])
    assert found.confidence is (Confidence.MEDIUM if places == 1 else Confidence.LOW), found.summary


@pytest.mark.parametrize(("works", "names"), [((1, 2, 3), []), ((1, 2), []), ((3,), [3])])
def test_most_of_a_job_seen_once_at_work_is_not_to_blame(
    works: tuple[int, ...], names: list[int], tmp_path: Path
) -> None:
    """One rank is first at the collective, as in every job that is well. A single one is named at low."""
    for rank in range(4):
        stands, status = (ELSEWHERE["its forward"], "active+gil") if rank in works else (COLLECTIVES["an all_reduce"], "active")  # fmt: skip
        head = (f"Process {2000 + rank}: python train.py --world_size=4", "Python v3.11.9 (/usr/bin/python3.11)", "", f'Thread {2000 + rank} ({status}): "MainThread"')  # fmt: skip
        (tmp_path / f"rank{rank}.txt").write_text("\n".join((*head, *(f"    {one}" for one in stands), "")))  # fmt: skip
    found = judge(read_evidence(tmp_path)).report.diagnosis
    assert (named(found), found.confidence) == (names, Confidence.LOW), found.summary
