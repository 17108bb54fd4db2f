"""Which rank failed first, and how an attempt ended: from its exits in their order and what explains them. Pure.

| the exits | the outcome |
|---|---|
| all 0, or nothing that tells of a failure | normal: no incident |
| a signal asked them all to end, none failed before | outside: a line in the log, no incident |
| one failed first, by its own error, a crash, SIGKILL or a line of the kernel | abnormal: that rank is named |
| one failed first and does not say why | abnormal: named at medium; nobody, where others live or end alike |
| the same, and the job's log ends with words about another rank | abnormal: nobody is named |
| one failed first, and its error does not say whose failure it is | abnormal: named at low |
| the same, and the job's log has one traceback | abnormal: that rank is named at medium |
| all failed with the same error | abnormal: nobody is named |
| all left with one exit code, and one says that a signal told it to stop | outside |
| all left at once, some by SIGINT | outside |
| every rank blames a peer, and one left with exit 0 before | abnormal: that rank is named |
| every rank blames a peer, or it is not known who was first | abnormal: nobody is named |

A rank that was asked to end, and one whose error only tells that a peer is gone, follow from another's end.
"""

import signal
from collections.abc import Sequence

import msgspec

from mldebug.core.model import Confidence
from mldebug.core.ranksets import fold_ranks
from mldebug.diagnosis.exits.exit_confidence import (
    alike,
    earlier,
    exit_confidence,
    has_the_only_traceback,
    is_ended_by_others,
    may_hang,
    not_later,
    sureness_of_leaver,
)
from mldebug.diagnosis.exits.failed_network import with_network_fault
from mldebug.diagnosis.exits.model import (
    AttemptExit,
    exit_code,
    exit_signal,
    was_asked,
    words_of_status,
)
from mldebug.diagnosis.exits.no_space.full_filesystem import with_full_filesystem
from mldebug.diagnosis.exits.other_evidence import with_flights, with_gpu_fault
from mldebug.diagnosis.exits.outcome import (
    ExitOutcome,
    abnormal,
    nobody,
    status_words,
    tells_of_allocation,
)
from mldebug.diagnosis.exits.rank_exit import KILL, ExitKind, ExplainedExit, explain_exits, is_about
from mldebug.diagnosis.exits.suspects import with_suspects
from mldebug.diagnosis.exits.words.last_words import tells_of_closed


def judge_exit(attempt: AttemptExit) -> ExitOutcome:
    """How an attempt (one start of a job) ended.

    A rank is named only where the order of exits, an error or its GPU singles it out; a network port where it failed before.
    """
    attempt = with_recorded_error(attempt)
    outcome = with_full_filesystem(with_suspects(_judge(attempt), attempt), attempt)
    outcome = with_network_fault(with_gpu_fault(outcome, attempt), attempt)
    return with_flights(outcome, attempt)


def with_recorded_error(attempt: AttemptExit) -> AttemptExit:
    """Give an error in the job's log that no rank is marked for, a lack of GPU memory, to the rank whose hook has recorded the same failed
    allocation. Returns the attempt unchanged unless exactly one failed rank has.
    """
    shared = attempt.shared_error
    if shared is None or shared.caught:
        return attempt
    failed = {one.rank for one in attempt.exits if exit_code(one.status)}
    ranks = [
        one
        for one, failure in attempt.memory.items()
        if one in failed and tells_of_allocation(shared.memory, failure)
    ]
    if len(ranks) != 1 or ranks[0] in attempt.errors:
        return attempt
    errors = {**attempt.errors, ranks[0]: msgspec.structs.replace(shared, unclear=False)}
    return msgspec.structs.replace(attempt, errors=errors, shared_error=None)


def _judge(attempt: AttemptExit) -> ExitOutcome:
    exits = explain_exits(attempt)
    failing = [one for one in exits if one.kind in (ExitKind.FAILED, ExitKind.KILLED)]
    if attempt.words.outside and not any(one.death for one in exits):
        return ExitOutcome(kind="outside", sentence=f"ended from outside: {attempt.words.outside}")
    if failing and _killed_from_outside(attempt, exits):
        return ExitOutcome(kind="outside", sentence="ended from outside: all was killed at once")
    if failing and stopped_by_signal(attempt, exits):
        return ExitOutcome(
            kind="outside", sentence=f"ended by a signal from outside: {attempt.told_to_stop}"
        )
    if failing and interrupted(attempt, exits):
        return ExitOutcome(kind="outside", sentence="ended by a signal from outside (SIGINT)")
    if not failing:
        return _without_failure(attempt, exits)
    same = common_error(attempt, exits)
    if same:
        here = " here" if len(exits) < attempt.job.world_size else ""
        return nobody(attempt, exits, f"all {len(exits)} ranks{here} failed with {same}")
    first = _first(failing)
    if first is None:
        return nobody(attempt, exits, "several ranks failed at once, and their order is not known")
    return _begun_by(attempt, exits, first, failing)


def _killed_from_outside(attempt: AttemptExit, exits: Sequence[ExplainedExit]) -> bool:
    """Whether somebody killed all processes: no incident, as long as it is sure that it was no lack of memory."""
    sure = attempt.kernel_readable or attempt.oom_kills is not None
    memory = any(one.out_of_memory or one.death for one in exits)
    everybody = not attempt.living and len(exits) == len(attempt.identities)
    noticed = attempt.words.failures or attempt.words.cited  # a launcher that was not killed itself
    quiet = not any(one.kind in (ExitKind.FAILED, ExitKind.LEFT) for one in exits) and not noticed
    if not (sure and everybody and quiet and _at_once(exits)) or memory:
        return False
    if all(one.kind is ExitKind.KILLED for one in exits):
        return True  # a launcher that ends the others after one was killed says whom it saw fail
    return attempt.launcher_gone and _fell_first(attempt, exits)


def _fell_first(attempt: AttemptExit, exits: Sequence[ExplainedExit]) -> bool:
    """The launcher was killed, and not only gone because its ranks were."""
    if exit_signal(attempt.launcher_status) == KILL:
        return True
    mine = attempt.launcher_moment
    known = [one.exit.moment for one in exits if one.exit.moment is not None]
    return attempt.launcher_status is None and mine is not None and mine <= min(known, default=0)


def _at_once(exits: Sequence[ExplainedExit]) -> bool:
    times = [one.exit.at for one in exits if one.exit.at]
    return len(times) < 2 or max(times) - min(times) < 2.0


def _without_failure(attempt: AttemptExit, exits: Sequence[ExplainedExit]) -> ExitOutcome:
    ways = {one.kind for one in exits}
    if ExitKind.PEER in ways:
        return _only_peers(attempt, exits)
    stopped = [one for one in exits if one.kind is ExitKind.ASKED]
    if stopped and attempt.words.monitor:
        return nobody(attempt, exits, f"a monitor ended what sent no heartbeat ({attempt.words.monitor})")  # fmt: skip
    if stopped and attempt.words.failures:
        return _named_by_launcher(attempt, exits)
    if stopped:
        names = words_of_status(stopped[0].exit.status)
        return ExitOutcome(kind="outside", sentence=f"ended by a signal from outside ({names})")
    error = attempt.shared_error
    unseen = ways <= {ExitKind.UNKNOWN} and (ways or attempt.words.failures or not attempt.identities)  # fmt: skip
    if unseen and error is not None and _launcher_failed(attempt):
        return nobody(
            attempt, exits, f"the job's log ends with {error.error}, and no rank's exit is known"
        )
    if unseen and (attempt.words.cited or attempt.words.failures) and _launcher_failed(attempt):
        wrote = attempt.words.cited[0] if attempt.words.cited else "that a process had failed"
        return nobody(attempt, exits, f"its launcher wrote {wrote}, and no rank's exit is known")
    return ExitOutcome(kind="normal", sentence=f"ended: {_how_all_left(attempt, exits)}")


def _how_all_left(attempt: AttemptExit, exits: Sequence[ExplainedExit]) -> str:
    """Of an end without a failure: how many ranks are known to have left with exit 0. "all" only where each was seen."""
    left = sum(one.kind is ExitKind.LEFT for one in exits)
    here = max(len(attempt.identities), len(exits))
    if left == here > 0:
        return "all ranks left with exit 0" if here >= attempt.job.world_size else f"all {left} ranks here left with exit 0"  # fmt: skip
    return f"{left} of {here} ranks left with exit 0, of the others no exit is known" if left else "no rank's exit is known"  # fmt: skip


def _launcher_failed(attempt: AttemptExit) -> bool:
    return attempt.launcher_status not in (None, 0) or bool(attempt.words.failures)


def _only_peers(attempt: AttemptExit, exits: Sequence[ExplainedExit]) -> ExitOutcome:
    """All blame a peer: it is the rank that left before, where there is one."""
    first = next(one for one in exits if one.kind is ExitKind.PEER)
    whole = len(attempt.identities) == attempt.job.world_size
    closed = whole and first.error is not None and tells_of_closed(first.error)
    before = [
        one
        for one in exits
        if one.kind in (ExitKind.LEFT, ExitKind.UNKNOWN)
        and not (one.error and one.error.blames_peer)
        and (earlier(one, first) or (closed and not earlier(first, one)))
    ]
    if len(before) == 1 and may_hang(before[0], first, exits):
        words = f"rank {before[0].exit.rank} ({status_words(before[0])}) left long before the first timed out"
        return nobody(attempt, exits, f"{words}, and some that were ended may have hung")
    if len(before) == 1:
        return abnormal(exits, (before[0],), sureness_of_leaver(before[0], first, attempt))
    if before:
        return nobody(attempt, exits, "more than one rank left before the first failure")
    words = first.error.error if first.error else "an error about a peer"
    return nobody(attempt, exits, f"every rank that failed blames another one ({words})")


def _named_by_launcher(attempt: AttemptExit, exits: Sequence[ExplainedExit]) -> ExitOutcome:
    """All were asked to end by the launcher, which writes which rank it found failed first."""
    named = [
        one
        for one in exits
        if any(is_about(failure, one.exit) for failure in attempt.words.failures)
    ]
    if len(named) != 1:
        return nobody(attempt, exits, "the launcher's words fit more than one rank")
    statuses = [one.status for one in attempt.words.failures if is_about(one, named[0].exit)]
    # nobody saw who was asked first, nor by whom
    sent = named[0].exit.moment is None and all(was_asked(status) for status in statuses)
    return abnormal(exits, (named[0],), Confidence.LOW if sent else Confidence.HIGH)


def _first(failing: Sequence[ExplainedExit]) -> ExplainedExit | None:
    """The rank that failed first: by a line of the kernel, else the only one that says of itself that it failed, else by order.

    A crash or SIGKILL is no word: either may follow from another's end.
    """
    by_kernel = [one for one in failing if one.death is not None]
    worded = [one for one in failing if one.own and one.error is not None]
    alone = worded if len(worded) == 1 and not by_kernel else []
    for some in (by_kernel, alone, list(failing)):
        if len(some) == 1:
            return some[0]
        firsts = [one for one in some if all(not_later(one, other) for other in some)]
        if len(firsts) == 1:
            return firsts[0]
    return None


def _begun_by(
    attempt: AttemptExit,
    exits: Sequence[ExplainedExit],
    first: ExplainedExit,
    failing: list[ExplainedExit],
) -> ExitOutcome:
    """One rank failed first; who left before it with 0, or unseen, may be the true beginning."""
    before = [
        one
        for one in exits
        if one.kind in (ExitKind.LEFT, ExitKind.UNKNOWN) and earlier(one, first)
    ]
    if not first.own and first.kind is ExitKind.FAILED and before:
        who = ", ".join(f"rank {one.exit.rank} ({status_words(one)})" for one in before[:4])
        words = f"{who} left before rank {first.exit.rank} ({status_words(first)}) failed"
        return nobody(
            attempt, exits, f"{words}, and no log tells whether one follows from the other"
        )
    if is_ended_by_others(first, exits) and not first.out_of_memory and all(one.kind is ExitKind.KILLED for one in failing):  # fmt: skip
        words = f"rank {first.exit.rank} ({status_words(first)}) was killed after others had ended"
        return nobody(attempt, exits, words)
    own = first.own or first.kind is ExitKind.KILLED
    explained = own or has_the_only_traceback(attempt, first, failing)
    if not explained and attempt.living:
        words = f"rank {first.exit.rank} ({status_words(first)}) ended first and does not say why"
        return nobody(attempt, exits, f"{words}, while others live on")
    shared = attempt.shared_error
    if not explained and first.error is None and shared is not None and shared.blames_peer:
        return nobody(
            attempt, exits, f"the job's log ends with words about another rank ({shared.error})"
        )
    alone = first.error is not None and len(failing) == 1  # all others only lost a peer
    same = {one.exit.status for one in exits} == {first.exit.status}
    if not explained and len(exits) > 1 and same and not alone:
        return nobody(attempt, exits, f"all left with {status_words(first)}, and none says why")
    silent = [one for one in failing if one.kind is ExitKind.FAILED and not one.own and one.error is None]  # fmt: skip
    if not explained and first in silent and len(silent) > 1 and shared is not None:
        who = fold_ranks(one.exit.rank for one in silent)
        return nobody(
            attempt,
            exits,
            f"ranks {who} failed, and no line of the log says whose its last error is",
        )
    confidence = exit_confidence(first, failing, exits, attempt, before=bool(before))
    return abnormal(exits, (first,), confidence, attempt)


UNWATCHED = ("environment", "single", "nccl_ras")  # launchers that end nobody when one fails


AT_ONCE = 3.0  # seconds in which all end that one Ctrl-C reached


def stopped_by_signal(attempt: AttemptExit, exits: Sequence[ExplainedExit]) -> bool:
    """Whether all ranks left with one exit code and without an error, after one had logged that a signal asked it to stop.

    False under a launcher that watches its ranks: the signal may have been the launcher's, sent
    because a rank had failed.
    """
    if not attempt.told_to_stop or attempt.job.launcher not in UNWATCHED:
        return False
    failed = [one for one in exits if one.kind is ExitKind.FAILED]
    others = [
        one for one in exits if one.kind not in (ExitKind.FAILED, ExitKind.ASKED, ExitKind.LEFT)
    ]
    silent = not any(one.error for one in exits) and attempt.shared_error is None
    codes = {exit_code(one.exit.status) for one in failed}
    quiet = silent and not others and not attempt.words.failures
    return quiet and len(codes) == 1 and None not in codes


def interrupted(attempt: AttemptExit, exits: Sequence[ExplainedExit]) -> bool:
    """Whether Ctrl-C reached all ranks: one ended by SIGINT, all others failed within `AT_ONCE` seconds, none lives.

    No launcher sends SIGINT by itself.
    """
    pressed = [one for one in exits if exit_signal(one.exit.status) == signal.SIGINT]
    rest = [one for one in exits if one not in pressed]
    times = [one.exit.at for one in exits]
    at_once = bool(times) and min(times) > 0 and max(times) - min(times) <= AT_ONCE
    fell = all(one.kind is ExitKind.FAILED and exit_code(one.exit.status) for one in rest)
    return bool(pressed) and fell and at_once and not attempt.living and not attempt.words.failures


def common_error(attempt: AttemptExit, exits: Sequence[ExplainedExit]) -> str:
    """The error that every rank of the job failed with; "" where there is none.

    The order of exits then says nothing.

    Errors for lack of memory are left out: they have a verdict of their own.
    """
    if len(exits) < 2 or len(exits) < len(attempt.identities):
        return ""
    if any(one.kind is not ExitKind.FAILED or one.out_of_memory for one in exits):
        return ""
    errors = {alike(one.error.error) if one.own and one.error else "" for one in exits}
    if errors == {""} and not any(one.error for one in exits):
        shared = attempt.shared_error
        from_all = shared and not shared.blames_peer and shared.copies >= len(exits)
        return shared.error if shared and from_all else ""
    own = next((one.error.error for one in exits if one.error), "")
    return own if len(errors) == 1 and errors != {""} else ""
