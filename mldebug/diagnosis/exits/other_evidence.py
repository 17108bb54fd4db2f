"""Compares the exits of an attempt with other evidence: faults of its GPUs, and the Flight Recorder dumps of its ranks.

Pure.

A broken GPU also ends ranks that only lost it as a peer, so a fault may name a rank where the exits
name nobody. What a GPU reports after its rank has ended is not the cause: it becomes a remark.
PyTorch dumps a Flight Recorder when a collective has taken too long, and then ends the process;
such a dump is evidence and names nobody.
"""

import math
from collections.abc import Sequence

import msgspec

from mldebug.capture.flight_recorder.analysis import Analysis
from mldebug.capture.flight_recorder.waits_for import Claim
from mldebug.core.model import Confidence, Culprit, Fault, Finding, Verdict
from mldebug.core.ranksets import fold_ranks, shorten_ranks
from mldebug.diagnosis.classify.gpus.gpu_faults import ONE_MOMENT, FittingFault, fitting
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.diagnosis.exits.outcome import ExitOutcome
from mldebug.hardware.kernel_log.attribution import SLACK

MAX_REMARKS = 4


def with_gpu_fault(outcome: ExitOutcome, attempt: AttemptExit) -> ExitOutcome:
    """The outcome with the verdict `gpu_fault` where a fatal fault fits a rank and the time of its end.

    A fault that came later is added as a remark.
    """
    finding = outcome.finding
    times = [one.at for one in attempt.exits if one.at]
    if finding is None or not attempt.faults or not times:
        return outcome
    found = fitting(attempt.faults, min(times), max(times))
    fits = [fit for fit in found if _late_by(fit.fault, attempt) <= SLACK]
    suspected = finding.verdict is Verdict.UNKNOWN  # or nobody at all
    changed = _unnamed(finding, fits) if suspected else _named(finding, fits)
    if changed is None:
        late = [fit.fault for fit in found if _late_by(fit.fault, attempt) > SLACK]
        return _remarked(outcome, finding, late, attempt)
    return msgspec.structs.replace(
        outcome, finding=changed, sentence=changed.summary, signs=(*outcome.signs, "GPU fault")
    )


def _late_by(fault: Fault, attempt: AttemptExit) -> float:
    """Seconds from the end of its rank to the fault; negative where it came before, or where that rank was not seen to end."""
    ends = [one.at for one in attempt.exits if one.rank == fault.rank and one.at]
    return fault.at - max(ends) if ends else -math.inf


def _remarked(
    outcome: ExitOutcome, finding: Finding, late: Sequence[Fault], attempt: AttemptExit
) -> ExitOutcome:
    if not late:
        return outcome
    words = tuple(
        f"{one.words}, {_late_by(one, attempt):.0f} s after rank {one.rank} had ended"
        for one in late[:MAX_REMARKS]
    )
    changed = msgspec.structs.replace(finding, evidence=(*finding.evidence, *words))
    return msgspec.structs.replace(outcome, finding=changed)


def _named(finding: Finding, fits: Sequence[FittingFault]) -> Finding | None:
    """The exits name one rank, and the GPU that failed is its own."""
    if len(finding.culprits) != 1:
        return None
    culprit = finding.culprits[0]
    mine = next((fit for fit in fits if fit.fault.rank == culprit.rank), None)
    if mine is None or culprit.rank is None:
        return None
    sure = mine.fault.by in ("process", "gpu") and mine.fault.trusted and mine.fault.confirmed
    confidence = finding.confidence if sure else Confidence.MEDIUM
    return _gpu_fault_finding(finding, mine.fault, culprit, confidence)


def _unnamed(finding: Finding, fits: Sequence[FittingFault]) -> Finding | None:
    """The exits name no rank: the GPU that failed first is named at `medium`, where its rank is known."""
    together = [fit.fault for fit in fits if fit.fault.at - fits[0].fault.at <= ONE_MOMENT]
    if len({(fault.node, fault.rank) for fault in together}) != 1 or together[0].rank is None:
        return None
    fault = together[0]
    culprit = Culprit(kind="rank", rank=fault.rank, node=fault.node, pid=None, reason=fault.words)
    return _gpu_fault_finding(finding, fault, culprit, Confidence.MEDIUM)


def _gpu_fault_finding(
    finding: Finding, fault: Fault, culprit: Culprit, confidence: Confidence
) -> Finding:
    advice = (f"{fault.advice}  # {fault.code}",) if fault.advice else ()
    return msgspec.structs.replace(
        finding,
        verdict=Verdict.GPU_FAULT,
        culprits=(
            msgspec.structs.replace(
                culprit,
                kind="gpu",
                reason=fault.words
                if culprit.reason == fault.words
                else f"{fault.words}; {culprit.reason}",
            ),
        ),
        confidence=confidence,
        summary=f"{fault.words}; {finding.summary}",
        evidence=(fault.words, *finding.evidence),
        next_steps=(*advice, "dmesg -T | grep -E 'NVRM|Xid' | tail -40", *finding.next_steps),
    )


MAX_LINES = 4


RECENT = 120.0  # seconds


SOURCE = "Flight Recorder, dumped before the end"


def with_flights(outcome: ExitOutcome, attempt: AttemptExit) -> ExitOutcome:
    """Add to an outcome, as evidence, which ranks waited for which, by their Flight Recorder dumps.

    Dumps of an earlier hang are ignored.
    """
    found = Analysis(attempt.flights).claims[:MAX_LINES] if _dumped_at_exit(attempt) else ()
    if outcome.finding is None or not found:
        return outcome
    words = tuple(f"{SOURCE}: {_claim_words(wait)}" for wait in found)
    changed = msgspec.structs.replace(outcome.finding, evidence=(*outcome.finding.evidence, *words))
    return msgspec.structs.replace(outcome, finding=changed)


def _dumped_at_exit(attempt: AttemptExit) -> bool:
    """Whether a call of these dumps had timed out at most two minutes before the first rank ended.

    PyTorch ends a process when it has dumped. A dump of before, which the job survived, or of a neighbour with the same path is
    no evidence of this exit. Where the times of the exits are unknown, the limit alone counts.
    """
    ended = min((one.at for one in attempt.exits if one.at > 0), default=0.0)
    limits = [
        call.created_at + call.timeout
        for record in attempt.flights.values()
        for group in record.groups
        for call in group.calls
        if not call.done and call.timeout > 0 and call.created_at > 0
    ]
    return any(not ended or 0 <= ended - limit <= RECENT for limit in limits)


def _claim_words(claim: Claim) -> str:
    """`ranks 0,2 waited in all_reduce 6 of group 0, which rank 1 had not called`."""
    head = f"{_ranks(claim.waiting)} waited in {claim.what} of {claim.view.title}"
    met = "met" if claim.transfer else "called"
    return f"{head}, which {_ranks(claim.late)} had not {met}" if claim.late else head


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {shorten_ranks(fold_ranks(ranks))}"
