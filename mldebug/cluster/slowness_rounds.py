"""When the coordinator has the ranks of a run sampled on all its nodes at one moment, and who is slow by what the nodes send.

| the run | then |
|---|---|
| has ranks on two nodes or more, all of them heard of, and goes on | is sampled once every `goodput.interval`, and at once where a node finds its steps slower |
| one node does not answer, or with fewer ranks, or its stretch lies seconds beside the others' | nobody is named, and the row begins anew at the next time |

Ranks are compared over the same five seconds, so a moment in which all wait alike is one for all of them. Clocks are not compared: each
node says how long ago its stretch has ended. Pure; `now` is monotonic seconds of this node.
"""

import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from mldebug.cluster.known_peers import KnownPeer
from mldebug.cluster.messages import RunNews, RunWord
from mldebug.cluster.run_identity import RunKey
from mldebug.core.ranksets import count_ranks, join_intervals
from mldebug.goodput.recorded_waits import waits_of_nodes, with_recorded
from mldebug.goodput.sample_rows import SampleRows
from mldebug.goodput.shared_samples import SampleCall, SharedFinding, slim
from mldebug.goodput.straggler import SampledStretch

WARM = 60.0  # seconds after a run was heard of, in which its speed says nothing
LATE = 20.0  # seconds after the beginning of a stretch, in which every node must have sent it
SKEW = 2.0  # seconds between the ends of a stretch on two nodes at most
MOST = 512  # runs of one coordinator that are compared
WATCHING = "watching"  # mldebug.stall.signals.Stage

Shown = tuple[KnownPeer, RunNews]
RunAttempt = tuple[RunKey, int]


class _Round(NamedTuple):
    """A stretch that the nodes are called to take. `begins`: monotonic seconds."""

    call: str
    begins: float


class _Rounds:
    """What is known of one attempt of a run."""

    def __init__(self, due: float) -> None:
        self.due = due
        self.woken_at = -math.inf
        self.rows = SampleRows()
        self.round: _Round | None = None
        self.finding: SharedFinding | None = None
        self.since = 0.0  # of the finding, monotonic seconds

    @property
    def is_slow(self) -> bool:
        return self.finding is not None and bool(self.finding.found.ranks)


class SlownessRounds:
    """The stack samples of all runs over several nodes that this agent coordinates. `name`: returns a new name at each
    call. For one thread only.
    """

    def __init__(self, name: Callable[[], str] = lambda: secrets.token_hex(8)) -> None:
        self._name = name
        self._runs: dict[RunAttempt, _Rounds] = {}

    def tick(
        self,
        runs: Iterable[tuple[RunAttempt, Sequence[Shown]]],
        now: float,
        pace: float,
        lead: float,
    ) -> None:
        """Order samples of the runs for which they are due, and compare the ranks whose samples have come.

        `runs`: for each attempt of a run the nodes that announce it; `pace`: seconds between two comparisons of a run
        without a slow rank; `lead`: seconds after which every node has received an order. `now`: monotonic seconds.
        """
        known, self._runs = self._runs, {}
        for run, shown in runs:
            if len(shown) < 2 or len(self._runs) >= MOST:
                continue
            one = self._runs[run] = known.get(run) or _Rounds(now + min(WARM, pace))
            if not is_comparable([news for _, news in shown]):
                one.rows.drop()
                one.round = None
            elif one.round is not None:
                self._collect(one, one.round, shown, now, lead)
            elif now >= one.due or _woken(one, shown, now, pace):
                one.round, one.due = _Round(self._name(), now + lead), now + pace

    def complete(self, word: RunWord, news: RunNews, now: float) -> RunWord:
        """Add to the coordinator's message to a node (`word`) the sampling order for the run that is open, and a finding
        that the node does not know yet. `now`: monotonic seconds.
        """
        one = self._runs.get((news.key, news.attempt))
        if one is None:
            return word
        if one.round is not None and now <= one.round.begins and not _has(news, one.round.call):
            call = SampleCall(call=one.round.call, begins_in=one.round.begins - now)
            word = msgspec.structs.replace(word, sample=call)
        if one.finding is not None and news.row != one.finding.row:
            finding = msgspec.structs.replace(one.finding, age=max(0.0, now - one.since))
            word = msgspec.structs.replace(word, slowness=finding)
        return word

    def _collect(
        self, one: _Rounds, open_: _Round, shown: Sequence[Shown], now: float, lead: float
    ) -> None:
        if not all(_has(news, open_.call) for _, news in shown):
            if now - open_.begins > LATE + lead:
                one.rows.drop()
                one.round = None
            return
        one.round = None
        stretch = joined_stretch(shown)
        if stretch is None:
            one.rows.drop()
            return
        found = one.rows.add(stretch, known=one.is_slow)
        if found is None:
            one.due = now
            return
        calm = 0 if found.ranks else (one.finding.calm if one.finding else 0) + 1
        one.since = found.since
        one.finding = SharedFinding(row=self._name(), calm=calm, found=slim(found))


def is_comparable(news: Sequence[RunNews]) -> bool:
    """Whether the ranks of a run on different nodes can be compared: all its ranks are on these nodes, and on each of them the run is
    neither over nor suspected to be stalled."""
    calm = all(one.stage == WATCHING and not one.incident and one.end is None for one in news)
    if not calm or len({one.world_size for one in news}) != 1:
        return False
    return count_ranks(join_intervals(one.ranks for one in news)) == news[0].world_size


def joined_stretch(shown: Sequence[Shown]) -> SampledStretch | None:
    """Return the samples that all nodes took of a run as one sampling period; None where they were not taken at the same
    time, or not for equally long.
    """
    taken = [(peer, news.samples) for peer, news in shown if news.samples is not None]
    ends = [peer.at - one.age for peer, one in taken]
    if not taken or max(ends) - min(ends) > SKEW or len({one.seconds for _, one in taken}) > 1:
        return None
    ranks = [
        msgspec.structs.replace(share, node=peer.announcement.node)
        for peer, one in taken
        for share in one.ranks
    ]
    stretch = SampledStretch(
        at=max(ends),
        seconds=taken[0][1].seconds,
        ranks=tuple(sorted(ranks, key=lambda one: one.rank)),
        world_size=shown[0][1].world_size,
    )
    timed = {rank: record for _, one in taken for rank, record in one.timed.items()}
    return with_recorded(stretch, waits_of_nodes(timed, stretch.world_size))


def _has(news: RunNews, call: str) -> bool:
    return news.samples is not None and news.samples.call == call


def _woken(one: _Rounds, shown: Sequence[Shown], now: float, pace: float) -> bool:
    """Whether a node finds the steps of the run slower than they used to be."""
    if not any(news.slower for _, news in shown) or now - one.woken_at < pace / 2:
        return False
    one.woken_at = now
    return True
