"""Errors that torch's distributed checkpoint collects of all ranks, and each rank prints: who is listed has failed by itself, whoever stands last."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from mldebug.cli.commands.diagnose import judge, read_evidence
from mldebug.core.model import Confidence, Diagnosis

_LIB = "/opt/venv/lib/python3.11/site-packages/torch/distributed/checkpoint"
_FULL = "OSError: [Errno 28] No space left on device"


def printed(rank: int, failed: Sequence[int], error: str = _FULL) -> str:
    """What this rank prints."""
    head = (
        "Traceback (most recent call last):\n"
        '  File "/workspace/train.py", line 318, in save\n    dcp.save(state, checkpoint_id=path)\n'
        f'  File "{_LIB}/utils.py", line 270, in all_reduce\n    raise final_result\n'
        f"torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys({list(failed)})\n"
    )
    parts = "".join(
        f"Traceback (most recent call last): (RANK {one})\n"
        f'  File "{_LIB}/utils.py", line 249, in all_reduce\n    local_data = map_fun()\n{error}\n'
        for one in failed
    )
    return "".join(f"[rank{rank}]: {line}\n" for line in (head + parts).splitlines())


def judged(folder: Path, world: int, failed: Sequence[int], error: str = _FULL) -> Diagnosis:
    text = "".join(printed(rank, failed, error) for rank in (world - 1, *range(world - 1)))
    (folder / "job.log").write_text(text)
    return judge(read_evidence(folder)).report.diagnosis


def surely(found: Diagnosis) -> list[int]:
    return sorted(one.rank for one in found.culprits if one.rank is not None and found.confidence is not Confidence.LOW)  # fmt: skip


@pytest.mark.parametrize("failed", [(0,), (2,), (3,)])
def test_the_one_that_is_listed_is_named(failed: tuple[int, ...], tmp_path: Path) -> None:
    assert surely(judged(tmp_path, 4, failed)) == list(failed)


@pytest.mark.parametrize("failed", [(1, 2), (0, 3), (0, 1, 2)])
def test_of_several_none_is_named_alone(failed: tuple[int, ...], tmp_path: Path) -> None:
    assert surely(judged(tmp_path, 4, failed)) in ([], list(failed))


@pytest.mark.parametrize("world", [2, 8, 40])
def test_where_all_have_failed_none_is_named_alone(world: int, tmp_path: Path) -> None:
    """The last in the list was: its own stood at the end of its log."""
    found = judged(tmp_path, world, range(world), "AttributeError: no attribute '_local_tensor'")
    assert surely(found) in ([], list(range(world))), found.summary


def test_what_is_collected_about_a_peer_names_nobody(tmp_path: Path) -> None:
    """Control: rank 1 is listed, but tells of another's end."""
    lost = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.3]:5543"
    assert surely(judged(tmp_path, 4, (1,), lost)) == []


def test_tasks_of_jax_beyond_the_ranks_of_the_log_are_told_together(tmp_path: Path) -> None:
    """Its log has no mark of a rank: of the tasks 3 and 0 that did not come the last was taken for one of a job of one rank, and alone."""
    (tmp_path / "job.log").write_text(
        'Traceback (most recent call last):\n  File "/job/train.py", line 9, in <module>\n    client.wait_at_barrier("sync0")\n'
        "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: sync0. Timed out task names:\n"
        "/job:jax_worker/replica:0/task:3\n/job:jax_worker/replica:0/task:0\n"
    )
    found = judge(read_evidence(tmp_path)).report.diagnosis
    assert sorted(one.rank or 0 for one in found.culprits) in ([], [0, 3])
