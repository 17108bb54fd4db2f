"""The process group never came together: some ranks wait in initialisation for ranks that did not come."""

import msgspec

from mldebug.judging.case import Case, blame
from mldebug.model import ClassifiedRank, Confidence, Finding, Role, Verdict


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """No settings."""


class InitIncomplete:
    """Blames the ranks that are not in initialisation; a rank that never came has no pid."""

    def judge(self, case: Case) -> Finding | None:
        """Speak where all who wait, wait in init or the store, and somebody known is absent."""
        if not case.starting or not case.suspects or case.moved:
            return None
        absent = case.suspects
        missing = [rank.rank for rank in absent if rank.is_.role is Role.MISSING]
        confidence = (
            Confidence.MEDIUM
            if not missing and any(r.is_.role is Role.BUSY for r in absent)
            else None
        )
        return blame(
            case, Verdict.INIT_INCOMPLETE, absent, _steps(absent, missing), confidence=confidence
        )


def _steps(absent: tuple[ClassifiedRank, ...], missing: list[int]) -> tuple[str, ...]:
    if missing:
        return (
            "ps -ef | grep -c TRAINING_SCRIPT  # as many as the launcher should have started?",
            "env | grep -E 'WORLD_SIZE|NNODES|NPROC'",
        )
    return (f"py-spy dump --nonblocking --pid {absent[0].pid}",)


def create(options: Options) -> InitIncomplete:
    """Build the detector."""
    return InitIncomplete()
