"""A rank waits for something outside the job (a lock, a sleep, a debugger, a child) while the others wait for it."""

from mldebug.core.model import Finding, Verdict
from mldebug.core.plugins import NoOptions
from mldebug.diagnosis.classify.case import Case
from mldebug.diagnosis.classify.evidence import blame, show_source
from mldebug.diagnosis.detectors import Detector

CLASSES = (
    "sleep",
    "poll", "lock", "gil", "debugger", "stdin", "terminal", "child_wait", "file_lock", "thread_join", "thread_exit", "native_lock", "future", "idle",
)  # fmt: skip

CLASSES_ALONE = ("lock", "gil", "debugger", "stdin", "terminal", "file_lock", "child_wait")
"""Of a job of one rank, which nobody waits for: a sleep or an idle loop may be all that it has to do."""


class RankWaiting:
    """Blames ranks that are idle for a reason of their own, from which no other rank can wake them."""

    def judge(self, case: Case) -> Finding | None:
        """A finding where a rank is idle for a reason of its own and the job is stuck; else None."""
        idle = case.named(*(CLASSES if case.waiting else CLASSES_ALONE))
        if not idle or not case.stuck:
            return None
        return blame(case, Verdict.RANK_WAITING, idle, (show_source(idle[0]),))


def create(options: NoOptions) -> Detector:
    """Build the detector `rank_waiting`: a rank waits for something outside the job (a lock, a sleep, a debugger, a child) while the others wait for it."""
    return RankWaiting()
