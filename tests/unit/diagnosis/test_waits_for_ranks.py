"""A rank that is idle for what another rank may have to do: at a barrier between processes, for a Ray actor, in a function named after others: `low`."""

from pathlib import Path

import pytest

from mldebug.cli.commands.diagnose import judge, read_evidence
from mldebug.core.model import Confidence, Diagnosis

STEP = ("train (train.py:210)", "<module> (train.py:351)")
REDUCE = ("all_reduce (torch/distributed/distributed_c10d.py:2924)", "wrapper (torch/distributed/c10d_logger.py:81)", *STEP)  # fmt: skip
QUEUE = ("wait (threading.py:324)", "get (queue.py:180)")
BARRIER = ("wait (multiprocessing/synchronize.py:270)", "wait_for (multiprocessing/synchronize.py:297)", "_wait (threading.py:716)", "wait (threading.py:675)")  # fmt: skip
ACTOR = ("wait (threading.py:324)", "get (ray/_private/worker.py:2600)", "wrapper (ray/_private/client_mode_hook.py:103)")  # fmt: skip


def judged(root: Path, *calls: str) -> Diagnosis:
    """Three ranks reduce, rank 2 is idle in these calls."""
    for rank in range(4):
        stands = (*calls, *STEP) if rank == 2 else REDUCE
        head = (f"Process {2000 + rank}: python train.py --world_size=4", "Python v3.11.9 (/usr/bin/python3.11)", "", f'Thread {2000 + rank} (idle): "MainThread"')  # fmt: skip
        (root / f"rank{rank}.txt").write_text("\n".join((*head, *(f"    {one}" for one in stands), "")))  # fmt: skip
    return judge(read_evidence(root)).report.diagnosis


@pytest.mark.parametrize(
    "calls",
    [
        (*BARRIER, "sync_node (local.py:12)"),
        (*ACTOR, "fetch_weights (sync.py:20)"),
        (*QUEUE, "recv_from_peer (engine.py:44)"),
        (*QUEUE, "wait_for_ranks (engine.py:44)"),
        (*QUEUE, "local_barrier (engine.py:44)"),
    ],
)
def test_it_is_named_at_low_and_the_report_says_why(tmp_path: Path, calls: tuple[str, ...]) -> None:
    found = judged(tmp_path, *calls)
    assert [one.rank for one in found.culprits] == [2]
    assert found.confidence is Confidence.LOW
    assert any("may be another rank" in one for one in found.evidence)


@pytest.mark.parametrize(
    "calls",
    [
        (*QUEUE, "next_batch (engine.py:44)"),
        (*QUEUE, "prefetch (ranking.py:3)"),
        ("acquire (multiprocessing/synchronize.py:98)", "log (logs.py:12)"),
        ("wait (threading.py:324)", "result (concurrent/futures/_base.py:451)", "decode (data.py:20)"),
        ("read (socket.py:705)", "readinto (http/client.py:480)", "get_shard (fetch.py:9)"),
    ],
)  # fmt: skip
def test_other_waits_are_as_sure_as_they_were(tmp_path: Path, calls: tuple[str, ...]) -> None:
    found = judged(tmp_path, *calls)
    assert [one.rank for one in found.culprits] == [2]
    assert found.confidence is Confidence.MEDIUM, found.summary
