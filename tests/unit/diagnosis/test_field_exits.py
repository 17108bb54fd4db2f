"""Last words as people have posted them: who is named, and that what stands before a line never changes it."""

import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from mldebug.core.model import Confidence, Job, RankIdentity
from mldebug.diagnosis.exits.blame import Blame, blame_of
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.last_words import last_error, take_apart
from mldebug.diagnosis.exits.model import AttemptExit, RankExit
from mldebug.diagnosis.exits.outcome import ExitOutcome
from mldebug.diagnosis.exits.output import SHARED, LogOutput, own_errors, shared_lines

PLANS = Path(__file__).parents[2] / "fixtures/field/exits"
WORLD = 4
# plan: whom it may name (with more than low confidence nobody else), and what must be said
RIGHT: dict[str, tuple[list[list[int]], str]] = {
    "gloo-timeout": ([[], [2]], ""),
    "heartbeat-monitor": ([[], [2]], "watchdog"),
    "horovod": ([[], [3]], "Horovod"),
    "nccl-last-error-refused": ([[]], "Connection refused"),
    "nccl-system-error": ([[]], "closed by remote peer"),
    "own-error-with-peer-in-it": ([[1]], "peer table of shard 7"),
    "shared-seed": ([[], [0]], "shared seed"),
    "shared-seed-unmarked": ([[], [0]], ""),
    "store-barrier": ([[], [3]], "store based barrier"),
    "victim-behind-bar": ([[], [2]], ""),
    "watchdog-old": ([[], [0]], ""),
    "watchdog-own-cuda-error": ([[2]], "uncorrectable ECC error"),
    "watchdog-plain": ([[], [2]], ""),
    "watchdog-stamped": ([[], [2]], ""),
    "nvls-fabric-manager": ([[]], "NVLink SHARP"),
}
PREFIXES = (
    "",
    "2026-09-18 19:29:44 ",
    "2026-09-18T19:29:44.123456789Z stderr F ",
    "node-7: ",
    "\x1b[31m",
    "(RayTrainWorker pid=4711, ip=10.0.0.7) ",
    "\rEpoch 0:  50%|#####     | 500/1000 [10:00<10:00,  1.0it/s, loss=2.6]",
)


def steps(name: str, rank: int) -> list[Any]:
    plan = json.loads((PLANS / f"{name}.plan.json").read_text())["ranks"]
    return plan.get(str(rank), plan["*"])


def judged(name: str, prefixes: dict[int, str]) -> ExitOutcome:
    """The plan as an agent sees it: one log of all ranks; who sleeps is ended by the launcher."""
    lines: list[str] = []
    exits: list[tuple[float, int, int]] = []
    for rank in range(WORLD):
        at, ended = 0.0, False
        for step in steps(name, rank):
            if isinstance(step, str):
                words = step.replace("{rank}", str(rank)).split("\n")
                lines += [prefixes[rank] + line if line else line for line in words]
            at += step.get("sleep", 0.0) if isinstance(step, dict) else 0.0
            if isinstance(step, dict) and ("exit" in step or "signal" in step):
                exits.append((at, rank, step["exit"] << 8 if "exit" in step else step["signal"]))
                ended = True
        if not ended:
            exits.append((500.0, rank, int(signal.SIGTERM)))
    ranks = tuple(RankIdentity(rank=r, world_size=WORLD, pid=100 + r, local_rank=r) for r in range(WORLD))  # fmt: skip
    output = LogOutput(path="log", owner=None, words=take_apart(lines, {r: r for r in range(WORLD)}))  # fmt: skip
    told = [
        RankExit(rank=r, pid=100 + r, at=1000.0 + at, moment=n, status=status, source="exit status")
        for n, (at, r, status) in enumerate(sorted(exits))
    ]
    job = Job(id="j", name="train.py", launcher="torchrun", world_size=WORLD, ranks=ranks, launcher_pid=90)  # fmt: skip
    return judge_exit(
        AttemptExit(
            job=job,
            identities=ranks,
            exits=tuple(told),
            launcher_pid=90,
            errors=own_errors([output]),
            shared_error=last_error(shared_lines([output]), SHARED, shared=True),
        )
    )


def named(outcome: ExitOutcome) -> list[int]:
    """Whom it names with more than low confidence."""
    finding = outcome.finding
    if finding is None or finding.confidence is Confidence.LOW:
        return []
    return sorted(culprit.rank for culprit in finding.culprits if culprit.rank is not None)


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_words_that_people_posted_name_the_right_rank_or_nobody(name: str) -> None:
    acceptable, words = RIGHT[name]
    outcome = judged(name, dict.fromkeys(range(WORLD), ""))
    assert named(outcome) in acceptable
    said = f"{outcome.sentence} {outcome.finding}"
    assert words in said


def test_every_plan_has_its_right_answer() -> None:
    assert {path.name.removesuffix(".plan.json") for path in PLANS.glob("*.plan.json")} == set(RIGHT)  # fmt: skip


def test_what_stands_before_a_line_never_makes_another_rank_guilty() -> None:
    chance = random.Random(2026)
    for name in sorted(RIGHT):
        for _ in range(200 // len(RIGHT) + 1):
            one = chance.choice(PREFIXES)
            prefixes = dict.fromkeys(range(WORLD), one)
            found = named(judged(name, prefixes))
            assert found in [*RIGHT[name][0], []], (name, one, found)


@pytest.mark.parametrize(
    ("words", "blame"),
    [
        ("torch.distributed.DistBackendError: NCCL error: ncclRemoteError: A call failed", Blame.PEER),
        ("RuntimeError: NCCL communicator was aborted on rank 3.", Blame.PEER),
        ("RuntimeError: [Rank 0]: Rank 2 failed to pass monitoredBarrier in 8000 ms", Blame.PEER),
        ("RuntimeError: Detected mismatch between collectives on ranks. Rank 3 is running", Blame.PEER),
        ("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError", Blame.PEER),
        ("ray.exceptions.ActorDiedError: The actor died unexpectedly", Blame.PEER),
        ("terminate called: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:446] op.preamble.length <= op.nbytes. 40 vs 32", Blame.PEER),
        ("jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: 4", Blame.PEER),
        ("NCCL error in: NCCLUtils.cpp:77, unhandled system error\nLast error:\nsocketPollConnect: Connect to 10.0.0.2<45763> returned 113(No route to host)", Blame.PEER),
        ("what(): [Rank 2] NCCL watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered", Blame.OWN),
        ("what(): [PG 0 Rank 1] Process group watchdog thread terminated with exception: CUDA error: device-side assert triggered", Blame.OWN),
        ("torch.distributed.DistBackendError: NCCL error in: a.cpp:1, unhandled system error\nLast error:\nError while creating shared memory segment: No space left on device", Blame.OWN),
        ("torch.distributed.DistBackendError: NCCL error in: a.cpp:1691, unhandled cuda error … Cuda failure 2 'out of memory'", Blame.OWN),
        ("torch.distributed.DistBackendError: NCCL error in: a.cpp:1691, unhandled system error", Blame.UNCLEAR),
        ("torch.distributed.DistBackendError: NCCL error in: a.cpp:1691, internal error - please report this issue to the NCCL developers", Blame.UNCLEAR),
        # controls: the job's own errors, whatever words stand in them
        ("ValueError: peer table of shard 7 has 12 rows, 16 expected", Blame.OWN),
        ("TimeoutError: reading shard 3 took longer than 600 s", Blame.OWN),
        ("KeyError: 'rank 3'", Blame.OWN),
        ("AssertionError: barrier option is not known", Blame.OWN),
        ("OSError: [Errno 104] Connection reset by peer: s3://bucket/shard-7", Blame.OWN),
        ("FileNotFoundError: /data/rendezvous/shard-7.bin", Blame.OWN),
    ],
)  # fmt: skip
def test_whom_words_accuse(words: str, blame: Blame) -> None:
    assert blame_of(words) is blame
