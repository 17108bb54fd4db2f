"""A rank computes something of its own while the others wait for it."""

from mldebug.core.model import ClassifiedRank, Confidence, Finding, Role, Verdict
from mldebug.core.plugins import NoOptions
from mldebug.diagnosis.classify.case import Case
from mldebug.diagnosis.classify.evidence import blame
from mldebug.diagnosis.detectors import Detector


class RankBusy:
    """Blames ranks that use a CPU, or that stand in native code that is no known wait.

    Never `high`, as such work may still end.
    """

    def judge(self, case: Case) -> Finding | None:
        """A finding where other ranks wait, and the ranks that do not wait are busy and the smaller
        part; None otherwise.
        """
        busy = tuple(
            r for r in case.suspects if r.is_.role is Role.BUSY or r.is_.name == "native_code"
        )
        if not busy or not case.stuck or not case.waiting:
            return None
        unclear = any(rank.is_.role is Role.UNCLEAR or _seen_once(rank) for rank in busy)
        pid = busy[0].pid
        return blame(
            case,
            Verdict.RANK_BUSY,
            busy,
            (
                f"py-spy record --nonblocking --duration 20 --output rank.svg --pid {pid}",
                f"py-spy dump --native --pid {pid}",
            ),
            confidence=Confidence.LOW if unclear else Confidence.MEDIUM,
        )


def _seen_once(rank: ClassifiedRank) -> bool:
    """Seen by a dump alone: every rank of a job that works computes at some moment, while others wait for it."""
    process = rank.capture.process if rank.capture else None
    return process is not None and process.movement is None and process.state is None


def create(options: NoOptions) -> Detector:
    """Build the detector `rank_busy`: a rank computes something of its own while the others wait for it."""
    return RankBusy()
