"""Profiles of chosen ranks: a trace of `torch.profiler` by the hook at a rank's next steps, or stacks sampled by py-spy where there is no hook."""

import fcntl
import gzip
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec

from mldebug.capture.folded_stacks import folded_text
from mldebug.capture.profile.hook_answer import HookAnswer
from mldebug.capture.profile.sampled import SampledProfile, sampled_profile
from mldebug.capture.profile.summary import ProfileSummary, summarize
from mldebug.capture.profile.trace import parse_trace
from mldebug.core.errors import EvidenceError
from mldebug.core.model import Noun, RankIdentity
from mldebug_agents.capture.tools import CaptureTools
from mldebug_agents.jobs.hook.requests import NO_HOOK, HookResult, StepOrder

RATE = 50  # samples a second of py-spy
SECONDS = 10  # of its recording
MAX_RANKS = 16  # at once
FIRST_STEP = 60.0  # seconds in which a step has to end
SAMPLED_ALREADY = "another profile of it is going on: one at a time"


class RankProfile(Noun, frozen=True, kw_only=True):
    """The profile of one rank: `trace` by torch.profiler or `samples` by py-spy, or in `failure` why there is none.

    `file`: the name of the evidence file; `steps` as the rank counts them; `cost_seconds`: how long the rank stood still for it, beyond
    what recording itself slows down.
    """

    rank: int
    pid: int
    file: str = ""
    steps: str = ""
    cost_seconds: float = 0.0
    trace: ProfileSummary | None = None
    samples: SampledProfile | None = None
    failure: str = ""


class TakenProfiles(msgspec.Struct, frozen=True):
    """Profiles by rank, and the evidence files of those that were taken, by name."""

    profiles: tuple[RankProfile, ...]
    files: dict[str, bytes]


def take_profiles(
    tools: CaptureTools,
    ranks: Sequence[RankIdentity],
    steps: int,
    seconds: int = SECONDS,
    wait: float = FIRST_STEP,
) -> TakenProfiles:
    """Profile these ranks, all at once: those with the hook for so many `steps`, the others for so many `seconds`.
    `wait`: seconds in which a step has to end.

    Raises AccessError where this user may not ask them.
    """
    order = StepOrder(what="profile", steps=steps, seconds=wait)
    results = tools.requests.ask(ranks, order)
    untouched = [one for one in ranks if results[one.rank].failure == NO_HOOK]
    with ThreadPoolExecutor(MAX_RANKS) as pool:
        sampled = list(pool.map(lambda one: _sampled(tools, one, seconds), untouched))
    traced = [_traced(one, results[one.rank]) for one in ranks if one not in untouched]
    found = sorted([*sampled, *traced], key=lambda one: one[0].rank)
    files = {one.file: data for one, data in found if one.file}
    return TakenProfiles(tuple(one for one, _ in found), files)


def _traced(rank: RankIdentity, result: HookResult) -> tuple[RankProfile, bytes]:
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


def _sampled(tools: CaptureTools, rank: RankIdentity, seconds: int) -> tuple[RankProfile, bytes]:
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
