"""All ranks wait, but not in the same collective: the few that took another branch are named by majority.

Flight Recorders have sequence numbers, and decide where the ranks can be asked for them; else stacks vote.
"""

import re
from collections import Counter
from itertools import dropwhile

import msgspec

from mldebug.capture.frames import bare, comparable, is_own, principal
from mldebug.core.model import ClassifiedRank, Confidence, Finding, Frame, Verdict
from mldebug.core.plugins import NoOptions
from mldebug.diagnosis.classify.awaited.file_locks import HELD
from mldebug.diagnosis.classify.case import Case, ranks_text, sentence
from mldebug.diagnosis.classify.evidence import blame, show_source
from mldebug.diagnosis.classify.flight_recorder import FlightRecorders
from mldebug.diagnosis.classify.rank_states import BACKWARD_OF_MOST
from mldebug.diagnosis.detectors import Detector

Key = tuple[str, str]

TO_ROOT = re.compile(r"gather|reduce")  # gather_object begins with an all_gather of the sizes
FROM_ROOT = re.compile(r"broadcast\w*|scatter\w*")
ROOTED = re.compile(rf"{TO_ROOT.pattern}|{FROM_ROOT.pattern}")
"""Collectives with a root: who has sent, or passed on, leaves while others still wait for somebody who never came."""

ENQUEUES = re.compile(
    r"p?nccl(?:All(?:Reduce|Gather|ToAll)|ReduceScatter|Broadcast|Bcast|Reduce|Send|Recv|GroupEnd|Enqueue|Launch)\w*(?:\(.*)?"
)
NATIVE_WAIT = "native_wait"  # whose call no frame shows: those beside it are named, but at `low`
DECORATORS = re.compile(
    r"_?(?:wrap(?:per|ped)?(?:_\w+)?|inner|decorat\w+|log_wrapper|timed|__call__|__enter__)"
)
"""Names of what a decorator puts around a function: its line is the same for all that are so decorated."""

_MODEL_PARALLEL = re.compile(
    r"(?:.*/)?(?:megatron/core/(?:tensor_parallel|pipeline_parallel|transformer/moe)|deepspeed/(?:moe|sequence|runtime/pipe/p2p\.py)|torch/distributed/(?:tensor|pipelining)|"
    r"fairscale/nn/model_parallel|vllm/distributed|sglang/srt/distributed|nanotron/parallel)(?:/|$)"
)

_JOINED = (
    (re.compile(r"(?:.*/)?horovod/(?:torch|tensorflow)/mpi_ops\.py"), "join"),
    (re.compile(r"(?:.*/)?torch/distributed/algorithms/join\.py"), "__exit__"),
)
"""Calls of a rank whose data has ended: it takes part in what the others still call, and holds up nobody."""

PARTIAL_MAJORITY = 0.75
"""Share of the captured ranks that must agree where not all ranks of the job were captured."""


class CollectiveMismatch:
    """Blames the minority that stands in another (operation, place in the training code) than most ranks; a tie is reported as a split, without names.

    From stacks alone the confidence is at most `medium`. Nobody is named by stacks in a job with
    several process groups, whose ranks legitimately differ, nor for point-to-point calls of
    pipeline stages, nor for the ranks that are last in a collective with a root.
    """

    def judge(self, case: Case) -> Finding | None:
        """Return a finding that names the ranks which the Flight Recorders show out of step, or else, by their stacks, the
        minority that waits elsewhere than a strict majority. The finding names nobody where ranks may differ legitimately.
        Returns None where not all ranks wait, or no majority agrees.
        """
        recorders = FlightRecorders(case)
        return recorders.judge() or (None if recorders.alike else self._by_stacks(case))

    def _by_stacks(self, case: Case) -> Finding | None:
        voters = case.waiting
        if case.suspects or case.moved or case.starting or not all(map(_may_vote, voters)):
            return None
        votes = Counter(_key(rank) for rank in voters)
        if len(votes) < 2:
            return self._by_paths(case)
        if case.process_groups > 1:
            return _nobody(case, f"the job has {case.process_groups} process groups")
        if any(map(_in_parts, {_key(rank): rank for rank in voters}.values())):
            return _nobody(case, "the job has process groups for parts of its model")
        if any(map(_has_joined, voters)):
            return _nobody(case, "who has joined takes part in what the others call")
        (winner, count), *_ = votes.most_common()
        needed = 0.5 if case.complete else PARTIAL_MAJORITY - 1e-9
        if count <= needed * len(voters) or (case.unseen and count <= case.job.world_size / 2):
            return None  # those who did not answer might vote otherwise
        odd = tuple(rank for rank in voters if _key(rank) != winner)
        behind = _left_behind(odd, voters)
        if behind and (len(odd) == 1 or count < PARTIAL_MAJORITY * len(voters)):
            return _nobody(case, "who waits in it may be the victim of one that left it out")
        if all(rank.is_.name == "device_sync" for rank in voters):
            return None  # a program runs ahead of its GPU: the lines tell nothing
        return self._finding(case, odd, winner, count, doubtful=behind)

    def _by_paths(self, case: Case) -> Finding | None:
        """All wait in one call of one line, but came to it on different ways through the job's own code."""
        paths = {rank.rank: _way(rank) for rank in case.waiting}
        votes = Counter(paths.values())
        (winner, count), *others = votes.most_common()
        needed = 0.5 if case.complete else PARTIAL_MAJORITY - 1e-9
        if not others or not winner or case.process_groups > 1 or case.unseen:
            return None
        odd = tuple(rank for rank in case.waiting if paths[rank.rank] != winner)
        if count <= needed * len(case.waiting) or _left_behind(odd, case.waiting):
            return None
        way = paths[odd[0].rank]
        hidden = bool(way) and way[0] != winner[0]  # it is the line itself that a decorator hides
        sure = Confidence.MEDIUM if hidden and case.complete else Confidence.LOW
        finding = blame(
            case, Verdict.COLLECTIVE_MISMATCH, odd, (show_source(odd[0]),), confidence=sure
        )
        came = f"{ranks_text(r.rank for r in odd)} came to it through {_divergence(way, winner)}, the others through {_divergence(winner, way)}"
        summary = (
            f"{case.everybody()}; {came}: {len(odd)} of {len(case.waiting)} took another branch"
        )
        return msgspec.structs.replace(finding, summary=summary)

    def _finding(
        self,
        case: Case,
        odd: tuple[ClassifiedRank, ...],
        winner: Key,
        count: int,
        *,
        doubtful: bool,
    ) -> Finding:
        rest = tuple(rank for rank in case.waiting if _key(rank) == winner)
        finding = blame(
            case,
            Verdict.COLLECTIVE_MISMATCH,
            odd,
            (show_source(odd[0]), show_source(rest[0])),
            confidence=Confidence.MEDIUM
            if case.complete and not doubtful and _few(odd, count) and _comparable((*odd, *rest))
            else Confidence.LOW,
        )
        left = ", or one of the others left that call out" if doubtful else ""
        summary = f"{sentence(odd)} while {sentence(rest)}: {len(odd)} of {len(odd) + count} took another branch{left}"
        return msgspec.structs.replace(finding, summary=summary)


def _few(odd: tuple[ClassifiedRank, ...], count: int) -> bool:
    """Is it one rank, or at most a quarter? Of a job that falls apart into 3 and 5, another run of the same fault leaves others in the smaller part."""
    return len(odd) == 1 or count >= PARTIAL_MAJORITY * (len(odd) + count)


def _way(rank: ClassifiedRank) -> tuple[str, ...]:
    """The job's own frames, innermost first, without decorators where it begins: they stand in front of every call."""
    own = filter(is_own, _frames(rank))
    return comparable(dropwhile(lambda frame: DECORATORS.fullmatch(bare(frame)) is not None, own))


def _frames(rank: ClassifiedRank) -> tuple[Frame, ...]:
    process = rank.capture.process if rank.capture else None
    stack = principal(process.stacks or process.native, process.pid) if process else None
    return stack.frames if stack else ()


def _divergence(way: tuple[str, ...], other: tuple[str, ...]) -> str:
    """The innermost place of a way that the other does not have."""
    return next((place for place in way if place not in other), "another way")


def _may_vote(rank: ClassifiedRank) -> bool:
    """Only a wait whose operation is known; a handle's `wait()` may be a pipeline stage's receive."""
    if rank.is_.name in ("point_to_point", HELD):
        return False
    return bool(rank.is_.operation) or rank.is_.name == NATIVE_WAIT


def _in_parts(rank: ClassifiedRank) -> bool:
    """Does it wait below code that divides a layer, or the layers, among ranks? Such a job has groups of fewer ranks, that stand in different calls."""
    return any(_MODEL_PARALLEL.match(frame.file) for frame in _frames(rank))


def _has_joined(rank: ClassifiedRank) -> bool:
    """Is its data at an end, while others go on? Horovod's and PyTorch's ways for uneven inputs."""
    return any(file.fullmatch(frame.file) and bare(frame) == name for frame in _frames(rank) for file, name in _JOINED)  # fmt: skip


def _comparable(ranks: tuple[ClassifiedRank, ...]) -> bool:
    """None waits for its GPU, for such a rank may have launched what the others wait in and stand at any later line; none is only taken for waiting."""
    return all(
        rank.is_.name not in ("device_sync", NATIVE_WAIT)
        and BACKWARD_OF_MOST not in rank.is_.why
        and not _enqueues(rank)
        for rank in ranks
    )


def _enqueues(rank: ClassifiedRank) -> bool:
    """Is it inside NCCL's own call, which only gives its GPU work? It waits there for room behind a collective before, at whatever line that is."""
    process = rank.capture.process if rank.capture else None
    native = principal(process.native, process.pid) if process else None
    return native is not None and any(ENQUEUES.fullmatch(frame.function) for frame in native.frames if frame.native)  # fmt: skip


def _left_behind(odd: tuple[ClassifiedRank, ...], voters: tuple[ClassifiedRank, ...]) -> bool:
    """May some of these wait for another of them, which alone left the common path?

    In a collective with a root others may have passed before: a root waits alone when one of its senders never came, and who
    gets a broadcast by way of a rank that left it out waits beside that one. A root that has sent stands where that rank stands, too.
    """
    alone = len(odd) == 1
    if alone:
        return any(TO_ROOT.fullmatch(one) or FROM_ROOT.fullmatch(one) for one in _calls_of(odd[0]))
    return any(ROOTED.fullmatch(one) for rank in voters for one in _calls_of(rank))


def _calls_of(rank: ClassifiedRank) -> tuple[str, str]:
    """The operation as the job called it, and the one inside."""
    return rank.is_.operation, _innermost(rank)


def _innermost(rank: ClassifiedRank) -> str:
    """The collective that its call of PyTorch has come to: `gather` inside `gather_object`; "" where no frame says."""
    calls = (bare(one) for one in _frames(rank) if one.file.endswith("torch/distributed/distributed_c10d.py"))  # fmt: skip
    return next(calls, "")


def _nobody(case: Case, why: str) -> Finding:
    """Ranks may stand in different places legitimately: say so, and name nobody."""
    finding = blame(case, Verdict.COLLECTIVE_MISMATCH, (), (), confidence=Confidence.LOW)
    summary = (
        f"all ranks wait, in different collectives: {case.victims()}; {why}, "
        "so stacks alone do not tell who left the common path"
    )
    return msgspec.structs.replace(
        finding, summary=summary, next_steps=(show_source(case.waiting[0]),)
    )


def _key(rank: ClassifiedRank) -> Key:
    return rank.is_.operation or rank.is_.name, rank.is_.site


def create(options: NoOptions) -> Detector:
    """Build the detector `collective_mismatch`: all ranks wait, but not in the same collective: the few that took another branch are named by majority."""
    return CollectiveMismatch()
