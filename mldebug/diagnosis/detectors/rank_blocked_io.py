"""A rank is blocked in a read, write or open that nobody answers, while the others wait for it."""

import shlex

from mldebug.core.model import ClassifiedRank, Finding, Verdict
from mldebug.core.plugins import NoOptions
from mldebug.diagnosis.classify.evidence import Case, blame
from mldebug.diagnosis.detectors import Detector

CLASSES = ("fifo", "pipe_read", "pipe_write", "socket", "flock", "uninterruptible", "storage")


class RankBlockedIo:
    """Blames ranks whose wait channel is I/O."""

    def judge(self, case: Case) -> Finding | None:
        """A finding where the kernel names the I/O that blocks a rank."""
        blocked = case.named(*CLASSES)
        if (
            not blocked
            or (not case.stuck and not all(rank.is_.direct for rank in blocked))
            or case.moved
        ):
            return None
        return blame(case, Verdict.RANK_BLOCKED_IO, blocked, _steps(blocked[0]))


def _steps(rank: ClassifiedRank) -> tuple[str, ...]:
    """Who holds the file it waits for; without a path, what it has open and where in the kernel it is."""
    if rank.is_.path.startswith("/"):
        return (
            f"fuser -v {shlex.quote(rank.is_.path)}  # who has it open",
            f"ls -l /proc/{rank.pid}/fd",
        )
    return (
        f"ls -l /proc/{rank.pid}/fd; cat /proc/{rank.pid}/syscall",
        f"cat /proc/{rank.pid}/stack  # as root: where in the kernel",
    )


def create(options: NoOptions) -> Detector:
    """Build the detector."""
    return RankBlockedIo()
