"""What is told first of stacks that others have dumped: ranks without a dump, and numbers that are a guess."""

from collections.abc import Iterable

import msgspec

from mldebug.capture.stacks.form import IN_ORDER
from mldebug.core.model import Confidence, Diagnosis, NodeCapture, ProcessCapture
from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.diagnosis.classify.case import Case

LOWER = {Confidence.HIGH: Confidence.MEDIUM, Confidence.MEDIUM: Confidence.LOW}


def with_missing_dumps(
    case: Case, captures: Iterable[NodeCapture], diagnosis: Diagnosis
) -> Diagnosis:
    """The diagnosis of recorded stacks: who has no dump stands first, and lowers the confidence, as a guess at numbers does."""
    if not case.recorded:
        return diagnosis
    guess = any(mark.kind == IN_ORDER for one in captures for mark in one.remarks)
    first = no_dump(case, guess)
    confidence = diagnosis.confidence
    if first or (guess and diagnosis.culprits):
        confidence = LOWER.get(confidence, confidence)
    if not first:
        return msgspec.structs.replace(diagnosis, confidence=confidence)
    summary = diagnosis.summary[:1].lower() + diagnosis.summary[1:]
    return msgspec.structs.replace(diagnosis, confidence=confidence, summary=f"{first}; {summary}")


def no_dump(case: Case, guess: bool) -> str:
    """`Rank 2 has no dump: look at it first`; "" where all have one. `guess`: the numbers were given in order."""
    unread = [r.rank for r in case.ranks if r.capture and not _has_stack(r.capture.process)]
    missing = sorted({*case.elsewhere, *unread})
    if not missing:
        return ""
    one = len(missing) == 1
    if guess:
        who = f"{len(missing):,} of the {case.job.world_size:,} ranks {'has' if one else 'have'} no dump"
        return f"{who}: look for {'it' if one else 'them'} first"
    who = f"rank{'' if one else 's'} {shorten_ranks(fold_ranks(missing), 60)} {'has' if one else 'have'} no dump"
    can = " that could be read" if len(unread) == len(missing) else ""
    return f"{who[:1].upper()}{who[1:]}{can}: look at {'it' if one else 'them'} first"


def _has_stack(process: ProcessCapture) -> bool:
    return bool(process.stacks or process.native)
