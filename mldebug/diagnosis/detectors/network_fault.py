"""A network port or adapter failed as a job on several nodes stopped, and every rank waits in a collective."""

from mldebug.core.model import Confidence, Culprit, Fault, Finding, Verdict
from mldebug.core.plugins import NoOptions
from mldebug.diagnosis.classify.case import Case
from mldebug.diagnosis.classify.evidence import evidence_of
from mldebug.diagnosis.classify.flight_recorder import FlightRecorders
from mldebug.diagnosis.classify.gpus.gpu_faults import NETWORK_KINDS, FittingFault, fitting
from mldebug.diagnosis.detectors import Detector

MAX_NAMED = 8


class NetworkFault:
    """Names ports and adapters, never ranks.

    The confidence is `medium` where every rank of the job was captured and more than one reading shows a fault that began when
    the job stopped; otherwise `low`. There is no finding where a rank does not wait for others, where Flight Recorders show
    which rank is out of step, or where the job runs on one node and may not need the network.
    """

    def judge(self, case: Case) -> Finding | None:
        """A finding where all ranks wait in collectives over the network, and a port or adapter of their nodes failed then."""
        if not case.faults or case.moved or case.starting or case.suspects or not case.waiting:
            return None
        if len(case.job.nodes) < 2 and not case.elsewhere:
            return None
        stopped_at = case.taken_at - case.quiet_seconds if case.quiet_seconds > 0 else None
        fits = fitting(case.faults, stopped_at, case.taken_at, kinds=NETWORK_KINDS, gap=case.usual_gap)  # fmt: skip
        if not fits or _out_of_step(case):
            return None
        return _finding(case, fits)


def _out_of_step(case: Case) -> bool:
    """Whether the Flight Recorders name ranks that have not called what the others wait in."""
    found = FlightRecorders(case).judge()
    return found is not None and bool(found.culprits)


def _finding(case: Case, fits: tuple[FittingFault, ...]) -> Finding:
    faults = list(dict.fromkeys(fit.fault for fit in fits))
    sure = case.complete and any(prompt and one.confirmed and one.trusted for one, prompt in fits)
    return Finding(
        verdict=Verdict.NETWORK_FAULT,
        culprits=tuple(map(_culprit, faults[:MAX_NAMED])),
        confidence=Confidence.MEDIUM if sure else Confidence.LOW,
        summary=f"{_words(faults)}; {case.victims()}",
        evidence=(*(_when(case, one) for one in faults[:MAX_NAMED]), *evidence_of(case, ())),
        next_steps=_steps(faults[0]),
    )


def _words(faults: list[Fault]) -> str:
    """`port mlx5_3/1 was up and is DOWN on node a2`; of many faults only the first three, and how many more there are."""
    some = "; ".join(f"{one.words} on node {one.node}" for one in faults[:3])
    return f"{some}; and {len(faults) - 3} more" if len(faults) > 3 else some


def _culprit(fault: Fault) -> Culprit:
    return Culprit(kind="link", rank=None, node=fault.node, pid=None, reason=fault.words)


def _when(case: Case, fault: Fault) -> str:
    if case.quiet_seconds <= 0:
        return f"{fault.words} on node {fault.node}, {case.taken_at - fault.at:.0f} s before the capture"
    after = fault.at - (case.taken_at - case.quiet_seconds)
    side = "after" if after > 0 else "before"
    return f"{fault.words} on node {fault.node}, {abs(after):.0f} s {side} the job stopped"


def _steps(fault: Fault) -> tuple[str, ...]:
    """What to type on the node of the fault."""
    return (
        f"ssh {fault.node} 'ibstat; ibdev2netdev; rdma link show'  # is the port up again?",
        f"ssh {fault.node} 'dmesg -T | grep -Ei \"mlx5|bnxt|efa|infiniband|link\" | tail -40'",
    )


def create(options: NoOptions) -> Detector:
    """Build the detector `network_fault`: a network port or adapter failed as a job on several nodes stopped, and every rank waits in a collective."""
    return NetworkFault()
