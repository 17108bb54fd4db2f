"""Whether a rank may wait for another rank in a way that is no collective: at a barrier between processes, for the answer of a Ray actor, or in a function
of the job whose name says so (`recv_from_peer`).

Such a rank is not the one that all others wait for, or not surely: who would end its wait, no stack shows.
"""

import re

from mldebug.capture.frames import inner, principal, python_frames, site
from mldebug.core.model import ClassifiedRank, Frame

PERHAPS_A_RANK = "what it waits for may be another rank: no stack shows who would end its wait"
_NAMED = re.compile(
    r"(?:^|_)(?:peers?|ranks?|neighbou?rs?|other_\w+|barrier|rendezvous|all_?reduce|all_?gather|all_?to_?all|broadcast|bcast)(?:_|$)",
    re.IGNORECASE,
)
_WAITS = ("lock", "file_lock", "flock", "future", "idle", "poll", "sleep")
_ACTOR = re.compile(r"ray/_private/worker\.py|ray/_private/auto_init_hook\.py")


def may_wait_for_rank(rank: ClassifiedRank) -> bool:
    """Whether this rank, which is idle, may wait for another one."""
    if rank.is_.name not in _WAITS or rank.capture is None:
        return False
    process = rank.capture.process
    stack = principal(process.stacks, process.pid)
    frames = python_frames(stack.frames) if stack else ()
    place = site(frames)
    if place is None:
        return False
    calls = inner(frames, place)
    named = _NAMED.search(place.function.rpartition(".")[2]) is not None
    return named or _at_barrier(calls) or any(map(_is_of_actor, calls))


def _at_barrier(calls: tuple[Frame, ...]) -> bool:
    """multiprocessing's Barrier is threading's, on a condition between processes."""
    shared = any(one.file.endswith("multiprocessing/synchronize.py") for one in calls)
    return shared and any(one.file.endswith("threading.py") for one in calls)


def _is_of_actor(call: Frame) -> bool:
    return _ACTOR.search(call.file) is not None and call.function in ("get", "wait", "get_objects")
