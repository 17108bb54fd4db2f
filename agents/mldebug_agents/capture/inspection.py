"""Inspects chosen ranks that work: a trace of `torch.profiler` by the hook at a rank's next steps, or stacks sampled by py-spy where there
is no hook; or who holds their CUDA memory, where the job was started with `mldebug run --memory-history`.
"""

import fcntl
import gzip
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mldebug.capture.folded_stacks import folded_text
from mldebug.capture.inspection import (
    MOST_RANKS,
    InspectedRank,
    InspectedRanks,
    InspectionOptions,
    RankHolders,
    RankProfile,
    of_ranks,
)
from mldebug.capture.memory.hook_file import parse_failure
from mldebug.capture.profile.hook_answer import HookAnswer
from mldebug.capture.profile.sampled import sampled_profile
from mldebug.capture.profile.summary import summarize
from mldebug.capture.profile.trace import parse_trace
from mldebug.core.errors import EvidenceError
from mldebug.core.model import RankIdentity
from mldebug_agents.capture.tools import CaptureTools
from mldebug_agents.jobs.hook.requests import NO_HOOK, HookResult, StepOrder

RATE = 50  # samples a second of py-spy
SAMPLED_ALREADY = "another profile of it is going on: one at a time"
UNTOUCHED = "it was not started with `mldebug run --memory-history`, so nothing remembers which line made which block"

Found = tuple[InspectedRank, bytes]  # with its evidence file, b"" where there is none


def inspect_ranks(
    tools: CaptureTools, ranks: Sequence[RankIdentity], options: InspectionOptions
) -> InspectedRanks:
    """Inspect these ranks, all at once: those with the hook at their next steps, of the others the stacks are sampled (for a profile).

    Raises AccessError where this user may not ask them. Where it is interrupted (KeyboardInterrupt, SystemExit), ranks are told that
    nobody waits any more, and whatever samples them is ended.
    """
    order = StepOrder(what=options.what, steps=options.steps, seconds=options.wait)
    if options.what == "memory":
        return of_ranks(tools.requests.ask(ranks, order, _holders).values())
    answers = tools.requests.ask(ranks, order, _traced)
    untouched = [one for one in ranks if answers[one.rank] is None]
    with ThreadPoolExecutor(MOST_RANKS) as pool, _ended(tools):
        sampled = list(pool.map(lambda one: _sampled(tools, one, options.seconds), untouched))
    return of_ranks([*filter(None, answers.values()), *sampled])


@contextmanager
def _ended(tools: CaptureTools) -> Iterator[None]:
    """End all children where the block is interrupted: its threads would wait for them."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        tools.context.spawner.clear()
        raise


def _holders(rank: RankIdentity, result: HookResult) -> Found:
    failure = UNTOUCHED if result.failure == NO_HOOK else result.failure
    if result.answer is None:
        return RankHolders(rank=rank.rank, pid=rank.pid, failure=failure), b""
    try:
        found = parse_failure(result.data)
    except ValueError as error:
        why = f"its answer is not believed: {error}"
        return RankHolders(rank=rank.rank, pid=rank.pid, failure=why), b""
    file = f"memory-rank{rank.rank}.json"
    return RankHolders(rank=rank.rank, pid=rank.pid, file=file, found=found), result.data


def _traced(rank: RankIdentity, result: HookResult) -> Found | None:
    """The profile of a rank with the hook; None for one without."""
    if result.failure == NO_HOOK:
        return None
    if result.answer is None:
        return RankProfile(rank=rank.rank, pid=rank.pid, failure=result.failure), b""
    try:
        summary = summarize(parse_trace(result.data))
    except EvidenceError as error:
        return RankProfile(rank=rank.rank, pid=rank.pid, failure=error.message), b""
    answer = result.answer
    profile = RankProfile(
        rank=rank.rank,
        pid=rank.pid,
        file=f"profile-rank{rank.rank}.trace.json.gz",
        steps=_steps(answer),
        cost_seconds=answer.starting + answer.writing,
        trace=summary,
    )
    return profile, gzip.compress(result.data, 6)


def _steps(answer: HookAnswer) -> str:
    return f"{answer.first}" if answer.steps == 1 else f"{answer.first} to {answer.last}"


def _sampled(tools: CaptureTools, rank: RankIdentity, seconds: int) -> Found:
    with _alone(Path(tools.context.host.proc, str(rank.pid), "environ")) as alone:
        stacks = tools.pyspy.record(rank.pid, seconds, RATE) if alone else ()
    if not alone:
        return RankProfile(rank=rank.rank, pid=rank.pid, failure=SAMPLED_ALREADY), b""
    if not stacks:
        why = "py-spy could not sample it (no right to read it, or it has ended)"
        return RankProfile(rank=rank.rank, pid=rank.pid, failure=why), b""
    profile = RankProfile(
        rank=rank.rank,
        pid=rank.pid,
        file=f"profile-rank{rank.rank}.folded.txt",
        samples=sampled_profile(stacks, rank.pid),
    )
    return profile, folded_text(stacks).encode()


@contextmanager
def _alone(file: Path) -> Iterator[bool]:
    """Whether nobody else samples the process to whom this file of /proc belongs, which is locked meanwhile. Only who may read the process
    can open it, so nobody else can keep a profile away; where it cannot be opened at all, py-spy says why.
    """
    with ExitStack() as stack:
        try:
            fcntl.flock(stack.enter_context(file.open("rb")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError:
            pass
        yield True
