"""Last words as people have posted them: who is named, and that what stands before a line never changes it."""

import random

import pytest

from fieldcases import FIELD, Case, all_cases
from fieldexits import outcome_of
from mldebug.core.model import Confidence
from mldebug.diagnosis.exits.outcome import ExitOutcome
from mldebug.diagnosis.exits.words.blame import Blame, blame_of

EXITS = FIELD / "exits"
CASES: tuple[Case, ...] = next(some.cases for some in all_cases() if some.folder == EXITS)
PREFIXES = (
    "",
    "2026-09-18 19:29:44 ",
    "2026-09-18T19:29:44.123456789Z stderr F ",
    "node-7: ",
    "\x1b[31m",
    "(RayTrainWorker pid=4711, ip=10.0.0.7) ",
    "\rEpoch 0:  50%|#####     | 500/1000 [10:00<10:00,  1.0it/s, loss=2.6]",
)


def named(outcome: ExitOutcome) -> tuple[int, ...]:
    """Whom it names with more than low confidence."""
    finding = outcome.finding
    if finding is None or finding.confidence is Confidence.LOW:
        return ()
    return tuple(sorted(one.rank for one in finding.culprits if one.rank is not None))


def test_what_stands_before_a_line_never_makes_another_rank_guilty() -> None:
    chance = random.Random(2026)
    for case in CASES:
        for _ in range(200 // len(CASES) + 1):
            one = chance.choice(PREFIXES)
            found = named(
                outcome_of(EXITS / case.input, case.world, dict.fromkeys(range(case.world), one))
            )
            assert found in [*(case.named or ()), ()], (case.name, one, found)


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
