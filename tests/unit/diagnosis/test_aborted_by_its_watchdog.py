"""A CUDA error that a watchdog passes on after it has aborted what its own rank waited in: the error may come of that, and is no proof."""

import pytest

from mldebug.diagnosis.exits.words.recorded.last_attempt import RecordedLog
from mldebug.diagnosis.exits.words.recorded.recorded_logs import end_of_logs

CAUGHT = "[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600071 milliseconds before timing out."
ERRORS = (
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: unspecified launch failure",
    "CUDA error: misaligned address",
    "CUDA error: uncorrectable NVLink error detected during the execution",
)
FORMS = (
    ("[PG ID 0 PG GUID 0(default_pg) Rank {rank}] ", "Process group watchdog"),
    ("[Rank {rank}] ", "NCCL watchdog"),
)


def _lines(rank: int, words: list[str]) -> list[str]:
    return [f"[rank{rank}]:{one.format(rank=rank)}" for one in words]


def _passes_on(error: str, who: str, watchdog: str) -> list[str]:
    return [
        f"[E615 03:11:02.77 ProcessGroupNCCL.cpp:1899] {who}{watchdog} thread terminated with exception: {error}",
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        f"  what():  {who}{watchdog} thread terminated with exception: {error}",
    ]


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize(("who", "watchdog"), FORMS)
@pytest.mark.parametrize("before", [True, False])
def test_only_what_comes_after_the_abort_is_unclear(
    error: str, who: str, watchdog: str, before: bool
) -> None:
    timed_out = [f"[E615 03:11:01.77 ProcessGroupNCCL.cpp:632] {CAUGHT}"] if before else []
    lines = [*_lines(0, [CAUGHT]), *_lines(1, [*timed_out, *_passes_on(error, who, watchdog)])]
    end = end_of_logs([RecordedLog(name="job.log", lines=lines, rank=None)])
    assert end is not None
    assert end.errors[1].unclear is before
    assert not end.errors[1].blames_peer


def test_what_the_watchdog_says_of_any_failure_is_no_abort() -> None:
    """A control: PyTorch 2.1 wrote that it takes the process down also where the failure was a CUDA error of this rank."""
    down = "[E ProcessGroupNCCL.cpp:488] To avoid data inconsistency, we are taking the entire process down."
    lines = _lines(1, [down, *_passes_on(ERRORS[0], "[Rank {rank}] ", "NCCL watchdog")])
    end = end_of_logs([RecordedLog(name="job.log", lines=lines, rank=None)])
    assert end is not None
    assert not end.errors[1].unclear


IMPORT = [
    "Traceback (most recent call last):",
    '  File "/job/model.py", line 12, in <module>',
    "    import flash_attn",
    "ImportError: flash_attn.so: undefined symbol",
]


@pytest.mark.parametrize("whose", [0, 1])
def test_who_times_out_after_its_error_has_lived_on(whose: int) -> None:
    """It has called what all wait for. A control: the watchdog of another rank says nothing against it."""
    error = [f"[rank1]: {line}" for line in IMPORT]
    timed_out = _lines(whose, [f"[E615 03:11:01.77 ProcessGroupNCCL.cpp:632] {CAUGHT}"])
    end = end_of_logs([RecordedLog(name="job.log", lines=[*error, *timed_out], rank=None)])
    assert end is not None
    assert end.errors[1].unclear is (whose == 1)
    assert not end.errors[1].blames_peer
