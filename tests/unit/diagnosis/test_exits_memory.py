"""Whose GPU ran out of memory, where the job's log tells of it without a rank: the rank whose hook wrote that very allocation down."""

import pytest

from mldebug.core.model import HeldLine, MemoryFailure, MemoryHolders
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.model import AttemptExit, RankError
from mldebug.diagnosis.exits.outcome import ExitOutcome
from mldebug.diagnosis.exits.words.last_words import last_error
from unit.diagnosis.test_exits_judge import ONE, TERM, exit_of

GIB = 1 << 30
MESSAGE = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 139.80 GiB of which 2.00 GiB is free."
    " Including non-PyTorch memory, this process has 137.79 GiB memory in use. Of the allocated memory 137.07 GiB is allocated by PyTorch, and"
    " 2.03 MiB is reserved by PyTorch but unallocated."
)  # fmt: skip


def written(requested: int = 2 * GIB) -> MemoryFailure:
    """What a rank's hook wrote down, as on an H200: `hoard` holds most."""
    lines = (HeldLine(place="hoard (memory.py:25)", phase="other", memory_bytes=104 * GIB, blocks=418),)  # fmt: skip
    holders = MemoryHolders(device=0, reserved=137 * GIB, allocated=137 * GIB, requested=137 * GIB, lines=lines, phases={"other": 104 * GIB})  # fmt: skip
    return MemoryFailure(at=1.0, requested=requested, capacity=140 * GIB, free=2 * GIB, asked_at="forward (memory.py:40)", step=3, holders=holders)  # fmt: skip


def in_log(text: str) -> RankError:
    """The last error of a log of all ranks."""
    lines = ["Traceback (most recent call last):", text]
    found = last_error(lines, "the job's log", shared=True)
    assert found is not None
    return found


def ended(*failed: int, text: str = MESSAGE, requested: int = 2 * GIB, **more: object) -> AttemptExit:  # fmt: skip
    """Rank 1 leaves first with 1, and torchrun ends rank 0; the hooks of `failed` wrote something down."""
    memory = {rank: written(requested) for rank in failed}
    return exit_of(TERM, ONE, order=(1, 0), shared_error=in_log(text), memory=memory, **more)


def evidence(outcome: ExitOutcome) -> str:
    assert outcome.finding is not None
    return "\n".join(outcome.finding.evidence)


def test_the_allocation_that_a_hook_wrote_down_is_the_rank_s_own_error() -> None:
    plain, outcome = judge_exit(ended()), judge_exit(ended(1))
    assert outcome.finding is not None
    assert plain.finding is not None
    assert outcome.finding.verdict == "out_of_memory"
    assert [one.rank for one in outcome.finding.culprits] == [1]
    assert plain.finding.confidence != outcome.finding.confidence == "high"
    assert "no rank in particular" not in outcome.sentence
    assert "rank 1: held by hoard (memory.py:25): 104 GiB in 418 blocks" in evidence(outcome)
    assert "enough is free" not in outcome.sentence  # 2.00 GiB of 2.00 GiB: a message rounds
    assert "the job needs more than there is" in outcome.sentence
    assert "hoard" not in evidence(plain)


@pytest.mark.parametrize(
    ("attempt", "why"),
    [
        (ended(1, requested=3 * GIB), "an earlier one of another size, that was caught"),
        (ended(1, text="ValueError: bad shard 7"), "what ended the job was no lack of memory"),
        (ended(0), "another rank's, which did not fail first"),
    ],
    ids=["another size", "another error", "another rank"],
)
def test_what_a_hook_wrote_down_of_something_else_changes_nothing(
    attempt: AttemptExit, why: str
) -> None:
    bare = exit_of(TERM, ONE, order=(1, 0), shared_error=attempt.shared_error)
    outcome, plain = judge_exit(attempt), judge_exit(bare)
    assert outcome.finding is not None
    assert plain.finding is not None
    assert outcome.finding.confidence == plain.finding.confidence, why
    assert [one.rank for one in outcome.finding.culprits] == [1]
    assert "hoard" not in evidence(outcome), why


def test_where_all_ran_out_at_once_nobody_is_named_at_more_than_low() -> None:
    both = exit_of(ONE, ONE, shared_error=in_log(MESSAGE), memory={0: written(), 1: written()})
    outcome = judge_exit(both)
    assert outcome.finding is not None
    assert not outcome.finding.culprits or outcome.finding.confidence == "low"


def test_a_rank_that_was_only_ended_takes_no_error_from_the_log() -> None:
    """What it wrote down it had survived; the error stays the log's, of no rank in particular."""
    outcome, plain = judge_exit(ended(0)), judge_exit(ended())
    assert outcome.finding == plain.finding


OTHER = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of 79.18 GiB of which 480.56 MiB is free."
    " Process {pid} has 8.90 GiB memory in use. Including non-PyTorch memory, this process has 69.79 GiB memory in use."
)  # fmt: skip


def on_one_gpu(pid: int) -> ExitOutcome:
    """Rank 1 runs out of the memory of a GPU on which another process works."""
    attempt = exit_of(TERM, ONE, order=(1, 0), errors={1: in_log(OTHER.format(pid=pid))})
    return judge_exit(attempt)


def test_another_rank_on_the_same_gpu_is_told_and_how_to_part_them() -> None:
    """As on an H100 with two ranks that both took GPU 0: the usual want of `set_device`."""
    other = next(one.pid for one in exit_of(TERM, ONE).identities if one.rank == 0)
    outcome = on_one_gpu(other)
    assert outcome.finding is not None
    assert [one.rank for one in outcome.finding.culprits] == [1]
    assert f"rank 1: rank 0 of this job works on the same GPU and holds 8.90 GiB of it (pid {other})" in evidence(outcome)  # fmt: skip
    assert outcome.finding.next_steps[0].startswith("give each rank a GPU of its own")


def test_a_strange_process_on_the_same_gpu_is_no_rank_of_the_job() -> None:
    own = next(one.pid for one in exit_of(TERM, ONE).identities if one.rank == 1)
    for pid in (own, 999_999):
        outcome = on_one_gpu(pid)
        assert outcome.finding is not None
        assert "of this job works on" not in evidence(outcome)
        assert not any("of its own" in step for step in outcome.finding.next_steps)
