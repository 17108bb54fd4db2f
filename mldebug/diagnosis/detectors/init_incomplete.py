"""The process group never came together: some ranks wait in initialisation for ranks that did not come."""

from mldebug.core.model import ClassifiedRank, Confidence, Finding, Role, Verdict
from mldebug.core.plugins import NoOptions
from mldebug.core.ranksets import fold_nodes
from mldebug.diagnosis.classify.case import Case, ranks_text
from mldebug.diagnosis.classify.evidence import blame, evidence_of, show_source
from mldebug.diagnosis.detectors import Detector


class InitIncomplete:
    """Blames the ranks that are not in initialisation; a rank that never came has no pid."""

    def judge(self, case: Case) -> Finding | None:
        """A finding where all waiting ranks wait for the process group or the store, and some rank that must
        exist is absent; None otherwise.
        """
        if not case.starting or case.moved:
            return None
        if not case.suspects:
            return _nowhere(case)
        absent = case.suspects
        missing = [rank.rank for rank in absent if rank.is_.role is Role.MISSING]
        confidence = None
        if any(rank.is_.role is Role.UNCLEAR for rank in absent):
            confidence = Confidence.LOW  # it may wait in native code for those that are here
        elif not missing and any(rank.is_.role is Role.BUSY for rank in absent):
            confidence = Confidence.MEDIUM
        return blame(
            case, Verdict.INIT_INCOMPLETE, absent, _steps(absent, missing), confidence=confidence
        )


def _nowhere(case: Case) -> Finding | None:
    """Ranks that run on none of the nodes asked: they may never have come, or run where nobody asked."""
    if case.queried is None or case.queried.absent or not case.elsewhere:
        return None
    ranks, nodes = ranks_text(case.elsewhere), case.queried.named("answered")
    verb = "has" if len(case.elsewhere) == 1 else "have"
    return Finding(
        verdict=Verdict.INIT_INCOMPLETE,
        culprits=(),
        confidence=Confidence.LOW,
        summary=f"{ranks} {verb} no process that was seen on {fold_nodes(nodes)}; {case.victims()}",
        evidence=evidence_of(case, ()),
        next_steps=(
            "mldebug dump --hosts …  # were all nodes of the job named?",
            "env | grep -E 'WORLD_SIZE|NNODES|NPROC'  # as many as were started?",
        ),
    )


def _steps(absent: tuple[ClassifiedRank, ...], missing: list[int]) -> tuple[str, ...]:
    if missing:
        return (
            "pgrep -fc TRAINING_SCRIPT  # as many as the launcher should have started?",
            "env | grep -E 'WORLD_SIZE|NNODES|NPROC'",
        )
    return (show_source(absent[0]),)


def create(options: NoOptions) -> Detector:
    """Build the detector `init_incomplete`: the process group never came together: some ranks wait in initialisation for ranks that did not come."""
    return InitIncomplete()
