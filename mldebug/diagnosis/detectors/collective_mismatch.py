"""All ranks wait, but not in the same collective: the few that took another branch are named by majority.

Flight Recorders have sequence numbers, and decide where the ranks can be asked for them; else stacks vote.
"""

import re
from collections import Counter

import msgspec

from mldebug.core.model import ClassifiedRank, Confidence, Finding, Verdict
from mldebug.core.plugins import NoOptions
from mldebug.diagnosis.classify.evidence import Case, blame, sentence, show_source
from mldebug.diagnosis.classify.flight_recorder import FlightRecorders
from mldebug.diagnosis.detectors import Detector

Key = tuple[str, str]

TO_ROOT = re.compile(r"gather|reduce")  # gather_object begins with an all_gather of the sizes
FROM_ROOT = re.compile(r"broadcast\w*|scatter\w*")
"""Collectives with a root: who has sent, or passed on, leaves while others still wait for somebody who never came."""

PARTIAL_MAJORITY = 0.75
"""Share of the captured ranks that must agree where not all ranks of the job were captured."""


class CollectiveMismatch:
    """Votes on (operation, place in the training code); a tie is a split and never a name.

    Stacks alone are `medium` at most, and name nobody in a job with several process groups, whose ranks differ
    legitimately; so do point-to-point calls of pipeline stages, and the last in a collective with a root.
    """

    def judge(self, case: Case) -> Finding | None:
        """A finding where everybody waits and a strict majority stands in one place, or in one collective."""
        recorders = FlightRecorders(case)
        return recorders.judge() or (None if recorders.alike else self._by_stacks(case))

    def _by_stacks(self, case: Case) -> Finding | None:
        voters = case.waiting
        if case.suspects or case.moved or case.starting or not all(map(_may_vote, voters)):
            return None
        votes = Counter(_key(rank) for rank in voters)
        if len(votes) < 2:
            return None
        if case.process_groups > 1:
            return _nobody(case, f"the job has {case.process_groups} process groups")
        (winner, count), *_ = votes.most_common()
        needed = 0.5 if case.complete else PARTIAL_MAJORITY - 1e-9
        if count <= needed * len(voters) or (case.unseen and count <= case.job.world_size / 2):
            return None  # those who did not answer might vote otherwise
        odd = tuple(rank for rank in voters if _key(rank) != winner)
        if _left_behind(odd):
            return _nobody(case, "who waits in it may be the victim of one that left it out")
        return self._finding(case, odd, winner, count)

    def _finding(
        self, case: Case, odd: tuple[ClassifiedRank, ...], winner: Key, count: int
    ) -> Finding:
        rest = tuple(rank for rank in case.waiting if _key(rank) == winner)
        finding = blame(
            case,
            Verdict.COLLECTIVE_MISMATCH,
            odd,
            (show_source(odd[0]), show_source(rest[0])),
            confidence=Confidence.MEDIUM if case.complete else Confidence.LOW,
        )
        summary = f"{sentence(odd)} while {sentence(rest)}: {len(odd)} of {len(odd) + count} took another branch"
        return msgspec.structs.replace(finding, summary=summary)


def _may_vote(rank: ClassifiedRank) -> bool:
    """Only a wait whose operation is known; a handle's `wait()` may be a pipeline stage's receive."""
    if rank.is_.name == "point_to_point":
        return False
    return bool(rank.is_.operation) or rank.is_.name == "native_wait"


def _left_behind(odd: tuple[ClassifiedRank, ...]) -> bool:
    """Do these wait where others may have passed before them? A root waits alone when one of its senders never came."""
    alone = len(odd) == 1
    return any(
        TO_ROOT.fullmatch(rank.is_.operation) or (alone and FROM_ROOT.fullmatch(rank.is_.operation))
        for rank in odd
    )


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
    """Build the detector."""
    return CollectiveMismatch()
