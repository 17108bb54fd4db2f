"""All ranks wait, but not in the same collective: the few that took another branch are named by majority."""

from collections import Counter

import msgspec

from mldebug.judging.case import Case, blame, sentence, show_source
from mldebug.model import ClassifiedRank, Confidence, Finding, Verdict

Key = tuple[str, str]


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`partial_majority`: share of the ranks seen that must agree where not all ranks of the job were seen."""

    partial_majority: float = 0.75


class CollectiveMismatch:
    """Votes on (operation, place in the training code); a tie is a split and never a name.

    Stacks alone cannot tell process groups apart, so this is `medium` at most, and point-to-point calls of
    pipeline stages, which differ legitimately, stop the vote.
    """

    def __init__(self, options: Options) -> None:
        self.options = options

    def judge(self, case: Case) -> Finding | None:
        """Speak where everybody waits and a strict majority stands in one place."""
        voters = case.waiting
        if (
            case.suspects
            or case.moved
            or case.starting
            or any(r.is_.name == "point_to_point" for r in voters)
        ):
            return None
        votes = Counter(_key(rank) for rank in voters)
        if len(votes) < 2:
            return None
        (winner, count), *_ = votes.most_common()
        needed = 0.5 if case.complete else self.options.partial_majority - 1e-9
        if count <= needed * len(voters):
            return None
        odd = tuple(rank for rank in voters if _key(rank) != winner)
        return self._finding(case, odd, winner, count)

    def _finding(
        self, case: Case, odd: tuple[ClassifiedRank, ...], winner: Key, count: int
    ) -> Finding:
        rest = tuple(rank for rank in case.waiting if _key(rank) == winner)
        gpu = any(rank.is_.name in ("device_sync", "native_code") for rank in odd)
        finding = blame(
            case,
            Verdict.COLLECTIVE_MISMATCH,
            odd,
            (show_source(odd[0]), show_source(rest[0])),
            confidence=Confidence.LOW if gpu or not case.complete else Confidence.MEDIUM,
        )
        summary = f"{sentence(odd)} while {sentence(rest)}: {len(odd)} of {len(odd) + count} took another branch"
        return msgspec.structs.replace(finding, summary=summary)


def _key(rank: ClassifiedRank) -> Key:
    return rank.is_.operation or rank.is_.name, rank.is_.site


def create(options: Options) -> CollectiveMismatch:
    """Build the detector."""
    return CollectiveMismatch(options)
