"""A GPU has failed (a fatal Xid, lost, uncorrectable memory) when the job stopped, and its rank keeps the others waiting."""

from mldebug.core.model import (
    ClassifiedRank,
    Confidence,
    Culprit,
    Fault,
    Finding,
    Role,
    Verdict,
)
from mldebug.core.plugins import NoOptions
from mldebug.diagnosis.classify.case import Case
from mldebug.diagnosis.classify.evidence import evidence_of
from mldebug.diagnosis.classify.gpus.gpu_faults import ONE_MOMENT, FittingFault, fitting
from mldebug.diagnosis.detectors import Detector
from mldebug.hardware.kernel_log.attribution import rank_words

PLAIN_STOPS = ("stopped", "traced", "exited")
"""What a rank does for a reason of its own that needs no broken GPU: such a rank is named instead."""


class GpuFault:
    """Blames the GPU with a fatal fault at the time of the stop, if its rank is a suspect, or if every rank waits.

    `high` only where it is one GPU, the driver or the kernel's line ties it to the rank, it came as
    the job stopped, and more than one read shows it.
    """

    def judge(self, case: Case) -> Finding | None:
        """A finding where a fatal fault belongs to a rank that may be to blame; None otherwise."""
        if not case.faults or case.moved or not (case.waiting or case.suspects):
            return None
        stopped_at = case.taken_at - case.quiet_seconds if case.quiet_seconds > 0 else None
        fits = fitting(case.faults, stopped_at, case.taken_at, gap=case.usual_gap)
        fits = tuple(fit for fit in fits if _may_be_it(case, fit.fault))
        if not fits:
            return None
        first = fits[0].fault.at
        together = tuple(fit for fit in fits if fit.fault.at - first <= ONE_MOMENT)
        return _finding(case, together, fits)


def _may_be_it(case: Case, fault: Fault) -> bool:
    """Its rank does not wait, or all wait; a fault of the node only where nobody else is to blame."""
    firm = [rank for rank in case.suspects if rank.is_.role is not Role.UNCLEAR]
    if fault.rank is None:
        return not firm
    mine = next((rank for rank in case.ranks if rank.rank == fault.rank), None)
    if mine is None:
        return not case.complete
    if mine.is_.role is not Role.WAITING:
        return mine.is_.name not in PLAIN_STOPS or mine.is_.role is Role.EXITED
    return not firm


def _finding(
    case: Case, together: tuple[FittingFault, ...], fits: tuple[FittingFault, ...]
) -> Finding:
    ranks = {rank.rank: rank for rank in case.ranks}
    named = {(fit.fault.node, fit.fault.uuid or fit.fault.bus_id, fit.fault.rank): fit for fit in together[::-1]}  # fmt: skip
    culprits = tuple(_culprit(fit.fault, ranks) for fit in list(named.values())[::-1])
    victims = case.victims()
    words = "; ".join(dict.fromkeys(_sentence(fit.fault) for fit in together[:4]))
    affected = tuple(
        ranks[one.rank] for one in culprits if one.rank is not None and one.rank in ranks
    )
    facts = tuple(f"{_sentence(fit.fault)}{_when(case, fit.fault)}" for fit in fits[:8])
    return Finding(
        verdict=Verdict.GPU_FAULT,
        culprits=culprits,
        confidence=_confidence(case, together, culprits),
        summary=f"{words}; {victims}" if victims else words,
        evidence=(*facts, *evidence_of(case, affected)),
        next_steps=_steps(together[0].fault),
    )


def _confidence(
    case: Case, together: tuple[FittingFault, ...], culprits: tuple[Culprit, ...]
) -> Confidence:
    fault, prompt = together[0]
    joined = fault.rank is not None and fault.by in ("process", "gpu")
    if not joined:
        return Confidence.LOW if fault.rank is None else Confidence.MEDIUM
    mine = next((rank for rank in case.ranks if rank.rank == fault.rank), None)
    other_reason = mine is not None and mine.is_.role in (Role.INERT, Role.BUSY)
    sure = (
        prompt and fault.trusted and fault.confirmed and len(culprits) == 1 and bool(case.waiting)
    )
    sure = sure and not other_reason
    return Confidence.HIGH if sure else Confidence.MEDIUM


def _culprit(fault: Fault, ranks: dict[int, ClassifiedRank]) -> Culprit:
    rank = ranks.get(fault.rank) if fault.rank is not None else None
    known = bool(fault.uuid or fault.bus_id)
    return Culprit(
        kind="gpu" if known else "node",
        rank=fault.rank,
        node=fault.node or (rank.node if rank else ""),
        pid=rank.pid if rank else None,
        reason=fault.words,
    )


def _sentence(fault: Fault) -> str:
    return (
        f"{fault.words} ({rank_words(fault.rank, fault.by)})"
        if fault.rank is not None
        else fault.words
    )


def _when(case: Case, fault: Fault) -> str:
    if case.quiet_seconds <= 0:
        return f", {case.taken_at - fault.at:.0f} s before the capture"
    after = fault.at - (case.taken_at - case.quiet_seconds)
    return (
        f", {abs(after):.0f} s {'after the job stopped' if after > 0 else 'before the job stopped'}"
    )


def _steps(fault: Fault) -> tuple[str, ...]:
    which = fault.bus_id or fault.uuid
    query = f"nvidia-smi -q -i {which}" if which else "nvidia-smi -q"
    steps = (f"{query}  # does it still answer?", "dmesg -T | grep -E 'NVRM|Xid' | tail -40")
    return (f"{fault.advice}  # {fault.code}", *steps) if fault.advice else steps


def create(options: NoOptions) -> Detector:
    """Build the detector `gpu_fault`: a GPU has failed (a fatal Xid, lost, uncorrectable memory) when the job stopped, and its rank keeps the others waiting."""
    return GpuFault()
