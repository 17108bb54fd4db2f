"""Who began the end of a job? Pure: exits in their order and the words about them, to one outcome.

| the exits | the outcome |
|---|---|
| all 0, or nothing that tells of a failure | normal: nobody hears of it |
| a signal asked them all to end, none failed before | outside: a line in the log, no incident |
| one failed first, by its own error, a crash, SIGKILL or the kernel's word | abnormal: that rank is named |
| one failed first and does not say why | abnormal: named at medium; nobody, where others live or end alike |
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

from mldebug.core.model import Confidence
from mldebug.diagnosis.exits.model import AttemptExit, exit_code, exit_signal, words_of_status
from mldebug.diagnosis.exits.other_evidence import with_flights, with_gpu_fault
from mldebug.diagnosis.exits.outcome import ExitOutcome, abnormal, nobody, status_words
from mldebug.diagnosis.exits.rank_exit import KILL, ExitKind, ExplainedExit, explain_exits, is_about

SOON = 5.0  # seconds in which the peers of a rank that left must notice, for it to be sure


def judge_exit(ending: AttemptExit) -> ExitOutcome:
    """Say how an attempt ended. Names a rank only where order, words or its GPU single it out."""
    return with_flights(with_gpu_fault(_judge(ending), ending), ending)


def _judge(ending: AttemptExit) -> ExitOutcome:
    seen = explain_exits(ending)
    failing = [one for one in seen if one.way in (ExitKind.FAILED, ExitKind.KILLED)]
    if ending.words.outside and not any(one.death for one in seen):
        return ExitOutcome(kind="outside", sentence=f"ended from outside: {ending.words.outside}")
    if failing and _killed_from_outside(ending, seen):
        return ExitOutcome(kind="outside", sentence="ended from outside: all was killed at once")
    if failing and stopped_by_signal(ending, seen):
        return ExitOutcome(
            kind="outside", sentence=f"ended by a signal from outside: {ending.told_to_stop}"
        )
    if failing and interrupted(ending, seen):
        return ExitOutcome(kind="outside", sentence="ended by a signal from outside (SIGINT)")
    if not failing:
        return _without_failure(ending, seen)
    same = common_error(ending, seen)
    if same:
        here = " here" if len(seen) < ending.job.world_size else ""
        return nobody(ending, seen, f"all {len(seen)} ranks{here} failed with {same}")
    first = _first(failing)
    if first is None:
        return nobody(ending, seen, "several ranks failed at once, and their order is not known")
    return _begun_by(ending, seen, first, failing)


def _killed_from_outside(ending: AttemptExit, seen: Sequence[ExplainedExit]) -> bool:
    """Somebody killed everything: no story, as long as it is sure that it was no lack of memory."""
    sure = ending.kernel_readable or ending.oom_kills is not None
    memory = any(one.out_of_memory or one.death for one in seen)
    everybody = not ending.living and len(seen) == len(ending.identities)
    noticed = ending.words.failures or ending.words.said  # a launcher that was not killed itself
    quiet = not any(one.way in (ExitKind.FAILED, ExitKind.LEFT) for one in seen) and not noticed
    if not (sure and everybody and quiet and _at_once(seen)) or memory:
        return False
    if all(one.way is ExitKind.KILLED for one in seen):
        return True  # a launcher that ends the others after one was killed says whom it saw fail
    return ending.launcher_gone and _fell_first(ending, seen)


def _fell_first(ending: AttemptExit, seen: Sequence[ExplainedExit]) -> bool:
    """The launcher was killed, and not only gone because its ranks were."""
    if exit_signal(ending.launcher_status) == KILL:
        return True
    mine = ending.launcher_moment
    known = [one.exit.moment for one in seen if one.exit.moment is not None]
    return ending.launcher_status is None and mine is not None and mine <= min(known, default=0)


def _at_once(seen: Sequence[ExplainedExit]) -> bool:
    times = [one.exit.at for one in seen if one.exit.at]
    return len(times) < 2 or max(times) - min(times) < 2.0


def _without_failure(ending: AttemptExit, seen: Sequence[ExplainedExit]) -> ExitOutcome:
    ways = {one.way for one in seen}
    if ExitKind.PEER in ways:
        return _only_peers(ending, seen)
    asked = [one for one in seen if one.way is ExitKind.ASKED]
    if asked and ending.words.failures:
        return _named_by_launcher(ending, seen)
    if asked:
        names = words_of_status(asked[0].exit.status)
        return ExitOutcome(kind="outside", sentence=f"ended by a signal from outside ({names})")
    error = ending.shared_error
    if ways <= {ExitKind.UNKNOWN} and ways and error is not None and _launcher_failed(ending):
        return nobody(
            ending, seen, f"the job's log ends with {error.error}, and no rank's exit is known"
        )
    unknown = sum(one.way is ExitKind.UNKNOWN for one in seen)
    why = f"{unknown} of {len(seen)} exits unknown" if unknown else "all ranks left with exit 0"
    return ExitOutcome(kind="normal", sentence=f"ended: {why}")


def _launcher_failed(ending: AttemptExit) -> bool:
    return ending.launcher_status not in (None, 0) or bool(ending.words.failures)


def _only_peers(ending: AttemptExit, seen: Sequence[ExplainedExit]) -> ExitOutcome:
    """All blame a peer: it is the one that left before, where there is one."""
    first = next(one for one in seen if one.way is ExitKind.PEER)
    before = [
        one for one in seen if one.way in (ExitKind.LEFT, ExitKind.UNKNOWN) and _earlier(one, first)
    ]
    if len(before) == 1:
        gone = before[0]
        sure = gone.way is ExitKind.LEFT and first.exit.at - gone.exit.at <= SOON
        sure = sure and not (first.error and first.error.caught)
        return abnormal(seen, (gone,), Confidence.HIGH if sure else Confidence.MEDIUM)
    if before:
        return nobody(ending, seen, "more than one rank left before the first failure")
    said = first.error.error if first.error else "an error about a peer"
    return nobody(ending, seen, f"every rank that failed blames another one ({said})")


def _named_by_launcher(ending: AttemptExit, seen: Sequence[ExplainedExit]) -> ExitOutcome:
    """All were asked to end, and the launcher says whom it found first: nobody asked the launcher."""
    named = [one for one in seen if any(is_about(told, one.exit) for told in ending.words.failures)]
    if len(named) != 1:
        return nobody(ending, seen, "the launcher's words fit more than one rank")
    return abnormal(seen, (named[0],), Confidence.HIGH)


def _first(failing: Sequence[ExplainedExit]) -> ExplainedExit | None:
    """The one that failed first: the kernel's word, else the order, else the only one with an error of its own."""
    by_kernel = [one for one in failing if one.death is not None]
    for some in (by_kernel, list(failing)):
        if len(some) == 1:
            return some[0]
        firsts = [one for one in some if all(_not_later(one, other) for other in some)]
        if len(firsts) == 1:
            return firsts[0]
    own = [one for one in failing if one.own]
    return own[0] if len(own) == 1 else None


def _earlier(one: ExplainedExit, other: ExplainedExit) -> bool:
    mine, its = one.exit.moment, other.exit.moment
    return mine is not None and its is not None and mine < its


def _not_later(one: ExplainedExit, other: ExplainedExit) -> bool:
    return one is other or _earlier(one, other)


def _begun_by(
    ending: AttemptExit,
    seen: Sequence[ExplainedExit],
    first: ExplainedExit,
    failing: list[ExplainedExit],
) -> ExitOutcome:
    """One rank failed first; who left before it with 0, or unseen, may be the true beginning."""
    before = [
        one for one in seen if one.way in (ExitKind.LEFT, ExitKind.UNKNOWN) and _earlier(one, first)
    ]
    if not first.own and first.way is ExitKind.FAILED and before:
        who = ", ".join(f"rank {one.exit.rank} ({status_words(one)})" for one in before[:4])
        words = f"{who} left before rank {first.exit.rank} ({status_words(first)}) failed"
        return nobody(ending, seen, f"{words}, and no log tells whether one follows from the other")
    own = first.own or first.way is ExitKind.KILLED
    told = own or has_the_only_traceback(ending, first, failing)
    if not told and ending.living:
        words = f"rank {first.exit.rank} ({status_words(first)}) ended first and does not say why"
        return nobody(ending, seen, f"{words}, while others live on")
    if not told and len(seen) > 1 and {one.exit.status for one in seen} == {first.exit.status}:
        return nobody(ending, seen, f"all left with {status_words(first)}, and none says why")
    lost = len(seen) < len(ending.identities) - len(ending.living)
    doubtful = any(one.own for one in failing if one is not first) and not first.own
    ordered = len(failing) == 1 or first.exit.moment is not None or first.death is not None
    hinted = first.out_of_memory and first.death is None and first.way is ExitKind.KILLED
    textual = (
        first.way is ExitKind.FAILED and first.death is None and not exit_signal(first.exit.status)
    )
    weak = lost or doubtful or hinted or (textual and before)
    sure = own and first.proved and ordered and not weak
    return abnormal(seen, (first,), Confidence.HIGH if sure else Confidence.MEDIUM, ending)


UNWATCHED = ("environment", "single", "nccl_ras")  # launchers that end nobody when one fails


AT_ONCE = 3.0  # seconds in which all end that one Ctrl-C reached


HEAD_START = 0.5  # seconds of the first before the others, to own the only traceback


def stopped_by_signal(ending: AttemptExit, seen: Sequence[ExplainedExit]) -> bool:
    """Did all leave with one code and without an error, after one had said that a signal told it to stop?

    Where a launcher watches over them it may have been the launcher's, sent because one had failed.
    """
    if not ending.told_to_stop or ending.job.launcher not in UNWATCHED:
        return False
    failed = [one for one in seen if one.way is ExitKind.FAILED]
    others = [
        one for one in seen if one.way not in (ExitKind.FAILED, ExitKind.ASKED, ExitKind.LEFT)
    ]
    silent = not any(one.error for one in seen) and ending.shared_error is None
    codes = {exit_code(one.exit.status) for one in failed}
    quiet = silent and not others and not ending.words.failures
    return quiet and len(codes) == 1 and None not in codes


def interrupted(ending: AttemptExit, seen: Sequence[ExplainedExit]) -> bool:
    """Did Ctrl-C reach all of them, and some failed over it on their way out? No launcher sends SIGINT by itself."""
    pressed = [one for one in seen if exit_signal(one.exit.status) == signal.SIGINT]
    rest = [one for one in seen if one not in pressed]
    times = [one.exit.at for one in seen]
    at_once = bool(times) and min(times) > 0 and max(times) - min(times) <= AT_ONCE
    fell = all(one.way is ExitKind.FAILED and exit_code(one.exit.status) for one in rest)
    return bool(pressed) and fell and at_once and not ending.living and not ending.words.failures


def common_error(ending: AttemptExit, seen: Sequence[ExplainedExit]) -> str:
    """The one error that every rank of the job failed with, "" where there is none; who met it first means nothing.

    A lack of memory is no such error: it is told as what it is.
    """
    if len(seen) < 2 or len(seen) < len(ending.identities):
        return ""
    if any(one.way is not ExitKind.FAILED or one.out_of_memory for one in seen):
        return ""
    errors = {one.error.error if one.own and one.error else "" for one in seen}
    if errors == {""} and not any(one.error for one in seen):
        shared = ending.shared_error
        all_said_it = shared and not shared.blames_peer and shared.copies >= len(seen)
        return shared.error if shared and all_said_it else ""
    return errors.pop() if len(errors) == 1 else ""


def has_the_only_traceback(
    ending: AttemptExit, first: ExplainedExit, failing: Sequence[ExplainedExit]
) -> bool:
    """Is the one traceback of a log that all write to that of the rank which failed first?

    1 is what Python makes of an exception that nobody catches.
    """
    shared = ending.shared_error
    if shared is None or not shared.alone or shared.caught or shared.blames_peer:
        return False
    if exit_code(first.exit.status) != 1 or any(one.error for one in failing):
        return False
    return all(_well_after(one, first) for one in failing if one is not first)


def _well_after(one: ExplainedExit, first: ExplainedExit) -> bool:
    known = one.exit.moment is not None and first.exit.moment is not None and first.exit.at > 0
    return known and one.exit.at - first.exit.at >= HEAD_START
