"""Each verdict that an end can have, by the evidence that its definition in docs/verdicts.md names, and not by that of the nearest other cause."""

import signal
from typing import Any, NamedTuple

import msgspec
import pytest

from mldebug.core.model import Fault, Finding, Verdict
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.model import AttemptExit, FilesystemFill, KernelDeath
from shared.diagnosis.fieldexits import attempt_of

STEPS = "step 1 loss 2.0"
LEFT: list[Any] = [STEPS, {"sleep": 8}, {"exit": 1}]
QUIET: list[Any] = [STEPS, {"sleep": 1000}]
AT = 1008.0  # when rank 1 ends
TRACE = 'Traceback (most recent call last):\n  File "/job/train.py", line 88, in train_step\n    {call}\n{words}'
LOST = TRACE.format(call="dist.all_reduce(x)", words="RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:525] Read error [127.0.0.1]:26017: Connection reset by peer")  # fmt: skip
CUDA = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 80.00 GiB of which 1.00 GiB is free."
ECC = "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"
FULL = FilesystemFill(mount="/data", line="/data: 100.0% used, 0 B left", used_ratio=1.0, age=7.0)
HALF = FilesystemFill(mount="/data", line="/data: 50.0% used, 1 TiB left", used_ratio=0.5, age=7.0)
NO_SPACE = "OSError: [Errno 28] No space left on device: '/data/ckpt/step-7.pt'"


def ends(
    words: str = "", end: dict[str, int] | None = None, others: str = "", **more: object
) -> AttemptExit:
    """Rank 1 of 4 ends first, with these words; the others are ended, or fail a second later with `others`."""
    text = [TRACE.format(call="x = load(batch)", words=words)] if words else []
    rest: list[Any] = [STEPS, {"sleep": 9}, others, {"exit": 1}] if others else QUIET
    plan = {"1": [STEPS, *text, {"sleep": 8}, end or {"exit": 1}], "*": rest}
    marked = attempt_of(plan, dress=lambda rank, line: f"[rank{rank}]: {line}")
    return msgspec.structs.replace(marked, **more)


def all_lose(**more: object) -> AttemptExit:
    """All ranks blame a peer."""
    marked = attempt_of(
        {"*": [STEPS, LOST, {"sleep": 8}, {"exit": 1}]},
        dress=lambda rank, line: f"[rank{rank}]: {line}",
    )
    return msgspec.structs.replace(marked, **more)


def on_two_nodes(attempt: AttemptExit) -> AttemptExit:
    return msgspec.structs.replace(
        attempt, job=msgspec.structs.replace(attempt.job, nodes=("n1", "n2"))
    )


def xid(rank: int | None = 1, at: float = AT - 1, **more: object) -> tuple[Fault, ...]:
    facts = {
        "kind": "xid",
        "code": "xid_48",
        "words": "Xid 48 (double-bit ECC)",
        "by": "gpu",
        "tier": "fatal",
    } | more
    return (Fault(rank=rank, at=at, node="n1", **facts),)  # type: ignore[arg-type]


def port(at: float = AT - 20, **more: object) -> tuple[Fault, ...]:
    facts = {
        "kind": "port_down",
        "code": "port_down",
        "words": "port mlx5_3/1 was up and is DOWN",
        "tier": "fatal",
    } | more
    return (Fault(at=at, node="n1", **facts),)  # type: ignore[arg-type]


def killed(pid: int = 101) -> tuple[KernelDeath, ...]:
    return (KernelDeath(pid=pid, kind="out_of_memory", text=f"Killed process {pid} (python)"),)


KILL = {"signal": int(signal.SIGKILL)}
ABORT = {"signal": int(signal.SIGABRT)}
PRINTS = "RuntimeError: Detected mismatch between collectives on ranks. Rank {mine} is running collective: CollectiveFingerPrint(SequenceNumber=5, OpType={op}, TensorShape=[4], TensorDtypes=Float), but Rank {its} is running collective: CollectiveFingerPrint(SequenceNumber=5, OpType={other}, TensorShape=[4], TensorDtypes=Float).Collectives differ in the following aspects: \t Op type: {op}vs {other}"


def fingerprints(*ops: str) -> AttemptExit:
    """All ranks speak, each of itself and of the next that called something else."""
    plan: dict[str, list[Any]] = {}
    for rank, op in enumerate(ops):
        its = next((n for n, one in enumerate(ops) if one != op), (rank + 1) % len(ops))
        text = PRINTS.format(mine=rank, op=op, its=its, other=ops[its])
        plan[str(rank)] = [
            STEPS,
            TRACE.format(call="dist.all_reduce(x)", words=text),
            {"sleep": 8 + rank / 10},
            {"exit": 1},
        ]
    return attempt_of(plan, dress=lambda rank, line: f"[rank{rank}]: {line}")


class Causes(NamedTuple):
    """What gives a verdict at an end, and the nearest other causes with the verdict that is theirs."""

    verdict: Verdict
    own: dict[str, AttemptExit]
    others: dict[str, tuple[AttemptExit, str]]


TABLE = (
    Causes(
        Verdict.GPU_FAULT,
        {"its GPU and its error": ends(ECC, faults=xid()), "all blame a peer, one GPU is broken": all_lose(faults=xid())},
        {
            "the error alone": (ends(ECC), "rank_exited"),
            "a fault of another rank's GPU": (ends("KeyError: 3", faults=xid(2)), "rank_exited"),
            "an hour before": (ends(ECC, faults=xid(at=AT - 3600)), "rank_exited"),
            "after its rank had ended": (ends("KeyError: 3", faults=xid(at=AT + 5)), "rank_exited"),
            "what the job caused": (ends(ECC, faults=xid(tier="application")), "rank_exited"),
            "of nobody in particular": (all_lose(faults=xid(None)), "unknown"),
        },
    ),
    Causes(
        Verdict.OUT_OF_MEMORY,
        {"the device is full": ends(CUDA), "the kernel killed it": ends(end=KILL, deaths=killed(), kernel_readable=True), "the host is full": ends("MemoryError")},
        {
            "somebody killed it": (ends(end=KILL, kernel_readable=True), "rank_exited"),
            "the kernel killed a stranger": (ends(end=KILL, deaths=killed(9), kernel_readable=True), "rank_exited"),
            "memory on another rank, as it says": (ends("RuntimeError: CUDA out of memory encountered on a different rank"), "unknown"),
            "a relay tells of another's": (ends("ray.exceptions.RayTaskError(OutOfMemoryError): ray::Worker.step() (pid=9, ip=10.0.0.9)\ntorch.OutOfMemoryError: CUDA out of memory."), "unknown"),
            "no memory for a setting": (ends("ValueError: out_of_memory_limit must be positive"), "rank_exited"),
        },
    ),
    Causes(
        Verdict.STORAGE_FAULT,
        {"no space, and the filesystem was full": ends(NO_SPACE, filesystems=(FULL,))},
        {
            "no space, and it was not": (ends(NO_SPACE, filesystems=(HALF,)), "rank_exited"),
            "full, and another error": (ends("KeyError: 3", filesystems=(FULL,)), "rank_exited"),
            "full, and another file is missing": (ends("FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-7'", filesystems=(FULL,)), "rank_exited"),
            "full, and all blame a peer": (all_lose(filesystems=(FULL,)), "unknown"),
            "full, and the device is, too": (ends(CUDA, filesystems=(FULL,)), "out_of_memory"),
        },
    ),
    Causes(
        Verdict.NETWORK_FAULT,
        {"all blame a peer after a port went down": on_two_nodes(all_lose(faults=port()))},
        {
            "the job needs no network": (all_lose(faults=port()), "unknown"),
            "the port was down an hour before": (on_two_nodes(all_lose(faults=port(AT - 3600))), "unknown"),
            "it only warned": (on_two_nodes(all_lose(faults=port(tier="warning"))), "unknown"),
            "a rank failed by itself": (on_two_nodes(ends("KeyError: 3", others=LOST, faults=port())), "rank_exited"),
            "a rank was killed": (on_two_nodes(ends(end=KILL, others=LOST, faults=port())), "rank_exited"),
            "a GPU broke, too": (on_two_nodes(all_lose(faults=(*port(), *xid()))), "gpu_fault"),
        },
    ),
    Causes(
        Verdict.RANK_EXITED,
        {"its own error": ends("KeyError: 3"), "a crash": ends(end={"signal": int(signal.SIGSEGV)}), "somebody killed it": ends(end=KILL)},
        {
            "it lost a peer": (ends("RuntimeError: Connection closed by peer [10.0.0.9]:4711"), "unknown"),
            "all lost one": (all_lose(), "unknown"),
            "the watchdog ended it": (ends("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.", ABORT), "unknown"),
            "all fail alike": (ends("ValueError: config has no key 'lr'", others=TRACE.format(call="x = load(batch)", words="ValueError: config has no key 'lr'")), "unknown"),
            "they had called different things": (fingerprints("ALLREDUCE", "ALLREDUCE", "BROADCAST", "ALLREDUCE"), "collective_mismatch"),
        },
    ),
    Causes(
        Verdict.COLLECTIVE_MISMATCH,
        {"three called one thing, the fourth another": fingerprints("ALLREDUCE", "ALLREDUCE", "BROADCAST", "ALLREDUCE")},
        {
            "two and two": (fingerprints("ALLREDUCE", "ALLREDUCE", "BROADCAST", "BROADCAST"), "unknown"),
            "each something else": (fingerprints("ALLREDUCE", "BROADCAST", "GATHER", "SCATTER"), "unknown"),
            "an error that speaks of shapes": (ends("ValueError: shapes of batch and labels do not match: 3 and 4"), "rank_exited"),
            "all lost a peer": (all_lose(), "unknown"),
        },
    ),
)  # fmt: skip

OWN = [(one.verdict, name, ended) for one in TABLE for name, ended in one.own.items()]
OTHERS = [(one.verdict, name, *other) for one in TABLE for name, other in one.others.items()]


def finding_of(ended: AttemptExit) -> Finding:
    found = judge_exit(ended).finding
    assert found is not None
    return found


@pytest.mark.parametrize(("verdict", "name", "ended"), OWN, ids=[f"{v}-{n}" for v, n, _ in OWN])
def test_its_own_evidence_gives_it(verdict: Verdict, name: str, ended: AttemptExit) -> None:
    found = finding_of(ended)
    assert found.verdict == verdict, (name, found.summary)


@pytest.mark.parametrize(("verdict", "name", "ended", "right"), OTHERS, ids=[f"{v}-{n}" for v, n, *_ in OTHERS])  # fmt: skip
def test_the_nearest_other_cause_does_not(
    verdict: Verdict, name: str, ended: AttemptExit, right: str
) -> None:
    found = finding_of(ended)
    assert found.verdict != verdict, (name, found.summary)
    assert found.verdict == right, (name, found.summary)


@pytest.mark.parametrize(("verdict", "name", "ended", "right"), OTHERS, ids=[f"{v}-{n}" for v, n, *_ in OTHERS])  # fmt: skip
def test_and_names_nobody_surely_where_nobody_is_known(
    verdict: Verdict, name: str, ended: AttemptExit, right: str
) -> None:
    """Rank 1 or its GPU, memory or disk alone is ever at fault here, but for the third rank that called something else."""
    found = finding_of(ended)
    named = {one.rank for one in found.culprits} - {None}
    assert named <= ({2} if right == "collective_mismatch" else {1}), (name, found.summary)


def test_every_verdict_that_an_end_can_have_stands_in_the_table() -> None:
    of_living = {"node_unreachable", "rank_stopped", "dataloader_stalled", "rank_blocked_io", "init_incomplete", "rank_waiting", "rank_busy", "job_paused", "straggler"}  # fmt: skip
    assert {str(one.verdict) for one in TABLE} | of_living | {"unknown"} == set(map(str, Verdict))
