"""Who gives the ranks their work is no rank beside them, and all that is known of the job where nothing else was dumped."""

from pathlib import Path

import pytest

from mldebug.capture.dump_folder import captures_from_dumps

WORKER = ("all_gather_into_tensor (torch/distributed/distributed_c10d.py:3798)", "update_policy (verl/workers/actor/dp_actor.py:420)", "func (verl/single_controller/ray/base.py:700)", "main_loop (ray/_private/worker.py:946)")  # fmt: skip
DRIVERS = (
    ("get_objects (ray/_private/worker.py:900)", "__call__ (verl/single_controller/ray/base.py:50)", "fit (verl/trainer/ppo/ray_trainer.py:1200)"),
    ("get (ray/_private/worker.py:2800)", "execute_all_sync (verl/single_controller/ray/base.py:610)", "validate (my_trainer.py:40)"),
    ("sleep (replay.py:31)", "fit (verl/trainer/ppo/ray_trainer.py:1200)", "run (verl/trainer/main_ppo.py:241)", "main_loop (ray/_private/worker.py:946)"),
)  # fmt: skip


def _dump(pid: int, command: str, frames: tuple[str, ...]) -> str:
    inner = "".join(f"    {one}\n" for one in frames)
    return (
        f'Process {pid}: {command}\nPython v3.11.9\n\nThread {pid} (idle): "MainThread"\n{inner}\n'
    )


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("name", ["driver.txt", "a-head.txt", "z.txt"])
def test_ranks_keep_their_numbers_beside_their_driver(
    driver: tuple[str, ...], name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(_dump(7, "ray::TaskRunner.run", driver))
    for rank in range(3):
        (tmp_path / f"worker{rank}.txt").write_text(_dump(70 + rank, "ray::WorkerDict", WORKER))
    found = captures_from_dumps(tmp_path)
    assert {(one.identity.rank, one.identity.pid) for capture in found for one in capture.ranks} == {(0, 70), (1, 71), (2, 72)}  # fmt: skip


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_driver_alone_is_shown(driver: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "driver.txt").write_text(_dump(7, "ray::TaskRunner.run", driver))
    assert len(captures_from_dumps(tmp_path)[0].ranks) == 1


def test_a_worker_below_the_controllers_decorator_is_a_rank(tmp_path: Path) -> None:
    """A control: what the controller calls in a worker stands in the same file."""
    for rank in range(3):
        (tmp_path / f"worker{rank}.txt").write_text(_dump(70 + rank, "ray::WorkerDict", WORKER))
    assert len(captures_from_dumps(tmp_path)[0].ranks) == 3


def test_a_rank_that_waits_for_its_loader_is_one_whatever_its_script(tmp_path: Path) -> None:
    loader = ("_try_get_data (torch/utils/data/dataloader.py:1251)", "__next__ (torch/utils/data/dataloader.py:708)", "fit (loop.py:9)")  # fmt: skip
    for rank in range(4):
        command, frames = ("python a.py", loader) if rank == 2 else ("python b.py", WORKER[:1])
        (tmp_path / f"rank{rank}.txt").write_text(_dump(70 + rank, command, frames))
    assert len(captures_from_dumps(tmp_path)[0].ranks) == 4


def test_a_strange_program_is_none(tmp_path: Path) -> None:
    """A control: another script, which waits for nothing of a training."""
    for rank in range(4):
        command, frames = ("python a.py", ("serve (web.py:9)",)) if rank == 2 else ("python b.py", WORKER[:1])  # fmt: skip
        (tmp_path / f"rank{rank}.txt").write_text(_dump(70 + rank, command, frames))
    assert len(captures_from_dumps(tmp_path)[0].ranks) == 3


@pytest.mark.parametrize(
    ("names", "sure"),
    [
        (("llm-master-0.txt", "llm-worker-0.txt", "llm-worker-1.txt"), False),
        (("tf-chief-0.log", "tf-worker-0.log", "tf-worker-1.log"), False),
        (("job-worker-0.txt", "job-worker-1.txt", "job-worker-2.txt"), False),
        (("machine0.txt", "machine1.txt", "machine2.txt"), False),
        (("rank0.txt", "rank1.txt", "rank2.txt"), True),
        (("worker_0.txt", "worker_1.txt", "worker_2.txt"), True),
    ],
)
def test_pods_and_machines_are_numbered_in_their_order_and_the_report_says_so(
    names: tuple[str, ...], sure: bool, tmp_path: Path
) -> None:
    """Kubeflow's master is rank 0, and its first worker rank 1. Each process is 1 in its pod, and none is taken for another."""
    for rank, name in enumerate(names):
        (tmp_path / name).write_text(_dump(1, f"python train.py --part {rank}", WORKER))
    found = captures_from_dumps(tmp_path)
    assert [one.identity.rank for capture in found for one in capture.ranks] == [0, 1, 2]
    assert sure is not any(one.kind == "rank_order" for capture in found for one in capture.remarks)
