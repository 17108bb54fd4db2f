"""Finds in a capture which ranks wait, where samples of their Python frames alone do not show it."""

from mldebug.core.model import NodeCapture, Role
from mldebug.diagnosis.classify.rank_states import classified
from mldebug.stall.signals import RankLook


def waiting_by_native(capture: NodeCapture) -> dict[int, RankLook]:
    """By rank, those that wait for other ranks or for their GPU as a native stack shows: their own,
    or that of a rank at the same place in the code.
    """
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
