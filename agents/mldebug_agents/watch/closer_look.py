"""What a capture adds to the watch: which ranks wait, though no sample of their Python frames says so."""

from mldebug.core.model import NodeCapture, Role
from mldebug.diagnosis.classify.rank_states import classified
from mldebug.stall.signals import RankLook


def waiting_by_native(capture: NodeCapture) -> dict[int, RankLook]:
    """The ranks that a native stack, their own or that of a rank in the same position, shows to wait for others or for their GPU."""
    return {
        one.rank: RankLook(
            rank=one.rank,
            role=one.is_.role,
            class_name=one.is_.name,
            operation=one.is_.operation,
            doing=one.is_.doing,
        )
        for one in classified((capture,))
        if one.is_.role is Role.WAITING and one.is_.direct
    }
