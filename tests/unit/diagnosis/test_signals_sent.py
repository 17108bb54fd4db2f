"""Signals that somebody sends a rank (a child that failed, a timer, the far end of a pipe) prove nothing; those of the kernel for its own fault do."""

import signal

import pytest

from mldebug.core.model import Confidence
from mldebug.diagnosis.exits.model import was_sent
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
