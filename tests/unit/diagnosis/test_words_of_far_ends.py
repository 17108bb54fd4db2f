"""Words about bytes that do not match, and what a rank fails of while it is taken down: none names its speaker for sure."""

import pytest

from mldebug.core.model import Confidence
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.outcome import ExitOutcome
from mldebug.diagnosis.exits.words.blame import Blame, blame_of
from mldebug.diagnosis.exits.words.recorded.last_attempt import RecordedLog
from mldebug.diagnosis.exits.words.recorded.recorded_logs import end_of_logs

HEAD = 'Traceback (most recent call last):\n  File "/job/train.py", line 88, in train_step\n    self.step(batch)\n'
WATCHDOG = "[rank2]:[E1104 09:12:44.1 ProcessGroupNCCL.cpp:629] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=44, OpType=ALLREDUCE, NumelIn=3, NumelOut=3, Timeout(ms)=600000) ran for 600031 milliseconds before timing out."
TABLE = "Root Cause (first observed failure):\n[0]:\n  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: 4711)\n"


def _judged(text: str) -> ExitOutcome | None:
    end = end_of_logs([RecordedLog(name="job.log", lines=text.splitlines())])
    return judge_exit(end) if end else None


def _marked(rank: int, text: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


def _sureness(outcome: ExitOutcome | None) -> tuple[list[int | None], Confidence | None]:
    found = outcome.finding if outcome else None
    return ([one.rank for one in found.culprits], found.confidence) if found else ([], None)


@pytest.mark.parametrize(
    "words",
    [
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1691, internal error\nLast error:\nMessage truncated : received 1024 bytes instead of 256",
        "RuntimeError: NCCL error: Message truncated : received 64 bytes instead of 8",
        "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:317, invalid usage, NCCL version 2.18.1\nLast error:\nNET/Socket : peer 10.0.0.7<40222> message truncated : receiving 1048576 bytes instead of 65536",
    ],
)
def test_they_are_a_peers(words: str) -> None:
    assert blame_of(words) is Blame.PEER


@pytest.mark.parametrize("words", ["ValueError: image file is truncated (3 bytes not processed)", "ValueError: message truncated: 7 tokens of 9"])  # fmt: skip
def test_what_tells_of_data_is_not(words: str) -> None:
    assert blame_of(words) is not Blame.PEER


@pytest.mark.parametrize(
    "error",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.",
        "ValueError: bad shard 7",
        "RuntimeError: CUDA error: unspecified launch failure",
    ],
)
def test_what_a_rank_fails_of_behind_its_own_watchdog(error: str) -> None:
    own = _marked(2, HEAD + error)
    after = _sureness(_judged(f"{WATCHDOG}\n{own}"))
    assert after[1] in (Confidence.LOW, None)
    before = _sureness(_judged(f"{own}{WATCHDOG.replace('ank2', 'ank1').replace('Rank 2', 'Rank 1')}\n"))  # fmt: skip
    assert before == ([2], Confidence.MEDIUM)


def test_a_signal_that_asks_is_sent_by_somebody() -> None:
    assert _sureness(_judged(TABLE.format(rank=1, code=-15)))[1] in (Confidence.LOW, None)
    assert _sureness(_judged(TABLE.format(rank=1, code=-11))) == ([1], Confidence.HIGH)


@pytest.mark.parametrize("role", ["node", "gpu-node", "host", "pod"])
def test_the_number_of_a_node_is_no_local_rank(role: str) -> None:
    text = "".join(f"[{role.replace('-', '_')}1]: {line}\n" for line in f"{HEAD}ValueError: bad shard 7".splitlines())  # fmt: skip
    assert _sureness(_judged(f"world_size=2\n{text}local_rank: 1\nlocal_rank: 0\n"))[0] == []
