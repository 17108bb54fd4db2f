"""Signals that somebody sends a rank (a child that failed, a timer, the far end of a pipe) prove nothing; those of the kernel for its own fault do."""

import signal

import pytest

from mldebug.core.model import Confidence
from mldebug.diagnosis.exits.model import was_sent
from mldebug.diagnosis.exits.words.blame import Blame, blame_of
from shared.diagnosis.fieldexits import Plan, outcome_of

SENT = (signal.SIGQUIT, signal.SIGPIPE, signal.SIGALRM, signal.SIGVTALRM, signal.SIGIO, 40)
FAULTS = (signal.SIGILL, signal.SIGTRAP, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV, signal.SIGSYS, signal.SIGXCPU, signal.SIGXFSZ)  # fmt: skip


def ended_by(end: dict[str, int]) -> Confidence | None:
    """How surely rank 1 is named, which ends so before its launcher ends the others; None where it is not."""
    plan: Plan = {"1": ["step 8 loss 2.0", {"sleep": 8}, end], "*": ["step 8 loss 2.0"]}
    found = outcome_of(plan, file_each=True).finding
    named = [one.rank for one in found.culprits] if found else []
    assert named in ([], [1])
    return found.confidence if found and named else None


@pytest.mark.parametrize("number", SENT)
def test_who_is_sent_a_signal_is_named_without_proof_at_most(number: int) -> None:
    """SGLang's scheduler sends its parent SIGQUIT; whoever writes to a peer that is gone gets SIGPIPE."""
    assert ended_by({"signal": number}) in (None, Confidence.LOW)
    assert ended_by({"exit": 128 + number}) in (None, Confidence.LOW)


@pytest.mark.parametrize("number", FAULTS)
def test_a_fault_is_the_ranks_own(number: int) -> None:
    assert ended_by({"signal": number}) is Confidence.HIGH


def test_sigkill_is_as_sure_as_it_was() -> None:
    assert ended_by({"signal": signal.SIGKILL}) is Confidence.HIGH


OWN = (
    "Traceback (most recent call last):\n"
    '  File "/job/train.py", line 88, in train_step\n'
    "    loss = model(batch)\n"
    "KeyError: 'labels'"
)


@pytest.mark.parametrize(
    ("end", "found"),
    [
        ({"signal": signal.SIGPIPE}, Confidence.HIGH),
        ({"exit": 128 + signal.SIGPIPE}, Confidence.HIGH),
        # controls: these two may have been first
        ({"signal": signal.SIGSEGV}, Confidence.LOW),
        ({"signal": signal.SIGABRT}, Confidence.LOW),
    ],
)
def test_who_wrote_to_a_closed_end_before_is_no_earlier_failure(end: dict[str, int], found: Confidence) -> None:  # fmt: skip
    """Rank 2 fails by itself, and closes its connections some seconds before it is gone."""
    plan: Plan = {
        "0": ["step 8", {"sleep": 7}, end],
        "2": ["step 8", OWN, {"sleep": 9}, {"exit": 1}],
        "*": ["step 8"],
    }
    finding = outcome_of(plan, file_each=True).finding
    assert finding is not None
    assert ([one.rank for one in finding.culprits], finding.confidence) == ([2], found)


def killed(times: dict[int, float], first: dict[str, int]) -> Confidence | None:
    """How surely somebody is named where rank 1 ends at 8 s, and others are killed at these times."""
    plan: Plan = {str(rank): ["step 8", {"sleep": at}, {"signal": 9}] for rank, at in times.items()}
    plan = {**plan, "1": ["step 8", {"sleep": 8}, first], "*": ["step 8"]}
    found = outcome_of(plan, file_each=True, launcher="environment").finding
    return found.confidence if found and found.culprits else None


def test_whom_their_parent_kills_together_are_not_first() -> None:
    """Of SGLang, MPICH or a pod's end: one rank ends, all that are left are killed at once, or when their time to end is over."""
    lost = {"signal": int(signal.SIGPIPE)}
    assert killed({0: 8.3, 2: 8.3, 3: 8.3}, lost) is None
    assert killed({0: 38, 2: 38, 3: 38}, {"signal": int(signal.SIGTERM)}) is None
    assert killed({0: 8.3}, lost) is None
    assert killed({0: 8.3}, {"signal": int(signal.SIGQUIT)}) in (None, Confidence.LOW)
    # controls: one that is killed first, or is gone a moment after who noticed it
    assert killed({0: 7, 2: 8.3, 3: 8.3}, lost) is Confidence.HIGH
    assert killed({0: 8.05}, lost) is Confidence.HIGH


@pytest.mark.parametrize(
    ("status", "sent"),
    [
        (signal.SIGQUIT, True),
        ((128 + signal.SIGPIPE) << 8, True),
        (signal.SIGABRT, True),
        (40, True),
        (signal.SIGSEGV, False),
        (signal.SIGTERM, False),
        (signal.SIGKILL, False),
        ((128 + signal.SIGKILL) << 8, False),
        (1 << 8, False),
        (255 << 8, False),
        (0, False),
        (None, False),
    ],
)
def test_which_statuses_tell_of_a_signal_that_was_sent(status: int | None, sent: bool) -> None:
    assert was_sent(status) is sent


@pytest.mark.parametrize(
    ("how", "blame"),
    [
        ("Terminated", Blame.UNCLEAR),
        ("Interrupt", Blame.UNCLEAR),
        ("Hangup", Blame.UNCLEAR),
        ("Killed", Blame.OWN),
        ("Bus error", Blame.OWN),
        ("Segmentation fault", Blame.OWN),
    ],
)
def test_a_worker_that_was_told_to_end_is_no_failure_of_its_rank(how: str, blame: Blame) -> None:
    """Whoever ends a job sends the workers its signal, too."""
    assert blame_of(f"RuntimeError: DataLoader worker (pid 4711) is killed by signal: {how}. ") is blame  # fmt: skip


@pytest.mark.parametrize(
    ("words", "blame"),
    [
        ("ValueError: I/O operation on closed file.", Blame.UNCLEAR),
        ("RuntimeError: Event loop is closed", Blame.UNCLEAR),
        ("OSError: [Errno 9] Bad file descriptor", Blame.UNCLEAR),
        ("OSError: handle is closed", Blame.UNCLEAR),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/tmp/pymp-3kx0v1/listener-a7'", Blame.UNCLEAR),
        ("RuntimeError: cannot schedule new futures after interpreter shutdown", Blame.UNCLEAR),
        ("RuntimeError: CUDA error: invalid device ordinal", Blame.UNCLEAR),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/tmp/data/index.json'", Blame.OWN),
        ("RuntimeError: CUDA error: invalid argument", Blame.OWN),
    ],
)  # fmt: skip
def test_what_a_process_gets_that_is_ending_is_no_proof(words: str, blame: Blame) -> None:
    """Somebody may have told it or its helpers to end; and with more ranks than devices each one too many says the same."""
    assert blame_of(words) is blame
