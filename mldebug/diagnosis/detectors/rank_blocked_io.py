"""A rank is blocked in a read, write, open or lock of a file that nobody answers, while the others wait for it.

Where the lock that ranks want is held by one that itself waits for others, they wait in a circle.
"""

import shlex

import msgspec

from mldebug.core.model import (
    ClassifiedRank,
    Confidence,
    Culprit,
    Finding,
    LockHolder,
    Verdict,
)
from mldebug.core.plugins import NoOptions
from mldebug.diagnosis.classify.awaited.file_locks import HELD, holding_children, lock_circle
from mldebug.diagnosis.classify.case import Case, ranks_text, sentence
from mldebug.diagnosis.classify.evidence import blame, evidence_of, rank_culprit
from mldebug.diagnosis.detectors import Detector

CLASSES = ("fifo", "pipe_read", "pipe_write", "socket", "flock", "uninterruptible", "storage")


class RankBlockedIo:
    """Blames ranks that the kernel holds in I/O; of a lock the process that holds it, if it belongs to the job."""

    def judge(self, case: Case) -> Finding | None:
        """A finding where the kernel names the I/O that blocks a rank; None otherwise."""
        blocked = case.named(*CLASSES)
        if case.moved:
            return None
        if not blocked:
            return _circle(case)
        if not case.stuck and not all(rank.is_.direct for rank in blocked):
            return None
        finding = blame(case, Verdict.RANK_BLOCKED_IO, blocked, _steps(blocked[0]))
        holders = {one for rank in blocked for one in _holding_children(rank)}
        if len(holders) != 1 or not finding.culprits:
            return finding
        return msgspec.structs.replace(finding, culprits=(_holder(holders.pop(), blocked[0]),))


def _circle(case: Case) -> Finding | None:
    """All ranks wait, some of them for a lock that one of them holds: that one is named if it alone keeps a lock and wants none."""
    holders = lock_circle(case.ranks)
    if case.suspects or not holders:
        return None
    wanting = case.named(HELD)
    keep = tuple(rank for rank in holders if rank.is_.name != HELD)
    named = keep if len(keep) == 1 and case.complete else ()
    only = {*holders, *wanting} == {*case.ranks}
    words = [f"{ranks_text([one.rank])} holds what {ranks_text(w.rank for w in wanting if one.rank in w.is_.holders)} want" for one in holders]  # fmt: skip
    return Finding(
        verdict=Verdict.RANK_BLOCKED_IO,
        culprits=tuple(map(rank_culprit, named)),
        confidence=Confidence.MEDIUM if named and only else Confidence.LOW,
        summary=f"ranks wait for each other in a circle: {', '.join(words)}; {sentence((*keep, *wanting))}",
        evidence=evidence_of(case, (*holders, *(w for w in wanting if w not in holders))),
        next_steps=_steps(wanting[0]),
    )


def _holding_children(rank: ClassifiedRank) -> tuple[LockHolder, ...]:
    return holding_children(rank.capture.process) if rank.capture else ()


def _holder(one: LockHolder, rank: ClassifiedRank) -> Culprit:
    reason = f"holds the lock on {rank.is_.path or 'a file'} that rank {rank.rank} wants"
    return Culprit(kind="worker", rank=one.rank, node=rank.node, pid=one.pid, reason=reason)


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
    """Build the detector `rank_blocked_io`: a rank is blocked in a read, write, open or lock of a file that nobody answers, while the others wait for it."""
    return RankBlockedIo()
