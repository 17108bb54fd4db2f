"""Faults that hit all ranks alike: a network that parts, a switch or a store that dies, a disk that is full. Who is first is chance, so nobody is named at
more than `low`, whichever rank is first, whoever gets to speak, and however the lines of the log are mixed.
"""

import random
from collections.abc import Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from mldebug.cli.commands.diagnose import judge, read_evidence
from mldebug.core.model import Confidence, Culprit
from mldebug.diagnosis.exits.outcome import ExitOutcome
from shared.diagnosis.fieldexits import Dress, outcome_of

WORLD = 4
ORDERS = tuple(permutations(range(WORLD)))
_IN = 'Traceback (most recent call last):\n  File "/job/train.py", line 88, in train_step\n    {line}\n'
_REDUCE = _IN.format(line="dist.all_reduce(loss)") + (
    '  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2810, in all_reduce\n    work = group.allreduce([tensor], opts)\n'
)  # fmt: skip
_NCCL = "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, "
FAULTS = {
    "the network parts": _REDUCE + _NCCL + "remote process exited or there was a network error, NCCL version 2.27.5\nLast error:\nsocketProgress: Connection closed by remote peer n{other}.cluster<51420>",
    "a switch dies": _REDUCE + _NCCL + "unhandled system error, NCCL version 2.21.5\nLast error:\nNET/IB : Got completion from peer 10.0.0.{other}<33120> with status=12 opcode=129 len=0 vendor err 129",
    "a switch dies, no reason": _REDUCE + _NCCL + "unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.21.5",
    "gloo loses its pairs": _REDUCE + "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.{other}]:41033",
    "the store dies": _IN.format(line="store.get('epoch')") + "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
    "the store's port is cut": "[rank{rank}]:[W724 19:26:07.252 TCPStore.cpp:141] [c10d] recvValue failed on SocketImpl(fd=4, addr=[n{rank}]:4711, remote=[n0]:29500): failed to recv, got 0 bytes",
    "watchdogs": "[rank{rank}]:[E918 19:29:44.175 ProcessGroupNCCL.cpp:689] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7221, OpType=ALLREDUCE, NumelIn=5, NumelOut=5, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.",
    "heartbeat monitors": "[rank{rank}]:[F626 05:22:36.393 ProcessGroupNCCL.cpp:1557] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Terminating the process after attempting to dump debug info, due to ProcessGroupNCCL watchdog hang.",
    "JAX's service": "jax.errors.JaxRuntimeError: UNAVAILABLE: Failed to send RPC to coordination service. Either the leader task was preempted/died/restarted unexpectedly or this task is experiencing network issues.",
    "UCX": "[n{rank}:812  :0:812] ib_mlx5_log.c:177  Transport retry count exceeded on mlx5_0:1/RoCE (synd 0x15 vend 0x81 hw_synd 0/0)",
    "EFA": _REDUCE + _NCCL + "unhandled system error, NCCL version 2.23.4\nLast error:\nNET/OFI Request 0x7f12 completed with error. RC: 21. Error: Unresponsive remote (reachable by others)",
    "Horovod": "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. This was caused by an exception on one of the ranks",
    "MPI": "[n{rank}:21445] *** An error occurred in MPI_Allreduce\n[n{rank}:21445] *** MPI_ERR_PROC_FAILED: Process Failure",
    "Fabric Manager": _IN.format(line="model.cuda()") + "RuntimeError: CUDA error: system not yet initialized",
    "Fabric Manager, told by the driver": _IN.format(line="torch.cuda.device_count()") + "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before? Error 802: system not yet initialized",
    "the loss of all": _IN.format(line="raise ValueError(text)") + "ValueError: gradient norm is nan",
    "they wait for rank 0's file": _IN.format(line="raise TimeoutError(text)") + "TimeoutError: timed out waiting for /scratch/run/state.ready",
    "they lose a peer of DeepEP": _IN.format(line="buffer.dispatch(x)") + "RuntimeError: DeepEP error: timeout (dispatch CPU)",
}  # fmt: skip
OF_ITS_OWN = {
    "a disk is full": _IN.format(line="torch.save(state, path)") + "OSError: [Errno 28] No space left on device: '/ckpt/rank{rank}.pt'",
    "a file is gone": _IN.format(line="open(path)") + "FileNotFoundError: [Errno 2] No such file or directory: '/data/index.json'",
    "a wrong argument": _IN.format(line="raise ValueError(text)") + "ValueError: unknown optimizer 'adamz'",
    "no memory": _IN.format(line="loss.backward()") + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU {rank} has a total capacity of 79.11 GiB of which 88.44 MiB is free.",
}  # fmt: skip
"""Each is the rank's own, and all ranks have it within a moment: where one alone speaks it is rightly named."""


def plain(rank: int, line: str) -> str:
    return line


def marked(rank: int, line: str) -> str:
    return line if line.startswith(f"[rank{rank}]") else f"[rank{rank}]: {line}"


def clocked(rank: int, line: str) -> str:
    return f"2026-09-18T19:29:44.123456789Z stderr F {marked(rank, line)}"


def ended(words: str, order: Sequence[int], speak: int) -> dict[str, list[Any]]:
    """A plan: ranks end in that order, a moment apart; after the first `speak` of them the launcher ends the others."""
    plan: dict[str, list[Any]] = {}
    for place, rank in enumerate(order):
        steps: list[Any] = ["\n".join(f"step {number} loss 2.0" for number in range(9)), {"sleep": 30 + place / 50}]  # fmt: skip
        words_of_rank = words.replace("{rank}", str(rank)).replace(
            "{other}", str((rank + 1) % WORLD)
        )
        plan[str(rank)] = (
            [*steps, words_of_rank, {"exit": 1}] if place < speak else [*steps, {"sleep": 60}]
        )
    return plan


def surely_named(outcome: ExitOutcome) -> list[int]:
    found = outcome.finding
    if found is None or found.confidence is Confidence.LOW:
        return []
    return ranks_of(found.culprits)


def ranks_of(culprits: Sequence[Culprit]) -> list[int]:
    return [one.rank for one in culprits if one.rank is not None]


@pytest.mark.parametrize("dress", [plain, marked, clocked], ids=lambda one: one.__name__)
@pytest.mark.parametrize("fault", FAULTS)
def test_nobody_is_named_at_more_than_low(fault: str, dress: Dress) -> None:
    for number, order in enumerate(ORDERS):
        speak = (WORLD, 2, 1)[number % 3]
        plan = ended(FAULTS[fault], order, speak)
        shuffle = random.Random(number) if number % 2 else None
        outcome = outcome_of(plan, WORLD, dress, shuffle, file_each=number % 4 == 3)
        assert surely_named(outcome) == [], (order, speak, outcome.sentence)


@pytest.mark.parametrize("fault", OF_ITS_OWN)
def test_what_all_have_of_their_own_names_no_one_of_them(fault: str) -> None:
    """All at once, or the same rank whoever is first."""
    found = set()
    for number, order in enumerate(ORDERS):
        shuffle = random.Random(number) if number % 2 else None
        outcome = outcome_of(ended(OF_ITS_OWN[fault], order, WORLD), WORLD, marked, shuffle)
        found.add(tuple(sorted(surely_named(outcome))))
    assert found <= {(), tuple(range(WORLD))}


def test_a_fault_of_one_is_named_in_each_order() -> None:
    """Control: the same loss of a peer, but one rank tells of its own failure."""
    own = _IN.format(line="row = json.loads(line)") + "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)"  # fmt: skip
    for number, order in enumerate(ORDERS):
        plan = ended(FAULTS["the network parts"], order, WORLD)
        plan["2"] = [*plan["2"][:1], {"sleep": 29}, own, {"exit": 1}]
        shuffle = random.Random(number) if number % 2 else None
        assert surely_named(outcome_of(plan, WORLD, marked, shuffle)) == [2], order


_C10D = "torch/distributed/distributed_c10d.py"
STACKS = {
    "all in one call": [f"all_reduce ({_C10D}:2810)"] * 4,
    "two and two": [f"all_reduce ({_C10D}:2810)", f"barrier ({_C10D}:4159)"] * 2,
    "each elsewhere": [f"{one} ({_C10D}:2810)" for one in ("all_reduce", "barrier", "all_gather", "broadcast")],
    "a ring of sends": [f"send ({_C10D}:2400)", f"recv ({_C10D}:2500)"] * 2,
    "all at their GPUs": ["synchronize (torch/cuda/__init__.py:985)"] * 4,
    "half in a line of the step": [f"all_reduce ({_C10D}:2810)", ""] * 2,
    "all in a line of their own": [""] * 4,
    "all at the store": ["get (torch/distributed/distributed_c10d.py:600)", "rendezvous (torch/distributed/rendezvous.py:180)"] * 2,
}  # fmt: skip


@pytest.mark.parametrize("fault", STACKS)
def test_nobody_is_named_by_stacks_that_are_alike(fault: str, tmp_path: Path) -> None:
    for number, order in enumerate(ORDERS[::3]):
        folder = tmp_path / str(number)
        folder.mkdir()
        for rank, place in enumerate(order):
            top = f"    {STACKS[fault][place]}\n" if STACKS[fault][place] else ""
            line = 60 + hash_of(STACKS[fault][place])
            text = f'Process {100 + rank}: python train.py\nPython v3.11.9 (/usr/bin/python3.11)\n\nThread {100 + rank} (idle): "MainThread"\n{top}    train_step (train.py:{line})\n    main (train.py:120)\n'
            (folder / f"rank{rank}.txt").write_text(text)
        found = judge(read_evidence(folder)).report.diagnosis
        sure = [] if found.confidence is Confidence.LOW else ranks_of(found.culprits)
        assert sure == [], (order, found.summary)


def hash_of(text: str) -> int:
    """A small number that is the same for the same text in each run."""
    return sum(map(ord, text)) % 30
