"""What was tried to find a bad member or link: who took part, and how it ended. Pure."""

from typing import Literal

from mldebug.model import Spoken

Outcome = Literal["measured", "failed", "timed_out", "wrong"]  # wrong: values came out changed


class Trial(Spoken, frozen=True, kw_only=True):
    """One try of one member alone, a pair, or a larger group. Members are named as a person calls them."""

    members: tuple[str, ...]
    outcome: Outcome = "measured"
    bandwidth: float | None = None  # bytes per second, the first quartile of the repetitions
    path: str = ""  # pairs are compared only where the way between them is of one kind
    reason: str = ""
    alone: bool = False  # nothing else was tried at that moment


Pair = frozenset[str]
