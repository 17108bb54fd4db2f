"""The confidence that the rank named as first really began the end: what speaks for it, and what else may have happened.

Pure.
"""

import re
import signal
from collections.abc import Sequence

from mldebug.core.model import Confidence
from mldebug.diagnosis.exits.model import (
    FAULTS,
    AttemptExit,
    exit_code,
    exit_signal,
    was_sent,
)
from mldebug.diagnosis.exits.rank_exit import ExitKind, ExplainedExit, is_about
from mldebug.diagnosis.exits.words.blame import may_be_of_all
from mldebug.diagnosis.exits.words.last_words import tells_of_closed, tells_of_fault

SOON = (
    5.0  # seconds in which the peers of a rank that left notice it, where nothing is in their way
)
BUSY = (
    30.0  # the same, with the time that they need to write a traceback and to end on a busy machine
)
_OF_A_RANK = re.compile(
    r"'[^']{0,200}'|\"[^\"]{0,200}\"|(?<![^\s'\"])[^\s/]*+/\S*+|(?<![\w.:-])(?:(?!\d)[\w.:-])*+\d[\w.:-]*+"
)
# What a rank writes because it was told to end, or its workers were
_OF_AN_END = re.compile(
    r"killed by signal|exited unexpectedly|abruptly|KeyboardInterrupt|SystemExit|\bSIG(?:TERM|INT|HUP|USR[12])\b|[Tt]erminated|[Ss]hut(?:ting)? ?down|BrokenProcessPool"
    r"|/pymp-|shared memory object .{0,80}No such file|handle is closed|on closed file|loop is closed|\[Errno 9\]"
)
AT_ONCE = 1.0  # seconds in which the order of two exits proves nothing
TEARDOWN = 0.1  # seconds by which one that is killed may be gone later than the first that noticed: its memory goes first, then its connections
HEAD_START = 0.5  # seconds of the first before the others, to own the only traceback


def exit_confidence(
    first: ExplainedExit,
    failing: Sequence[ExplainedExit],
    exits: Sequence[ExplainedExit],
    attempt: AttemptExit,
    *,
    before: bool,
) -> Confidence:
    """The confidence that `first` began the end of the attempt.

    `failing`: the exits that may have begun it; `exits`: all. `before`: another rank had left
    before, or its end was not observed.
    """
    if _is_one_of_many(first, failing) or _another_was_failing(attempt, first, exits):
        return Confidence.LOW  # another run might as well name another of them
    if _was_quicker(attempt, first, exits):
        return Confidence.LOW
    if _is_close(first, failing) or is_ended_by_others(first, exits):
        return Confidence.LOW
    if first.kind is ExitKind.KILLED and first.death is None and _is_killed_with_others(first, exits) and not _is_named_alone(attempt, first):  # fmt: skip
        return Confidence.LOW
    if _is_later(first, failing) or _may_be_of_another(attempt, first, failing):
        return Confidence.LOW
    if _may_follow_a_kill(attempt, first, failing):
        return Confidence.LOW
    own = first.own or first.kind is ExitKind.KILLED
    ordered = len(failing) == 1 or first.exit.moment is not None or first.death is not None
    lost = len(exits) < len(attempt.identities) - len(attempt.living)
    if own and first.proved and ordered and not lost and not _is_doubtful(first, failing, before=before):  # fmt: skip
        return Confidence.HIGH
    return Confidence.LOW if is_one_sign(attempt, first, failing) else Confidence.MEDIUM


def _is_doubtful(first: ExplainedExit, failing: Sequence[ExplainedExit], *, before: bool) -> bool:
    """Whether something speaks against the first: another's own failure, an earlier exit, a text alone, or a mere hint of a lack of memory."""
    others = [one for one in failing if one is not first]
    if first.death is not None:
        return any(one.own for one in others) and not first.own
    hinted = first.out_of_memory and first.kind is ExitKind.KILLED
    silent_before = any(one.kind is ExitKind.FAILED and not one.own and earlier(one, first) for one in others)  # fmt: skip
    textual = first.kind is ExitKind.FAILED and not exit_signal(first.exit.status)
    doubtful = any(one.own for one in others) and not first.own
    return hinted or silent_before or doubtful or (textual and before)


def _is_one_of_many(first: ExplainedExit, failing: Sequence[ExplainedExit]) -> bool:
    """Whether another one failed with the same error of its own."""
    if first.death is not None or first.error is None:
        return False
    mine = alike(first.error.error)
    return any(
        one.own and one.error is not None and alike(one.error.error) == mine
        for one in failing
        if one is not first
    )


def _was_quicker(
    attempt: AttemptExit, first: ExplainedExit, exits: Sequence[ExplainedExit]
) -> bool:
    """Whether others may have been about to fail with the same loss, and were ended before: none of them tells that it lost its peer."""
    if first.death is not None or first.error is None or not may_be_of_all(first.error.error):
        return False
    single = attempt.job.world_size == 1 and first.exit.moment is not None
    return not single and not any(one.kind is ExitKind.PEER for one in exits)


def _is_close(first: ExplainedExit, failing: Sequence[ExplainedExit]) -> bool:
    """Whether another one had an error of its own at nearly the same time: who is first then is chance, or one follows from the other."""
    if first.death is not None:
        return False
    return any(
        one.own and one is not first and abs(one.exit.at - first.exit.at) < AT_ONCE
        for one in failing
    )


def _another_was_failing(
    attempt: AttemptExit, first: ExplainedExit, exits: Sequence[ExplainedExit]
) -> bool:
    """Whether one that its launcher ended had written an error of its own, which does not tell of that end: it may have failed before `first`."""
    if first.death is not None:
        return False
    ended = [attempt.errors.get(one.exit.rank) for one in exits if one.kind is ExitKind.ASKED and one is not first]  # fmt: skip
    return any(
        not (error.blames_peer or error.unclear or error.caught)
        and _OF_AN_END.search(error.error) is None
        for error in ended
        if error is not None
    )


def _is_later(first: ExplainedExit, failing: Sequence[ExplainedExit]) -> bool:
    """Whether another one had crashed or was killed well before it: then `first` is only the first that says why."""
    if first.death is not None:
        return False
    return any(
        earlier(one, first) and first.exit.at - one.exit.at >= AT_ONCE
        for one in failing
        if one is not first and exit_signal(one.exit.status) is not None
    )


def _may_be_of_another(
    attempt: AttemptExit, first: ExplainedExit, failing: Sequence[ExplainedExit]
) -> bool:
    """Whether the log of all ends with an error of somebody's own, which `first`, that a signal ended, has not written."""
    shared = attempt.shared_error
    if shared is None or shared.blames_peer or first.death is not None or first.error is not None:
        return False
    if tells_of_fault(shared) and exit_signal(first.exit.status) in FAULTS:
        return False  # of that very signal
    exited = any(one is not first and exit_code(one.exit.status) for one in failing)
    return exited and exit_signal(first.exit.status) is not None


def _may_follow_a_kill(
    attempt: AttemptExit, first: ExplainedExit, failing: Sequence[ExplainedExit]
) -> bool:
    """Whether nobody has seen the order of exits, and another one was killed: `first` may have failed because of that. Not where it is the
    only one that the launcher names.
    """
    if first.exit.moment is not None or first.death is not None:
        return False
    killed = any(one is not first and one.kind is ExitKind.KILLED for one in failing)
    return killed and not _is_named_alone(attempt, first)


def _is_named_alone(attempt: AttemptExit, first: ExplainedExit) -> bool:
    """Whether it is the only one of this attempt of which the launcher says that it failed."""
    failures = attempt.words.failures
    named = {one.rank for one in attempt.exits if any(is_about(words, one) for words in failures)}
    return named == {first.exit.rank}


def is_ended_by_others(first: ExplainedExit, exits: Sequence[ExplainedExit]) -> bool:
    """Whether it was killed after another one had failed or been asked to end: launchers, schedulers and parents kill what is left, some of them
    after a while in which it may end when it is asked to.
    """
    if first.kind is not ExitKind.KILLED or first.death is not None:
        return False
    if exit_signal(first.exit.status) != signal.SIGKILL:
        return False
    before = [one for one in exits if one.exit.status and earlier(one, first)]
    return any(first.exit.at - one.exit.at >= TEARDOWN for one in before) or (
        bool(before) and _is_killed_with_others(first, exits)
    )


def _is_killed_with_others(first: ExplainedExit, exits: Sequence[ExplainedExit]) -> bool:
    """Whether SIGKILL ended other ranks at nearly the same time."""
    return any(
        one is not first
        and exit_signal(one.exit.status) == signal.SIGKILL
        and abs(one.exit.at - first.exit.at) < AT_ONCE
        for one in exits
    )


def is_one_sign(
    attempt: AttemptExit, first: ExplainedExit, failing: Sequence[ExplainedExit]
) -> bool:
    """Whether only the order of exits points to `first`: its words do not say whose failure it is, and a victim may end first.

    False for an exit code without an error where an agent saw the exit and read the rank's output: PyTorch makes every victim write an
    error. Of a job that nobody watched, its words may only be missing in the log. True for a signal that is no fault (SIGTERM and
    the like): somebody may have sent it.
    """
    if first.error is not None:
        unseen = first.exit.status is None and first.exit.moment is None
        return first.error.unclear or (first.error.caught and unseen)
    if (
        first.own
        or first.kind is ExitKind.KILLED
        or has_the_only_traceback(attempt, first, failing)
    ):
        return False
    silent = [one for one in failing if one.kind is ExitKind.FAILED and not one.own]
    if attempt.shared_error is not None:
        return attempt.shared_error.unclear
    was_read = attempt.output_read or attempt.log or attempt.logs
    watched = first.exit.moment is not None
    return was_sent(first.exit.status) or not (was_read and watched) or len(silent) > 1


def may_hang(gone: ExplainedExit, first: ExplainedExit, exits: Sequence[ExplainedExit]) -> bool:
    """Whether a rank that was ended without having written anything may be the one that the others timed out on, and not `gone`, the rank that left."""
    closed = first.error is not None and tells_of_closed(first.error)
    silent = any(one.kind is ExitKind.ASKED and one.error is None for one in exits)
    return silent and not closed and first.exit.at - gone.exit.at > SOON


def sureness_of_leaver(
    gone: ExplainedExit, first: ExplainedExit, attempt: AttemptExit
) -> Confidence:
    """The confidence that `gone`, a rank that left before, is the peer that the others' errors say they lost.

    `first`: the first rank with such an error.

    A closed connection means that its other end is gone. Of two ranks that is the other one, at any
    time; of more ranks, one that left within the seconds that processes need to end. Where ranks
    are on other nodes, it is at most medium.
    """
    later = first.exit.at - gone.exit.at
    if len(attempt.identities) < attempt.job.world_size:
        return Confidence.MEDIUM if later <= SOON else Confidence.LOW
    error = first.error
    known = error is not None and tells_of_closed(error) and not error.caught
    sure = known and gone.kind is ExitKind.LEFT and (len(attempt.exits) == 2 or later <= BUSY)
    return Confidence.HIGH if sure else Confidence.MEDIUM


def alike(error: str) -> str:
    """An error's text with numbers, paths, addresses and quoted names replaced by `#`, so that equal errors of different ranks are equal."""
    return _OF_A_RANK.sub("#", error)


def has_the_only_traceback(
    attempt: AttemptExit, first: ExplainedExit, failing: Sequence[ExplainedExit]
) -> bool:
    """Whether the only traceback in a log that all ranks write to is taken for that of `first`: that rank exited with code
    1, as Python does after an exception, well before all other ranks in `failing`, and none of them has an error of its
    own.
    """
    shared = attempt.shared_error
    if shared is None or not shared.alone or shared.caught or shared.blames_peer or shared.unclear:
        return False
    if exit_code(first.exit.status) != 1 or any(one.error for one in failing):
        return False
    return all(_well_after(one, first) for one in failing if one is not first)


def _well_after(one: ExplainedExit, first: ExplainedExit) -> bool:
    ordered = one.exit.moment is not None and first.exit.moment is not None and first.exit.at > 0
    return ordered and one.exit.at - first.exit.at >= HEAD_START


def earlier(one: ExplainedExit, other: ExplainedExit) -> bool:
    mine, its = one.exit.moment, other.exit.moment
    return mine is not None and its is not None and mine < its


def not_later(one: ExplainedExit, other: ExplainedExit) -> bool:
    return one is other or earlier(one, other)
