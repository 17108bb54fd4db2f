"""Who holds the CUDA memory of chosen ranks that work: asked of their hooks, where the job was started with `mldebug run --memory-history`."""

from collections.abc import Sequence
from typing import NamedTuple

from mldebug.capture.memory.hook_file import parse_failure
from mldebug.core.model import MemoryFailure, Noun, RankIdentity
from mldebug_agents.capture.tools import CaptureTools
from mldebug_agents.jobs.hook.requests import NO_HOOK, HookResult, StepOrder

UNTOUCHED = "it was not started with `mldebug run --memory-history`, so nothing remembers which line made which block"


class RankHolders(Noun, frozen=True, kw_only=True):
    """Which lines of code hold the memory of one rank's GPU (`found`; no allocation had failed), or in `failure` why that is not known.

    `file`: the name of the evidence file.
    """

    rank: int
    pid: int
    file: str = ""
    found: MemoryFailure | None = None
    failure: str = ""


class TakenMemory(NamedTuple):
    """The answers of ranks, and the evidence files of those that gave one, by name."""

    ranks: tuple[RankHolders, ...]
    files: dict[str, bytes]


def take_memory(tools: CaptureTools, ranks: Sequence[RankIdentity], wait: float) -> TakenMemory:
    """Ask these ranks after their next step; `wait`: seconds in which one has to end.

    Raises AccessError where this user may not ask them.
    """
    results = tools.requests.ask(ranks, StepOrder(what="memory", seconds=wait))
    found = [_answer(one, results[one.rank]) for one in sorted(ranks, key=lambda one: one.rank)]
    files = {one.file: results[one.rank].data for one in found if one.file}
    return TakenMemory(tuple(found), files)


def _answer(rank: RankIdentity, result: HookResult) -> RankHolders:
    failure = UNTOUCHED if result.failure == NO_HOOK else result.failure
    if result.answer is None:
        return RankHolders(rank=rank.rank, pid=rank.pid, failure=failure)
    try:
        found = parse_failure(result.data)
    except ValueError as error:
        why = f"its answer is not believed: {error}"
        return RankHolders(rank=rank.rank, pid=rank.pid, failure=why)
    file = f"memory-rank{rank.rank}.json"
    return RankHolders(rank=rank.rank, pid=rank.pid, file=file, found=found)
