"""All captured ranks wait, and the node of the others does not answer."""

from mldebug.core.model import Confidence, Culprit, Finding, QueriedNode, Verdict
from mldebug.core.plugins import NoOptions
from mldebug.core.ranksets import fold_nodes
from mldebug.diagnosis.classify.case import Case
from mldebug.diagnosis.classify.evidence import evidence_of
from mldebug.diagnosis.detectors import Detector

MAX_NAMED = 64


class NodeUnreachable:
    """Names nodes, never ranks.

    `medium` where the scheduler reports each node down, or it answered before and no longer does.

    Nobody is named where a node could be reached but not captured, or where half or more of the
    nodes seem gone to an agent that asked them.
    """

    def judge(self, case: Case) -> Finding | None:
        """A finding where every captured rank waits, and ranks without a capture can only be on nodes
        that are down or silent; None otherwise.
        """
        if case.queried is None or not case.unseen or case.moved:
            return None
        gone = [node for node in case.queried.nodes if node.state in ("down", "silent")]
        if case.suspects or not case.waiting or len(gone) != len(case.queried.absent):
            return None
        if case.queried.by and 2 * len(gone) >= len(case.queried.nodes):
            return None  # whoever asked may be the one that is cut off
        sure = all(node.state == "down" or node.last_seen is not None for node in gone)
        names = fold_nodes(node.name for node in gone)
        who, verb = ("node", "does") if len(gone) == 1 else ("nodes", "do")
        return Finding(
            verdict=Verdict.NODE_UNREACHABLE,
            culprits=tuple(map(_culprit, gone[:MAX_NAMED])),
            confidence=Confidence.MEDIUM if sure else Confidence.LOW,
            summary=f"{who} {names} {verb} not answer; {case.victims()}",
            evidence=evidence_of(case, ()),
            next_steps=(
                f"ping -c 3 {gone[0].name}",
                f"ssh {gone[0].name} 'dmesg -T | tail -50'  # or its console, where that hangs too",
            ),
        )


def _culprit(node: QueriedNode) -> Culprit:
    reason = f"does not answer ({node.reason})" if node.reason else "does not answer"
    return Culprit(kind="node", rank=None, node=node.name, pid=None, reason=reason)


def create(options: NoOptions) -> Detector:
    """Build the detector `node_unreachable`: all captured ranks wait, and the node of the others does not answer."""
    return NodeUnreachable()
