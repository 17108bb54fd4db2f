"""The coordinator's memory of stalls: which one is to be captured on which nodes, and when it is over.

Pure.

`now` is monotonic seconds of this node. One attempt (start) of a run has at most one open stall,
whichever nodes noticed it and however often.
"""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

import msgspec

from mldebug.cluster.known_peers import (
    CaptureCall,
    KnownPeer,
    first_of_each_kind,
    lives,
    signals_of,
)
from mldebug.cluster.messages import MAX_PRESENT, AnnouncedExit, RunNews, RunWord, Whole
from mldebug.cluster.quiet_check import QuietCheck
from mldebug.cluster.roster import PeerRoster
from mldebug.cluster.run_identity import RunKey, is_of, run_id, user_of
from mldebug.cluster.slowness_rounds import SlownessRounds
from mldebug.cluster.source_shares import CallBudget, source_of

LOOK = 1.0  # seconds between two looks at who has progress to tell
DOUBT = 120.0  # seconds in which nobody notices a stall that others have noticed: then it is over
MAX_TRIES = 3  # of a call of which nothing came
MAX_HERE = 64  # launchers of one run on one node that are counted
MAX_PAST = 256  # incidents that are remembered
MOVES = "the job moves again"
GONE = "no node shows the job any more"
BLAMED = "blamed"  # mldebug.stall.signals.Stage


class ClusterStall(msgspec.Struct):
    """A stall of one attempt of one run, as all its nodes report it."""

    incident: str
    noticed_by: dict[str, str]  # node -> its agent: one that was started again has noticed nothing
    whole: Whole | None = None
    over: str = ""
    shown_by: set[str] = set()  # nodes that have had the run since
    tries: int = 0  # calls that came to nothing
    again: bool = False  # it is to be called once more
    doubted: float | None = None  # since when nobody who noticed it is left, and nobody else does
    cause: AnnouncedExit | None = None


class Coordinator(PeerRoster):
    """Coordinates the stalls of runs over several nodes: decides when all nodes capture a run, and for which incident.

    For one thread.
    """

    def __init__(
        self, may_have: Callable[[KnownPeer, str, RunKey], bool] = lambda *_: True
    ) -> None:
        """`may_have`: whether an incident of the run of that key may have the id that a node names."""
        super().__init__()
        self._may_have = may_have
        self._stalls: dict[tuple[RunKey, int], ClusterStall] = {}
        self._ended: list[tuple[str, str]] = []
        self._renamed: list[tuple[str, str]] = []
        self._past: dict[str, str] = {}  # incident -> why it is over
        self._unknown: dict[str, float] = {}  # incident of a member, of no stall here -> since when
        self._quiet = QuietCheck()
        self._slowness = SlownessRounds()
        self._budget = CallBudget()
        self._tellers: dict[tuple[RunKey, int], tuple[float, tuple[str, ...]]] = {}  # when, who

    def due(
        self, now: float, leads: Callable[[RunKey], bool] = lambda _: True
    ) -> Iterator[CaptureCall]:
        """Yield each stall that has to be captured now, once, and close stalls that are over.

        `leads`: whether this agent coordinates the run with that key; other runs are left out. `now`: monotonic seconds.
        """
        self._forget(now)
        blamed = list(self._blamed(now))
        self._quiet.keep((key, attempt) for key, attempt, _, _ in blamed)
        for key, attempt, peer, news in blamed:
            if not leads(key) or (news.incident and not self._may_have(peer, news.incident, key)):
                continue
            stall = self._stalls.get((key, attempt))
            if stall is not None and not stall.over:
                stall.noticed_by[peer.announcement.node] = peer.announcement.agent
                self._one_id(stall, peer, news)
                if stall.again and self._may_call(peer, key, now):
                    stall.again = False
                    yield self._call(stall, peer, news)
                continue
            if not news.incident or news.incident in self._past:
                continue
            cause = self._end(peer, news)
            if cause is None and self._held_back(peer, news, now):
                continue
            if not self._may_call(peer, key, now):
                continue
            noticed = {peer.announcement.node: peer.announcement.agent}
            self._quiet.called((key, attempt))
            stall = ClusterStall(cause.incident if cause else news.incident, noticed, cause=cause)
            self._stalls[key, attempt] = stall
            yield self._call(stall, peer, news)

    def compare_ranks(
        self, now: float, leads: Callable[[RunKey], bool], pace: float, lead: float
    ) -> None:
        """Have the ranks of runs on several nodes sampled where that is due, and compare the ranks whose samples have come.
        `now`: monotonic seconds; `leads`, `pace` and `lead`: as in `due` and `SlownessRounds.tick`.
        """
        runs = ((run, shown) for run, shown in self.shown_runs(now) if leads(run[0]))
        self._slowness.tick(runs, now, pace, lead)

    def _may_call(self, peer: KnownPeer, key: RunKey, now: float) -> bool:
        """Whether what this node has noticed may cause one more capture now."""
        return self._budget.take(source_of(peer.via), user_of(key), now)

    def _held_back(self, peer: KnownPeer, news: RunNews, now: float) -> float:
        """An incident needs every answering node quiet. Seconds that it waits for that."""
        shown = self._of(news.key, news.attempt)
        others = [pair for pair in shown if self._is_fresh(pair[0], now)]
        pace = max((self.pace_of(one.via) for one, _ in others), default=0.0)
        return self._quiet.holds((peer, news), others, now, pace)

    def _one_id(self, stall: ClusterStall, peer: KnownPeer, news: RunNews) -> None:
        """Give one stall one id where two exist: another agent coordinated for a while, or news of an earlier bad exit came late.

        An id that nobody has reported yet is simply replaced by ours on its node.
        """
        first = stall.incident
        if stall.cause is None and (cause := self._end(peer, news)):
            first, stall.cause, stall.again = cause.incident, cause, True
        elif stall.cause is None and news.published and news.incident not in self._past:
            first = min(stall.incident, news.incident)
        if first != stall.incident:
            self._renamed.append((stall.incident, first))
        stall.incident = first

    def _call(self, stall: ClusterStall, peer: KnownPeer, news: RunNews) -> CaptureCall:
        peers = tuple(one for one, _ in self._all(news.key, news.attempt))
        return CaptureCall(stall.incident, news, peer.announcement.node, peers, stall.cause)

    def _end(self, peer: KnownPeer, news: RunNews) -> AnnouncedExit | None:
        """The bad end of ranks that came first: who hangs since then waits for those. One that names somebody goes before.

        Not what ended before this run began: the next run of a script may have the same master.
        """
        run = (news.key, news.attempt)
        shown = self._shown.get(run, {})
        began = peer.at - news.age
        ended = ((self._peers[name], shown[name].end) for name in self._bad.get(run, ()))
        ends = [
            (not end.diagnosis.culprits, one.at - end.age, end.incident, end)
            for one, end in ended
            if end is not None
            and one.at - end.age > began
            and end.incident not in self._past
            and self._may_have(one, end.incident, news.key)
        ]
        return min(ends, key=lambda one: one[:3])[3] if ends else None

    def failed(self, news: RunNews) -> bool:
        """Note that capturing this run on all nodes failed.

        Returns whether it will be tried again: at most `MAX_TRIES` times, while the stall is open.
        """
        stall = self._stalls.get((news.key, news.attempt))
        if stall is None or stall.over or stall.tries >= MAX_TRIES:
            return False
        stall.tries += 1
        stall.again = True
        return True

    def renamed(self) -> list[tuple[str, str]]:
        """(old id, new id) of incidents whose id has changed since the last call."""
        changes, self._renamed = self._renamed, []
        return changes

    def ended(self) -> list[tuple[str, str]]:
        """(incident id, reason) of stalls that have ended since the last call."""
        changes, self._ended = self._ended, []
        return changes

    def open(self) -> frozenset[str]:
        """The ids of the incidents of all stalls that are not over."""
        return frozenset(stall.incident for stall in self._stalls.values() if not stall.over)

    def stall_of(self, news: RunNews) -> str:
        """The id of the open stall of this attempt of a run, "" for none; "not yet reported" where a node has noticed one just now."""
        stall = self._stalls.get((news.key, news.attempt))
        if stall is not None and not stall.over:
            return stall.incident
        shown = [each for _, each in self._of(news.key, news.attempt) if each.stage == BLAMED]
        return next((each.incident or "not yet reported" for each in shown), "")

    def named(self, job: str, uid: int | None = None) -> tuple[CaptureCall, ...]:
        """The live runs with this name, or whose id begins with it, as capture calls with no incident.

        `uid`: only of this user; None: of all.
        """
        found: dict[tuple[RunKey, int], tuple[KnownPeer, RunNews]] = {}
        for peer in self._peers.values():
            for news in peer.announcement.runs:
                if uid is not None and not is_of(news.key, uid):
                    continue
                if lives(news) and (job == news.name or run_id(news.key).startswith(job)):
                    found.setdefault((news.key, news.attempt), (peer, news))
        return tuple(
            CaptureCall("", news, peer.announcement.node, tuple(one for one, _ in self._of(*key)))
            for key, (peer, news) in found.items()
        )

    def captured(self, news: RunNews, whole: Whole) -> None:
        """Keep `whole`, the diagnosis from the captures of all nodes, with the stall of the run that `news` is about; does nothing where that has
        none.
        """
        stall = self._stalls.get((news.key, news.attempt))
        if stall is not None:
            stall.whole = whole

    def word(self, news: RunNews, node: str, now: float) -> RunWord:
        """What a node is to know of one of its runs: progress on other nodes, the open stall or why it is over, and for how
        long to delay a capture. `now`: monotonic seconds.
        """
        others = self._telling(news.key, news.attempt, node, now)
        stall = self._stalls.get((news.key, news.attempt))
        answer = RunWord(
            key=news.key,
            signals=tuple(signals_of(others, now)),
            present=self._present(news, now) if news.launchers else (),
        )
        answer = self._slowness.complete(answer, news, now)
        open_here = (
            news.incident and not news.launchers
        )  # launchers that wait are closed where they are
        if open_here and (why := self._over(news, stall, now)):
            return msgspec.structs.replace(answer, incident=news.incident, over=why)
        if stall is None:
            return msgspec.structs.replace(answer, hold=self._hold(news, node, now))
        whole = stall.whole and msgspec.structs.replace(stall.whole, report=stall.incident)
        return msgspec.structs.replace(
            answer,
            incident=stall.incident,
            caused=stall.cause is not None,
            over=stall.over,
            whole=whole,
        )

    def _present(self, news: RunNews, now: float) -> tuple[str, ...]:
        """The nodes on which launchers of a run wait for nodes, once for each launcher."""
        fresh = (
            (one, each)
            for one, each in self._of(news.key, news.attempt)
            if self._is_fresh(one, now)
        )
        names = ([peer.announcement.node] * min(each.launchers, MAX_HERE) for peer, each in fresh)
        return tuple(islice((name for some in names for name in some), MAX_PRESENT))

    def _hold(self, news: RunNews, node: str, now: float) -> float:
        """For how long a node that has noticed a stall is to wait."""
        peer = self._peers.get(node)
        if news.stage != BLAMED or peer is None:
            return 0.0
        return 0.0 if self._end(peer, news) else self._held_back(peer, news, now)

    def _telling(
        self, key: RunKey, attempt: int, node: str, now: float
    ) -> list[tuple[KnownPeer, RunNews]]:
        """Some other nodes that have signs of progress of this run; chosen anew once a second."""
        known = self._tellers.get((key, attempt))
        if known is None or not 0.0 <= now - known[0] < LOOK:
            found = ((one, each) for one, each in self._of(key, attempt) if each.signals)
            fresh = ((one, each) for one, each in found if self._is_fresh(one, now))
            known = self._tellers[key, attempt] = now, first_of_each_kind(fresh)
        shown = self._shown.get((key, attempt), {})
        names = (name for name in known[1] if name != node and name in shown)
        some = ((self._peers[name], shown[name]) for name in names)
        return [(one, each) for one, each in some if self._is_fresh(one, now)]

    def _over(self, news: RunNews, stall: ClusterStall | None, now: float) -> str:
        """Why the stall that a peer still has open is over; "" while it may go on."""
        if news.incident in self._past or stall is not None:
            return self._past.get(news.incident, "")
        fresh = (each for one, each in self._of(news.key, news.attempt) if self._is_fresh(one, now))
        if any(each.stage == BLAMED for each in fresh):
            return ""
        since = self._unknown.setdefault(news.incident, now)
        return MOVES if now - since > DOUBT else ""

    def _blamed(self, now: float) -> Iterator[tuple[RunKey, int, KnownPeer, RunNews]]:
        for name in sorted(self._peers):
            peer = self._peers[name]
            for news in peer.announcement.runs if self._is_fresh(peer, now) else ():
                if news.stage == BLAMED:
                    yield news.key, news.attempt, peer, news

    def _forget(self, now: float) -> None:
        self._forget_old(now)
        self._budget.forget(now)
        for (key, attempt), stall in self._stalls.items():
            if stall.over:
                continue
            shown = {one.announcement.node: (one, news) for one, news in self._of(key, attempt)}
            stall.shown_by |= shown.keys()
            stall.over = self._ends(stall, shown, now)
            if stall.over:
                self._ended.append((stall.incident, stall.over))
                self._past[stall.incident] = stall.over
        self._past = dict(list(self._past.items())[-MAX_PAST:])
        self._unknown = dict(list(self._unknown.items())[-MAX_PAST:])
        here = {
            (key, attempt)
            for (key, attempt), stall in self._stalls.items()
            if not stall.over or any(self._of(key, attempt))
        }
        self._stalls = {each: stall for each, stall in self._stalls.items() if each in here}
        self._tellers = {each: one for each, one in self._tellers.items() if each in self._shown}

    def _ends(
        self, stall: ClusterStall, shown: Mapping[str, tuple[KnownPeer, RunNews]], now: float
    ) -> str:
        """Why the stall is over, by what nodes announce and never by their silence; "" while it goes on."""
        fresh = {name: pair for name, pair in shown.items() if self._is_fresh(pair[0], now)}
        is_heard = any(
            self._is_fresh(self._peers[name], now) for name in stall.shown_by & self._peers.keys()
        )
        if not fresh:  # whoever is heard of says that it has the run no more, or nobody is for long
            return GONE if is_heard or not shown else ""
        for name, agent in tuple(stall.noticed_by.items()):
            known = self._peers.get(name)
            if known is None or known.announcement.agent != agent:
                del stall.noticed_by[name]
        noticed = [news for name, (_, news) in fresh.items() if name in stall.noticed_by]
        if noticed and all(news.stage != BLAMED for news in noticed):
            return MOVES
        if stall.noticed_by or not fresh or any(n.stage == BLAMED for _, n in fresh.values()):
            stall.doubted = None
            return ""
        stall.doubted = now if stall.doubted is None else stall.doubted
        return MOVES if now - stall.doubted > DOUBT else ""
