"""Where exits look alike: one error for all, one traceback for the first of them, or a signal that all obeyed. Pure."""

import signal
from collections.abc import Sequence

from mldebug.diagnosis.exits.model import Ending, exit_code, exit_signal
from mldebug.diagnosis.exits.rank_exit import Seen, Way

UNWATCHED = ("environment", "single", "nccl_ras")  # launchers that end nobody when one fails
AT_ONCE = 3.0  # seconds in which all end that one Ctrl-C reached
HEAD_START = 0.5  # seconds of the first before the others, to own the only traceback


def stopped_by_signal(ending: Ending, seen: Sequence[Seen]) -> bool:
    """Did all leave with one code and without an error, after one had said that a signal told it to stop?

    Where a launcher watches over them it may have been the launcher's, sent because one had failed.
    """
    if not ending.told_to_stop or ending.job.launcher not in UNWATCHED:
        return False
    failed = [one for one in seen if one.way is Way.FAILED]
    others = [one for one in seen if one.way not in (Way.FAILED, Way.ASKED, Way.LEFT)]
    silent = not any(one.error for one in seen) and ending.shared_error is None
    codes = {exit_code(one.exit.status) for one in failed}
    quiet = silent and not others and not ending.words.failures
    return quiet and len(codes) == 1 and None not in codes


def interrupted(ending: Ending, seen: Sequence[Seen]) -> bool:
    """Did Ctrl-C reach all of them, and some failed over it on their way out? No launcher sends SIGINT by itself."""
    pressed = [one for one in seen if exit_signal(one.exit.status) == signal.SIGINT]
    rest = [one for one in seen if one not in pressed]
    times = [one.exit.at for one in seen]
    at_once = bool(times) and min(times) > 0 and max(times) - min(times) <= AT_ONCE
    fell = all(one.way is Way.FAILED and exit_code(one.exit.status) for one in rest)
    return bool(pressed) and fell and at_once and not ending.living and not ending.words.failures


def common_error(ending: Ending, seen: Sequence[Seen]) -> str:
    """The one error that every rank of the job failed with, "" where there is none; who met it first means nothing.

    A lack of memory is no such error: it is told as what it is.
    """
    if len(seen) < 2 or len(seen) < len(ending.identities):
        return ""
    if any(one.way is not Way.FAILED or one.out_of_memory for one in seen):
        return ""
    errors = {one.error.error if one.own and one.error else "" for one in seen}
    if errors == {""} and not any(one.error for one in seen):
        shared = ending.shared_error
        all_said_it = shared and not shared.blames_peer and shared.copies >= len(seen)
        return shared.error if shared and all_said_it else ""
    return errors.pop() if len(errors) == 1 else ""


def has_the_only_traceback(ending: Ending, first: Seen, failing: Sequence[Seen]) -> bool:
    """Is the one traceback of a log that all write to that of the rank which failed first?

    1 is what Python makes of an exception that nobody catches.
    """
    shared = ending.shared_error
    if shared is None or not shared.alone or shared.caught or shared.blames_peer:
        return False
    if exit_code(first.exit.status) != 1 or any(one.error for one in failing):
        return False
    return all(_well_after(one, first) for one in failing if one is not first)


def _well_after(one: Seen, first: Seen) -> bool:
    known = one.exit.moment is not None and first.exit.moment is not None and first.exit.at > 0
    return known and one.exit.at - first.exit.at >= HEAD_START
