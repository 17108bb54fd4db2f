"""Several ranks fail on their own: nobody is named at more than low where another run of the same fault could name another of them."""

from typing import Any

import pytest

from shared.diagnosis.fieldexits import Plan, outcome_of

STEPS = "\n".join(f"step {number} loss 2.0" for number in range(9))
RAISED = 'Traceback (most recent call last):\n  File "/job/train.py", line 88, in train_step\n    loss = model(batch)\n'
BAD_SHARD, NO_LABELS = RAISED + "ValueError: shard 7 has bad magic", RAISED + "KeyError: 'labels'"
WORKER_ENDED = (
    RAISED + "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Terminated. "
)
TORN_DOWN = (  # what its workers held for it is gone
    "FileNotFoundError: [Errno 2] No such file or directory: '/tmp/pymp-x8f/listener-3a'",
    "RuntimeError: unable to open shared memory object </torch_12_3> in read-write mode: No such file or directory (2)",
    "OSError: handle is closed",
    "OSError: [Errno 9] Bad file descriptor",
)
QUIET: list[Any] = [STEPS, {"sleep": 60}]
FIRST: list[Any] = [STEPS, BAD_SHARD, {"sleep": 8}, {"exit": 1}]


def ended(words: str) -> list[Any]:
    """It wrote these words, and its launcher ended it."""
    return [STEPS, words, {"sleep": 60}]


def judged(plan: Plan, *, marked: bool = True) -> tuple[list[int | None], str]:
    """Whom the end by this plan names, and how surely."""
    dress = (lambda rank, line: f"[rank{rank}]: {line}") if marked else None
    found = outcome_of(plan, 4, dress).finding
    assert found is not None
    return [one.rank for one in found.culprits], str(found.confidence)


NO_MORE_THAN_LOW: dict[str, Plan] = {
    "all wrote the same, one was quicker than the launcher": {"1": FIRST, "*": ended(BAD_SHARD)},
    "one other wrote the same": {"1": FIRST, "2": ended(BAD_SHARD), "*": QUIET},
    "one other wrote something else of its own": {"1": FIRST, "2": ended(NO_LABELS), "*": QUIET},
    "another crashed before": {"1": FIRST, "2": [STEPS, {"sleep": 5}, {"signal": 11}], "*": QUIET},
    "another was killed before": {"1": FIRST, "2": [STEPS, {"sleep": 5}, {"signal": 9}], "*": QUIET},
}  # fmt: skip


@pytest.mark.parametrize("kind", NO_MORE_THAN_LOW)
def test_several_failures_name_nobody_surely(kind: str) -> None:
    assert judged(NO_MORE_THAN_LOW[kind])[1] == "low"


AS_BEFORE: dict[str, Plan] = {
    "the only one": {"1": FIRST, "*": QUIET},
    "others lost their workers as they were ended": {"1": FIRST, "*": ended(WORKER_ENDED)},
    "others told of an interrupt": {"1": FIRST, "*": ended(RAISED + "KeyboardInterrupt")},
    "another failed long after": {"1": FIRST, "2": [STEPS, NO_LABELS, {"sleep": 30}, {"exit": 1}], "*": QUIET},
    "another crashed long after": {"1": FIRST, "2": [STEPS, {"sleep": 30}, {"signal": 11}], "*": QUIET},
}  # fmt: skip


@pytest.mark.parametrize("kind", AS_BEFORE)
def test_who_alone_began_it_is_named_as_surely_as_before(kind: str) -> None:
    assert judged(AS_BEFORE[kind]) == ([1], "high")


@pytest.mark.parametrize("words", TORN_DOWN)
def test_what_is_written_as_a_rank_is_torn_down_is_no_earlier_failure(words: str) -> None:
    assert judged({"1": FIRST, "*": ended(RAISED + words)}) == ([1], "high")


def test_a_crash_beside_an_error_that_no_rank_has_signed() -> None:
    """The log of all, without marks, ends with an error of somebody's own, and two ranks failed: one by a signal, one with a code."""
    crash = [STEPS, {"sleep": 7}, {"signal": 11}]

    assert judged({"1": FIRST, "2": crash, "*": QUIET}, marked=False)[1] == "low"
    assert judged({"2": crash, "*": QUIET}, marked=False) == ([2], "high")


def test_two_errors_in_a_log_without_marks_name_nobody_surely() -> None:
    plan: Plan = {"1": FIRST, "2": [STEPS, NO_LABELS, {"sleep": 30}, {"exit": 1}], "*": QUIET}

    assert judged(plan, marked=False)[1] == "low"


MONITOR = (
    "[WARNING] [RankMonitorServer:34] Did not get subsequent heartbeat. Waited 171.92 seconds."
)
KILLED: list[Any] = [STEPS, {"sleep": 8}, {"signal": 9}]


def test_a_monitor_of_heartbeats_kills_whoever_waits() -> None:
    """All ranks of a job that hangs stop sending them; whose rank was killed first is chance."""
    assert judged({"0": [MONITOR, *KILLED], "1": KILLED, "*": QUIET}, marked=False) == ([], "low")
    assert judged({"1": KILLED, "*": QUIET}, marked=False) == ([1], "high")
    assert judged({"0": [MONITOR, *QUIET], "1": FIRST, "*": QUIET}) == ([1], "high")
