"""A rank is blocked in a read, write or open that nobody answers, while the others wait for it."""

import msgspec

from mldebug.case import Case, blame
from mldebug.model import Finding, Verdict

CLASSES = ("fifo", "pipe_read", "pipe_write", "socket", "flock", "uninterruptible", "storage")


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class RankBlockedIo:
    """Blames ranks whose wait channel is I/O."""

    def judge(self, case: Case) -> Finding | None:
        """Speak where the kernel names the I/O that blocks a rank."""
        blocked = case.named(*CLASSES)
        if (
            not blocked
            or (not case.stuck and not all(rank.is_.direct for rank in blocked))
            or case.moved
        ):
            return None
        pid = blocked[0].pid
        return blame(
            case,
            Verdict.RANK_BLOCKED_IO,
            blocked,
            (
                f"ls -l /proc/{pid}/fd; cat /proc/{pid}/syscall",
                f"cat /proc/{pid}/stack  # as root: where in the kernel",
            ),
        )


def create(options: Options) -> RankBlockedIo:
    """Build the detector."""
    return RankBlockedIo()
