"""Whether other nodes still see a run move that one node reports as stalled.

If so, the coordinator waits a little before it has the stall captured. Pure.
"""

from collections.abc import Iterable

from mldebug.cluster.known_peers import KnownPeer
from mldebug.cluster.messages import RunNews
from mldebug.cluster.run_identity import RunKey

HOLD = 6.0  # seconds; a pace of announcements more, for a node that moved may just have told so
SAME = 1.0  # seconds: ranks that stop together are seen by their nodes in such a time

Shown = tuple[KnownPeer, RunNews]


class QuietCheck:
    """Decides for how long the capture of a stall is delayed because other nodes still see the run move.

    A run here is (run key, attempt).
    """

    def __init__(self) -> None:
        self._since: dict[tuple[RunKey, int], float] = {}

    def holds(self, noticed: Shown, others: Iterable[Shown], now: float, pace: float) -> float:
        """Seconds for which the capture of a stall is still delayed; 0.0 where the run stands still on all nodes.

        `noticed`: the node that reports the stall, with what it announced of the run; `others`: the same of the other nodes. The run
        moves on another node where that has announced progress later than `noticed` has. The delay begins with the first call
        that finds it so, and lasts `HOLD` + `pace` seconds. `now`: monotonic seconds. `pace`: seconds between two announcements of a
        node.
        """
        run = (noticed[1].key, noticed[1].attempt)
        if not _moves(noticed, others):
            self._since.pop(run, None)
            return 0.0
        return max(0.0, self._since.setdefault(run, now) + HOLD + pace - now)

    def called(self, run: tuple[RunKey, int]) -> None:
        """Note that the run was captured: its next stall begins a new delay."""
        self._since.pop(run, None)

    def keep(self, runs: Iterable[tuple[RunKey, int]]) -> None:
        """Forget all runs but these, which are reported as stalled now."""
        known = set(runs)
        self._since = {run: since for run, since in self._since.items() if run in known}


def _moves(noticed: Shown, others: Iterable[Shown]) -> bool:
    """Has another node seen the run move after this one saw it stand still? The last announcement of each counts."""
    stood = _newest(noticed)
    for one in others:
        newest = _newest(one)
        if newest is None or one[0].announcement.node == noticed[0].announcement.node:
            continue
        if newest > one[0].at - HOLD and (stood is None or newest > stood + SAME):
            return True
    return False


def _newest(shown: Shown) -> float | None:
    """When that node saw the run move last, by the clock here; None where it sees no steps."""
    peer, news = shown
    return max((peer.at - max(0.0, signal.age) for signal in news.signals), default=None)
