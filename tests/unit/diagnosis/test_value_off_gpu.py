"""A line that takes a value off a GPU (`.item()`, `.cpu()`, `work.wait()`) shows no call in a plain dump, and waits for all kernels before it.

The rank may wait there for a collective that the others have not come to: it is named at `low` at most. CUDA's manual, cudaSetDeviceFlags: the
thread spins, yields or blocks, as the process has chosen, so that py-spy calls it active or idle.
"""

from collections.abc import Iterable
from pathlib import Path

import pytest

from mldebug.cli.commands.diagnose import judge, read_evidence
from mldebug.core.model import Confidence, Diagnosis

OUT = ("main (train.py:120)", "<module> (train.py:200)")
STEP = "train_step (train.py:60)"
C10D = "torch/distributed/distributed_c10d.py"
WAITS = {
    "all_reduce": (f"all_reduce ({C10D}:2810)", "wrapper (torch/distributed/c10d_logger.py:81)", STEP),
    "barrier": (f"barrier ({C10D}:4159)", "wrapper (torch/distributed/c10d_logger.py:81)", STEP),
    "synchronize": ("synchronize (torch/cuda/__init__.py:985)", STEP),
    "its gradient norm": ("clip_grad_norm_ (torch/nn/utils/clip_grad.py:80)", STEP),
}  # fmt: skip
LINES = {
    "the step of all": ("train_step (train.py:50)",),
    "a function of its loss": ("log_loss (train.py:70)", "train_step (train.py:52)"),
    "metrics": ("update (metrics.py:12)", "train_step (train.py:52)"),
    "the loop": (),
    "a callback": ("on_step_end (callbacks.py:31)", "train_step (train.py:52)"),
    "a handle's wait": ("reduce_later (buckets.py:18)", "train_step (train.py:52)"),
    "a function named as if it read": ("load_to_gpu (feed.py:8)", "train_step (train.py:52)"),
    "data parallel": ("forward (data_parallel.py:8)", "train_step (train.py:52)"),
    "accelerate's copy": ("send_to_device (accelerate/utils/operations.py:150)", "train_step (train.py:52)"),
    "Lightning's value": ("update_metrics (lightning/pytorch/loops/fit_loop.py:30)", "fit (train.py:52)"),
    "DeepSpeed's overflow": ("_has_inf_or_nan (deepspeed/runtime/zero/stage_1_and_2.py:1900)", "train_step (train.py:52)"),
    "DeepSpeed's norm": ("get_global_norm (deepspeed/runtime/utils.py:300)", "train_step (train.py:52)"),
    "Megatron's log": ("training_log (megatron/training/training.py:1500)", "train_step (train.py:52)"),
    "verl's loss": ("compute_loss (verl/workers/actor/dp_actor.py:400)", "train_step (train.py:52)"),
    "a device mode": ("__torch_function__ (torch/utils/_device.py:79)", "train_step (train.py:52)"),
}  # fmt: skip
NATIVE = {
    "item": ("cuStreamSynchronize (libcuda.so.1)", "at::native::_local_scalar_dense_cuda(at::Tensor const&) (libtorch_cuda.so)"),
    "item, the driver without names": ("0x7f10ab (libcuda.so.1)", "at::native::_local_scalar_dense_cuda (libtorch_cuda.so)"),
    "nonzero": ("0x7f10ab (libcuda.so.1)", "at::native::nonzero_cuda (libtorch_cuda.so)"),
    "a copy": ("0x7f10ab (libcuda.so.1)", "at::native::copy_kernel_cuda(at::TensorIterator&, bool) (libtorch_cuda.so)"),
    "an event": ("0x7f10ab (libcuda.so.1)", "THCPEvent_synchronize (libtorch_python.so)"),
    "a kernel of its own": ("0x7f10ab (libcuda.so.1)", "launch_all(float*) (libmykernels.so)"),
    "NCCL's queue": ("pthread_cond_wait (libc.so.6)", "ncclEnqueueCheck (libnccl.so.2)", "ncclAllReduce (libnccl.so.2)"),
    "a handle of NCCL's": ("clock_nanosleep (libc.so.6)", "c10d::ProcessGroupNCCL::WorkNCCL::synchronizeInternal (libtorch_cuda.so)"),
}  # fmt: skip


def dump(pid: int, frames: Iterable[str], status: str) -> str:
    head = f'Process {pid}: python train.py\nPython v3.11.9 (/usr/bin/python3.11)\n\nThread {pid} ({status}): "MainThread"\n'
    return head + "".join(f"    {one}\n" for one in (*frames, *OUT))


def judged(
    root: Path,
    odd: Iterable[str],
    others: Iterable[str],
    *,
    ranks: int = 4,
    who: tuple[int, ...] = (2,),
    status: str = "idle",
) -> Diagnosis:
    for rank in range(ranks):
        text = dump(100 + rank, odd, status) if rank in who else dump(100 + rank, others, "idle")
        (root / f"rank{rank}.txt").write_text(text)
    return judge(read_evidence(root)).report.diagnosis


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
@pytest.mark.parametrize("waits", WAITS.values(), ids=WAITS)
@pytest.mark.parametrize("status", ["idle", "active"])
def test_who_may_wait_for_its_gpu_is_named_at_low_at_most(
    line: tuple[str, ...], waits: tuple[str, ...], status: str, tmp_path: Path
) -> None:
    found = judged(tmp_path, line, waits, status=status)
    assert found.confidence is Confidence.LOW, found.summary
    assert {one.rank for one in found.culprits} <= {2}


@pytest.mark.parametrize("calls", NATIVE.values(), ids=NATIVE)
@pytest.mark.parametrize("waits", WAITS.values(), ids=WAITS)
def test_a_native_stack_of_the_gpus_code_proves_nothing_either(
    calls: tuple[str, ...], waits: tuple[str, ...], tmp_path: Path
) -> None:
    found = judged(tmp_path, (*calls, *LINES["the step of all"]), waits)
    assert found.confidence is Confidence.LOW, found.summary


@pytest.mark.parametrize("who", [(1,), (1, 2), (0, 1, 2), (0, 1, 2, 4, 5, 6, 7)])
@pytest.mark.parametrize("status", ["idle", "active"])
def test_neither_do_several_ranks_nor_the_one_that_is_left(
    who: tuple[int, ...], status: str, tmp_path: Path
) -> None:
    found = judged(tmp_path, LINES["the step of all"], WAITS["all_reduce"], ranks=8, who=who, status=status)  # fmt: skip
    assert found.confidence is Confidence.LOW, found.summary


def test_a_tool_that_tells_no_activity_shows_no_more(tmp_path: Path) -> None:
    """faulthandler's text of a rank in `.item()`."""
    for rank in range(4):
        top = '  File "/job/train.py", line 50 in train_step\n' if rank == 2 else (
            f'  File "/opt/venv/lib/python3.11/site-packages/{C10D}", line 2810 in all_reduce\n  File "/job/train.py", line 60 in train_step\n'
        )  # fmt: skip
        (tmp_path / f"rank{rank}.txt").write_text(f'Current thread 0x00007f10 (most recent call first):\n{top}  File "/job/train.py", line 120 in main\n')  # fmt: skip
    found = judge(read_evidence(tmp_path)).report.diagnosis
    assert ([one.rank for one in found.culprits], found.confidence) == ([2], Confidence.LOW)


def test_the_report_says_why_it_is_not_surer(tmp_path: Path) -> None:
    found = judged(tmp_path, LINES["a callback"], WAITS["all_reduce"])
    assert "rank 2: no call shows below that line, and one that takes a value off its GPU (.item(), .cpu(), work.wait()) looks the same" in found.evidence  # fmt: skip


HOST = {
    "reads": ("read_shard (data.py:31)", "next_batch (train.py:40)"),
    "a reader's class": ("ShardReader.next (webtar.py:9)", "batches (train.py:40)"),
    "camel case": ("fetchRow (rows.py:9)", "batches (train.py:40)"),
    "a file of data": ("__next__ (dataset.py:9)", "batches (train.py:40)"),
    "sleeps, by its native stack": ("clock_nanosleep (libc.so.6)", "time_sleep (python3.11)", "backoff (train.py:41)"),
    "writes through PyTorch": ("write (libc.so.6)", "caffe2::serialize::PyTorchStreamWriter::writeRecord (libtorch_cpu.so)", "save (torch/serialization.py:850)", "keep (train.py:90)"),
    "a socket": ("readinto (socket.py:706)", "begin (http/client.py:318)", "tokens (train.py:40)"),
    "a debugger": ("interaction (pdb.py:300)", "set_trace (pdb.py:1)", "train_step (train.py:50)"),
    "garbage": ("collect_garbage (train.py:71)", "train_step (train.py:50)"),
    "a child": ("waitpid (subprocess.py:2010)", "wait (subprocess.py:1264)", "compress (train.py:70)"),
}  # fmt: skip


@pytest.mark.parametrize("line", HOST.values(), ids=HOST)
@pytest.mark.parametrize("waits", ["all_reduce", "barrier"])
def test_work_on_the_host_is_named_as_before(
    line: tuple[str, ...], waits: str, tmp_path: Path
) -> None:
    found = judged(tmp_path, line, WAITS[waits])
    assert ([one.rank for one in found.culprits], found.confidence) == ([2], Confidence.MEDIUM), found.summary  # fmt: skip


def test_while_process_groups_are_made_nothing_is_before_a_line(tmp_path: Path) -> None:
    starts = (f"init_process_group ({C10D}:1810)", "setup (train.py:20)")
    found = judged(tmp_path, ("prepare (model.py:70)",), starts)
    assert ([one.rank for one in found.culprits], found.confidence) == ([2], Confidence.MEDIUM), found.summary  # fmt: skip
