"""Workers of Ray and Dask that have no task: their driver gives them one when others have ended theirs."""

import re
from collections.abc import Sequence

import msgspec

from mldebug.capture.frames import bare, is_own, python_frames
from mldebug.core.model import MAIN_THREAD, Classification, ClassifiedRank, Frame, Role

TASK_THREAD = re.compile(r"Dask-\w{1,20}-Threads.*")
"""The thread of a Dask worker that runs its task; its main thread serves the scheduler. Source: distributed 2024 and 2026, `worker.py`."""
_MAIN_LOOPS = (
    (re.compile(r"ray/(?:_private/)?worker\.py"), re.compile(r"main_loop|_get_next_task_from_\w+")),
    (re.compile(r"distributed/(?:nanny|cli/dask_worker)\.py"), re.compile(r"_?run|main")),
)
_POOL = re.compile(r"(?:.*/)?(?:distributed/threadpoolexecutor|concurrent/futures/thread)\.py")
NO_TASK = (
    "the main loop of a worker without a task, while others have one: taken as a wait for them"
)


def without_task(ranks: list[ClassifiedRank]) -> list[ClassifiedRank]:
    """The ranks, those without a task newly classified as waiting where the smaller part of all has one and no rank waits for others: the driver waits for
    those. Beside ranks in a collective a worker without a task is what they wait for.
    """
    idle = {rank.rank for rank in ranks if has_no_task(rank)}
    others = [rank for rank in ranks if rank.rank not in idle]
    if not idle or not others or 2 * len(others) >= len(ranks):
        return ranks
    if any(rank.is_.role in (Role.WAITING, Role.UNCLEAR) for rank in others):
        return ranks
    if not all(map(_runs_the_job, others)):
        return ranks  # a framework's controller, which may wait for those
    return [_as_idle(rank) if rank.rank in idle else rank for rank in ranks]


def idles(frames: Sequence[Frame]) -> bool:
    """Whether a thread with these frames is one of a pool, and has nothing to do."""
    python = python_frames(tuple(frames))
    return bool(python) and _POOL.fullmatch(python[0].file) is not None


def all_without_task(ranks: Sequence[ClassifiedRank]) -> bool:
    """Whether all of these ranks are workers of Ray or Dask without a task; False where there is no rank."""
    return bool(ranks) and all(map(has_no_task, ranks))


def has_no_task(rank: ClassifiedRank) -> bool:
    """Whether this is a worker of Ray or Dask to which its driver has given nothing to do."""
    process = rank.capture.process if rank.capture else None
    main = next((one for one in process.stacks if one.name == MAIN_THREAD), None) if process else None  # fmt: skip
    if rank.is_.role is not Role.INERT or rank.is_.thread or main is None:
        return False
    frames = python_frames(main.frames)
    innermost = frames[0] if frames else None
    serves = any(file.fullmatch(one.file) and name.fullmatch(bare(one)) for one in frames for file, name in _MAIN_LOOPS)  # fmt: skip
    if not serves or innermost is None:
        return False
    return innermost.file.startswith(("ray/", "asyncio/", "selectors.py", "uvloop/", "tornado/"))


def _runs_the_job(rank: ClassifiedRank) -> bool:
    stacks = rank.capture.process.stacks if rank.capture else ()
    return any(is_own(frame) for stack in stacks for frame in stack.frames)


def _as_idle(rank: ClassifiedRank) -> ClassifiedRank:
    waits = Classification(
        name="native_wait",
        role=Role.WAITING,
        doing="has no task",
        site=rank.is_.site,
        why=(*rank.is_.why, NO_TASK),
    )
    return msgspec.structs.replace(rank, is_=waits)
