"""Whose code a file is, wherever its package lies: installed, built from source, in an archive; and the job's files that are named alike."""

from pathlib import Path

import pytest

from mldebug.capture.packages import Owner, owner, package_path
from mldebug.capture.stacks.form import short_path
from mldebug.cli.commands.diagnose import judge, read_evidence

C10D = "torch/distributed/distributed_c10d.py"
PLACES = (
    "",
    "/opt/pytorch/pytorch/",
    "/opt/torch-2.8/",
    "/home/user/src/pytorch/",
    "/root/.pex/installed_wheels/3fa1/torch-2.8.0-cp311-cp311-manylinux_2_28_x86_64.whl/",
    "/tmp/train.pex/",
    "/mnt/xarfuse/uid-1000/2c1f/",
    "/data/jobs/train.par/",
    "/jobs/bin/train.runfiles/pip_deps_torch/",
    "/home/user/.cache/uv/archive-v0/Xy_1-2/",
    "/opt/conda/envs/llm/lib/python3.11/site-packages/",
    "/usr/lib64/python3.9/site-packages/",
)


@pytest.mark.parametrize("place", PLACES)
def test_torch_is_torch_wherever_it_lies(place: str) -> None:
    path = f"{place}{C10D}"

    assert owner(path, short_path(path)) is Owner.LIBRARY
    assert short_path(path) == C10D


@pytest.mark.parametrize(
    "path",
    [
        "/workspace/Megatron-LM/megatron/core/pipeline_parallel/schedules.py",
        "/opt/mcore/megatron/core/tensor_parallel/mappings.py",
        "/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py",
        "/vllm-workspace/vllm/v1/executor/multiproc_executor.py",
        "/workspace/transformers/src/transformers/trainer.py",
        "/src/DeepSpeed/deepspeed/runtime/engine.py",
        "/opt/NeMo/nemo/collections/llm/api.py",
        "/tmp/job.zip/jax/_src/array.py",
        "/home/ray/verl/verl/workers/fsdp_workers.py",
        "/app/ray/train/_internal/session.py",
    ],
)
def test_frameworks_built_in_place_are_no_code_of_the_job(path: str) -> None:
    assert owner(path, short_path(path)) is Owner.FRAMEWORK
    assert short_path(path) != path.rpartition("/")[2]


@pytest.mark.parametrize(
    "path",
    [
        "/home/user/torch/train.py",
        "/work/torch/utils/loggers.py",
        "/home/ray/train/main.py",
        "/home/ray/data/load.py",
        "/src/deepspeed/train.py",
        "/work/transformers/run.py",
        "/workspace/verl/recipe/dapo/main_dapo.py",
        "/home/user/transformers/examples/pytorch/run_clm.py",
        "/workspace/Megatron-LM/megatron/training/training.py",
        "/tmp/train.pex/train.py",
        "/job/queue.py",
        "/job/signal.py",
        "/job/copy.py",
    ],
)
def test_a_file_of_the_job_stays_the_jobs(path: str) -> None:
    assert owner(path, short_path(path)) is Owner.JOB
    assert package_path(path) == ""


@pytest.mark.parametrize(
    "path",
    [
        "/usr/lib/python3.11/queue.py",
        "/usr/lib64/python3.9/threading.py",
        "/opt/python3.13t/lib/python3.13t/selectors.py",
        "/usr/lib/python311.zip/queue.py",
        "/opt/pypy/lib/pypy3.10/subprocess.py",
        "queue.py",
    ],
)
def test_the_standard_library_is_known(path: str) -> None:
    assert owner(path, short_path(path)) is Owner.LIBRARY


@pytest.mark.parametrize(
    "archive", ["/opt/x.pex/", "/jobs/train.par/", "/tmp/a.zip/", "/mnt/xarfuse/uid-1/2c/"]
)
@pytest.mark.parametrize(
    ("file", "whose"),
    [
        ("filelock/_api.py", Owner.LIBRARY),
        ("wandb/sdk/wandb_run.py", Owner.FRAMEWORK),
        ("train.py", Owner.JOB),
        ("our/model.py", Owner.JOB),
    ],
)
def test_an_archive_holds_packages_and_the_job(archive: str, file: str, whose: Owner) -> None:
    path = f"{archive}{file}"

    assert owner(path, short_path(path)) is whose


def faulthandler(*frames: str) -> str:
    lines = "".join(f'  File "{path}", line {line} in {name}\n' for path, line, name in map(str.split, frames))  # fmt: skip
    return f"Timeout (0:10:00)!\nThread 0x00007f7c2c0a1740 (most recent call first):\n{lines}"


def full_names(*frames: str) -> str:
    lines = "".join(f"    {name} ({path}:{line})\n" for path, line, name in map(str.split, frames))
    return f'Process {len(frames)}: python train.py\n\nThread 7 (idle): "MainThread"\n{lines}'


@pytest.mark.parametrize("form", [faulthandler, full_names])
@pytest.mark.parametrize("place", PLACES[1:7])
def test_who_is_elsewhere_is_named_wherever_torch_lies(tmp_path: Path, place: str, form) -> None:  # type: ignore[no-untyped-def]
    waits = (f"{place}{C10D} 2920 all_reduce", "/job/train.py 88 step", "/job/train.py 120 <module>")  # fmt: skip
    reads = ("/job/shards.py 9 read_shard", "/job/train.py 80 step", "/job/train.py 120 <module>")
    for rank in range(4):
        (tmp_path / f"rank{rank}.txt").write_text(form(*(reads if rank == 2 else waits)))
    found = judge(read_evidence(tmp_path)).report.diagnosis

    assert [one.rank for one in found.culprits] == [2]
    assert "wait in all_reduce at step (train.py:88)" in found.summary
