"""Is a run quiet on every node that answers? A coordinator waits a little before it has a stall captured that only some see. Pure."""

from collections.abc import Iterable

from mldebug.across.members import RunNews
from mldebug.across.membership import Member
from mldebug.across.runs import RunKey

HOLD = 6.0  # seconds; whoever has noticed waits for 10, and would then report alone
SAME = 1.0  # seconds: ranks that stop together are seen by their nodes in such a time

Shown = tuple[Member, RunNews]


class Quiet:
    """For how long a call is held back, by run and attempt."""

    def __init__(self) -> None:
        self._since: dict[tuple[RunKey, int], float] = {}

    def holds(self, noticed: Shown, others: Iterable[Shown], now: float) -> bool:
        """Does another node move, after the one that has noticed a stall stood still? Not for ever."""
        run = (noticed[1].key, noticed[1].attempt)
        if not _moves(noticed, others, now):
            self._since.pop(run, None)
            return False
        return now - self._since.setdefault(run, now) < HOLD

    def keep(self, runs: Iterable[tuple[RunKey, int]]) -> None:
        """Forget all others."""
        known = set(runs)
        self._since = {run: since for run, since in self._since.items() if run in known}


def _moves(noticed: Shown, others: Iterable[Shown], now: float) -> bool:
    stood = _newest(noticed)
    after = max(now - HOLD, -1e18 if stood is None else stood + SAME)
    newest = (_newest(one) for one in others if one[0].told.node != noticed[0].told.node)
    return any(one is not None and one > after for one in newest)


def _newest(shown: Shown) -> float | None:
    """When that node saw the run move last, by the clock here; None where it sees no steps."""
    member, news = shown
    return max((member.at - max(0.0, one.age) for one in news.signals), default=None)
