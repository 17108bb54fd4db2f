"""What was tried to find a bad member or link: who took part, and how it ended. Pure."""

from collections.abc import Iterable
from typing import Literal

from mldebug.core.model import Spoken

Outcome = Literal["measured", "failed", "timed_out", "wrong"]  # wrong: values came out changed


class Trial(Spoken, frozen=True, kw_only=True):
    """One try of one member alone, a pair, or a larger group. Members are named as a person calls them."""

    members: tuple[str, ...]
    outcome: Outcome = "measured"
    bandwidth: float | None = None  # bytes per second, the first quartile of the repetitions
    path: str = ""  # pairs are compared only where the way between them is of one kind
    reason: str = ""
    alone: bool = False  # nothing else was tried at that moment
    seconds: float = 0.0  # that it took, the deadline for one that did not end; 0: not known


Pair = frozenset[str]
HURRY = 0.5  # of its deadline that a try may take, or those that do not end tell nothing


def hurried(late: Trial, trials: Iterable[Trial]) -> bool:
    """Whether tries of its kind that went well needed so much of the deadline that this one may have missed it by chance."""
    longest = max(
        (
            one.seconds
            for one in trials
            if one.outcome == "measured" and len(one.members) == len(late.members)
        ),
        default=0.0,
    )
    return late.outcome == "timed_out" and longest > HURRY * late.seconds > 0
