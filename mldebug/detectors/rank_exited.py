"""A rank has exited while the others still wait for it."""

import msgspec

from mldebug.judging.case import Case, blame
from mldebug.model import Finding, Role, Verdict


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class RankExited:
    """Blames ranks whose process is gone or a zombie, unless the job is still coming together."""

    def judge(self, case: Case) -> Finding | None:
        """Speak where a rank is known to be gone and another one lives."""
        gone = tuple(r for r in case.ranks if r.is_.role in (Role.EXITED, Role.MISSING))
        if not gone or not case.alive or case.moved:
            return None
        if case.starting and not any(rank.is_.role is Role.EXITED for rank in gone):
            return None
        if not case.waiting:
            return None  # nobody is seen to miss them
        ranks = "|".join(str(rank.rank) for rank in gone[:4])
        steps = [
            "dmesg -T | grep -iE 'killed process|out of memory|segfault|Xid' | tail",
            f"grep -nE '(\\[|rank ?)({ranks})\\]?|Traceback|Error' LAUNCHER_LOG | tail -40",
        ]
        return blame(case, Verdict.RANK_EXITED, gone, steps)


def create(options: Options) -> RankExited:
    """Build the detector."""
    return RankExited()
