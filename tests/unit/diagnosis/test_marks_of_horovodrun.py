"""Lines that Horovod's own launcher marks with a task and no job, `[3]<stderr>:`, also with the time that its option puts before."""

import pytest

from mldebug.capture.stacks.prefixes import PREFIXES
from mldebug.diagnosis.exits.words.recorded.last_attempt import RecordedLog
from mldebug.diagnosis.exits.words.recorded.recorded_logs import end_of_logs
from mldebug.jobs.logs.labels import strip_labels

CLOCK = "Fri Sep 25 16:52:53 2026"
SHUT_DOWN = "horovod.common.exceptions.HorovodInternalError: Horovod has been shut down. This was caused by an exception on one of the ranks"


def _traceback(error: str) -> list[str]:
    return ["Traceback (most recent call last):", '  File "/job/train.py", line 30, in train', "    rows = parse(line)", error]  # fmt: skip


@pytest.mark.parametrize("clock", ["", CLOCK])
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize("error", ["KeyError: 'timeout'", "ValueError: could not convert string to float: 'peer'"])  # fmt: skip
def test_the_task_is_the_rank(clock: str, stream: str, error: str) -> None:
    lines = [f"{clock}[2]<{stream}>:{line}" for line in _traceback(error)]
    lines += [f"{clock}[{rank}]<{stream}>:{line}" for rank in (0, 1) for line in _traceback(SHUT_DOWN)]  # fmt: skip
    end = end_of_logs([RecordedLog(name="job.log", lines=lines, rank=None)])
    assert end is not None
    assert {rank: one.blames_peer for rank, one in end.errors.items()} == {0: True, 1: True, 2: False}  # fmt: skip


def test_numbers_in_brackets_without_a_stream_are_no_ranks() -> None:
    """A control: a count or an index is not what a launcher writes."""
    lines = [f"[2]: {line}" for line in _traceback("KeyError: 'x'")]
    end = end_of_logs([RecordedLog(name="job.log", lines=lines, rank=None)])
    assert end is not None
    assert set(end.errors) == set()


@pytest.mark.parametrize("clock", ["", CLOCK])
def test_readers_of_steps_and_of_stacks_know_the_mark(clock: str) -> None:
    line = f"{clock}[3]<stdout>:step 12 loss 2.1"
    assert strip_labels(line) == "step 12 loss 2.1"
    found = next(one for prefix in PREFIXES if (one := prefix.match(line)))
    assert found.groupdict().get("rank") == "3"
