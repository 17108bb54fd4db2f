"""An exit in which ranks blame their peers, joined with a network port or adapter of this node that had failed before. Pure."""

import msgspec

from mldebug.core.model import Confidence, Culprit, Finding, Verdict
from mldebug.diagnosis.classify.gpus.gpu_faults import NETWORK_KINDS, fitting
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.diagnosis.exits.outcome import ExitOutcome
from mldebug.diagnosis.exits.rank_exit import ExitKind, explain_exits

MAX_NAMED = 8


def with_network_fault(outcome: ExitOutcome, attempt: AttemptExit) -> ExitOutcome:
    """Change the verdict to `network_fault` where nobody is named, the failed ranks blame peers, and a port or adapter failed shortly before.

    At most `low`, as other nodes may have had the same or another fault. Outcomes of jobs on one node are returned unchanged, and
    those in which a rank failed by an error of its own.
    """
    finding = outcome.finding
    times = [one.at for one in attempt.exits if one.at]
    if finding is None or finding.verdict is not Verdict.UNKNOWN or not times:
        return outcome
    if len(attempt.job.nodes) < 2 and len(attempt.identities) >= attempt.job.world_size:
        return outcome
    kinds = {one.kind for one in explain_exits(attempt)}
    if ExitKind.PEER not in kinds or kinds & {ExitKind.FAILED, ExitKind.KILLED}:
        return outcome
    fits = fitting(attempt.faults, min(times), min(times), kinds=NETWORK_KINDS)
    if not fits:
        return outcome
    faults = [fit.fault for fit in fits][:MAX_NAMED]
    words = "; ".join(dict.fromkeys(one.words for one in faults[:3]))
    culprits = tuple(
        Culprit(kind="link", rank=None, node=one.node, pid=None, reason=one.words) for one in faults
    )
    changed: Finding = msgspec.structs.replace(
        finding,
        verdict=Verdict.NETWORK_FAULT,
        culprits=culprits,
        confidence=Confidence.LOW,
        summary=f"{words} on node {faults[0].node}; {finding.summary}",
        evidence=(*(one.words for one in faults), *finding.evidence),
        next_steps=(
            "ibstat; rdma link show  # is the port up again?",
            'dmesg -T | grep -Ei "mlx5|bnxt|efa|infiniband|link" | tail -40',
            *finding.next_steps,
        ),
    )
    signs = (*outcome.signs, "network fault")
    return msgspec.structs.replace(outcome, finding=changed, sentence=changed.summary, signs=signs)
