"""A rank has exited while the others still wait for it."""

import signal
from collections.abc import Iterable

from mldebug.core.model import Finding, LostRank, Role, Verdict
from mldebug.core.plugins import NoOptions
from mldebug.diagnosis.classify.case import Case
from mldebug.diagnosis.classify.evidence import blame
from mldebug.diagnosis.detectors import Detector

ASKING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


class RankExited:
    """Blames ranks whose process is gone or a zombie.

    While the process group is being created, only ranks that are known to have exited.
    """

    def judge(self, case: Case) -> Finding | None:
        """A finding where a rank has exited or is missing and others live and wait for it; where nobody waits, only
        for a rank that was killed. None otherwise.
        """
        gone = tuple(r for r in case.ranks if r.is_.role in (Role.EXITED, Role.MISSING))
        if not gone or not case.alive or case.moved:
            return None
        if case.starting and not any(rank.is_.role is Role.EXITED for rank in gone):
            return None
        if not case.waiting:  # nobody is seen to miss them
            gone = tuple(rank for rank in gone if rank.rank in _killed(case.job.lost))
        if not gone:
            return None
        ranks = "|".join(str(rank.rank) for rank in gone[:4])
        steps = [
            "dmesg -T | grep -iE 'killed process|out of memory|segfault|Xid' | tail",
            f"grep -nE '(\\[|rank ?)({ranks})\\]?|Traceback|Error' LAUNCHER_LOG | tail -40",
        ]
        return blame(case, Verdict.RANK_EXITED, gone, steps)


def _killed(lost: Iterable[LostRank]) -> set[int]:
    """Who was killed or crashed, which is never for the sake of a rank that is late; SIGABRT may be."""
    signals = {one.rank: (one.exit_status or 0) & 0x7F for one in lost}
    return {rank for rank, number in signals.items() if number not in (0, *ASKING, signal.SIGABRT)}


def create(options: NoOptions) -> Detector:
    """Build the detector `rank_exited`: a rank has exited while the others still wait for it."""
    return RankExited()
