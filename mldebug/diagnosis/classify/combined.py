"""One sentence from what Flight Recorders, stacks and NCCL RAS (NCCL's status service) show of the same ranks, and whether they agree.

A finding names who does not wait. Where the recorders show that just these ranks did not call the
collective in which the others wait, the sentence says so. A source that contradicts is cited and
lowers the confidence; agreement does not raise it, as counts are launches by the host, and a
recorder knows only its own process.
"""

from collections.abc import Iterator, Sequence

import msgspec

from mldebug.capture.flight_recorder.waits_for import Claim
from mldebug.capture.frames import site
from mldebug.core.model import ClassifiedRank, Collective, Confidence, Finding, Verdict
from mldebug.diagnosis.classify.case import Case, ranks_text, sentence
from mldebug.diagnosis.classify.nccl_ras import RasStatement

LOWER = {Confidence.HIGH: Confidence.MEDIUM, Confidence.MEDIUM: Confidence.LOW}
OF_RANKS = ("rank", "worker")
MAX_DOUBTS = 2


def join(case: Case, finding: Finding, statements: Sequence[RasStatement]) -> Finding:
    """The finding with its sentence completed by the collective that the named ranks did not call, or, where a source contradicts, with that doubt and less confidence."""
    named = frozenset(one.rank for one in finding.culprits if one.rank is not None)
    if case.moved or not named or any(one.kind not in OF_RANKS for one in finding.culprits):
        return finding
    found = [claim for claim in case.analysis.claims if not claim.transfer]
    wait = _awaited(case, found, named)
    if wait is not None and finding.verdict is not Verdict.COLLECTIVE_MISMATCH:
        finding = msgspec.structs.replace(finding, summary=_sentence(case, wait, named))
    doubts = (*_recorded(found, named), *_counted(case, wait, statements, named))[:MAX_DOUBTS]
    return _doubted(finding, doubts) if doubts else finding


def _doubted(finding: Finding, doubts: Sequence[str]) -> Finding:
    return msgspec.structs.replace(
        finding,
        summary=f"{finding.summary}; but {' and '.join(doubts)}",
        confidence=LOWER.get(finding.confidence, finding.confidence),
    )


# --- the sentence --------------------------------------------------------------------------------


def _awaited(case: Case, found: Sequence[Claim], named: frozenset[int]) -> Claim | None:
    """The collective that most wait in and that only the named ranks have not called, or have no record of; these all do the same."""
    culprits = [rank for rank in case.ranks if rank.rank in named]
    alike = len({(rank.is_.doing, rank.is_.name) for rank in culprits}) == 1
    fits = (wait for wait in found if (frozenset(wait.late) or _unrecorded(wait)) == named)
    return next(fits, None) if alike else None


def _unrecorded(wait: Claim) -> frozenset[int]:
    """Ranks of the group of whose calls there is no record."""
    return frozenset((*wait.absent, *wait.forgot))


def _sentence(case: Case, wait: Claim, named: frozenset[int]) -> str:
    culprits = [rank for rank in case.ranks if rank.rank in named]
    others = [rank for rank in case.waiting if rank.rank not in (*wait.waiting, *named)]
    doing = sentence(culprits).removeprefix(f"{ranks_text(named)} ")
    left = _left(wait, min(named), many=len(named) > 1)
    culprit = " ".join(filter(None, (ranks_text(named), left, doing)))
    return "; ".join(filter(None, (culprit, _victims(case, wait), sentence(others))))


def _left(wait: Claim, rank: int, *, many: bool) -> str:
    """`left all_reduce 5 of group dp at step (train.py:210) and since then`; "" where it is unknown."""
    group = wait.view.by_rank.get(rank)
    if group is None:
        return ""
    last = max(group.calls, key=lambda call: call.sequence, default=None)
    if last is None and group.enqueued == 0:
        return f"{'have' if many else 'has'} called nothing of {wait.view.title} yet and"
    call = f"{last.op} {last.sequence}" if last else f"collective {group.enqueued}"
    return f"left {call} of {wait.view.title}{_at(last) if last else ''} and since then"


def _at(call: Collective | Claim) -> str:
    frame = site(call.frames)
    return f" at {frame.place}" if frame else ""


def _victims(case: Case, wait: Claim) -> str:
    place = _at(wait) or _common_site([r for r in case.ranks if r.rank in wait.waiting])
    verb = "waits" if len(wait.waiting) == 1 else "wait"
    called = f"{wait.what} of {wait.view.title}"
    return f"{ranks_text(wait.waiting)} {verb} in {called}{place}"


def _common_site(ranks: Sequence[ClassifiedRank]) -> str:
    places = {rank.is_.site for rank in ranks}
    return f" at {places.pop()}" if len(places) == 1 and "" not in places else ""


# --- what speaks against it ----------------------------------------------------------------------


def _recorded(found: Sequence[Claim], named: frozenset[int]) -> Iterator[str]:
    """The named ranks have called all that anybody waits in, and others have not."""
    if any(named & {*wait.late} for wait in found):
        return
    for wait in found:
        if wait.late and named <= wait.view.by_rank.keys():
            has = "has" if len(wait.late) == 1 else "have"
            called = f"{wait.what} of {wait.view.title}"
            have = "has" if len(named) == 1 else "have"
            yield (
                f"the Flight Recorder says that {ranks_text(named)} {have} called {called}"
                f" and {ranks_text(wait.late)} {has} not"
            )
            return


def _counted(
    case: Case, wait: Claim | None, statements: Sequence[RasStatement], named: frozenset[int]
) -> Iterator[str]:
    """NCCL RAS names others alone, or nobody in a group of all ranks in which the recorders miss some."""
    named_by = {statement.answer for statement in statements if named & statement.ranks}
    whole = wait is not None and len(wait.view.members) == case.job.world_size
    on_nccl = wait is not None and wait.view.backend == "nccl"
    for statement in statements:
        if statement.answer not in named_by and (statement.ranks or (whole and on_nccl)):
            yield f"NCCL RAS says that {statement.words}"
