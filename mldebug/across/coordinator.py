"""The memory of the agent that coordinates: who has announced what, and which stall is to be captured on which nodes. Pure.

`now` is monotonic seconds of this node. Of one run and attempt there is one open stall, whoever noticed it and however often.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from mldebug.across.members import (
    Announcement,
    ClusterView,
    MemberView,
    RunKey,
    RunNews,
    RunWord,
    Signal,
    Whole,
)
from mldebug.across.runs import run_id
from mldebug.folding import fold_ranks, unfold

FRESH = 15.0  # seconds that an announcement holds
KEPT = 3600.0  # seconds that a node which was heard of is remembered
MAX_MEMBERS = 8_192
EACH = 0.02  # seconds between two announcements to one coordinator, which cost it 2 ms each
SLOWEST = 20.0  # seconds between two announcements of one node
MOVES = "the job moves again"
BLAMED = "blamed"  # mldebug.stall.signals.Stage


class Member(NamedTuple):
    """One node that has announced itself. `at`: when."""

    told: Announcement
    address: str  # host of its connection
    at: float


class Call(NamedTuple):
    """A stall to be captured now, on all nodes that have shown ranks of the run."""

    incident: str
    news: RunNews  # as whoever noticed it says it
    noticed_by: str
    members: tuple[Member, ...]


class Stall(msgspec.Struct):
    """One stall of one run and attempt."""

    incident: str
    noticed_by: set[str]
    whole: Whole | None = None
    over: str = ""


class Coordinator:
    """Belongs to one thread."""

    def __init__(self) -> None:
        self._members: dict[str, Member] = {}  # by name of the node
        self._stalls: dict[tuple[RunKey, int], Stall] = {}
        self.refused: dict[str, str] = {}  # address -> why
        self._ended: list[tuple[str, str]] = []

    def hear(self, told: Announcement, address: str, now: float) -> None:
        """Take an announcement; a second node of one name is not believed while the first is there."""
        known = self._members.get(told.node)
        if known and self._is_fresh(known, now) and _another(known, told, address):
            self.refused[address] = f"it calls itself {told.node}, as {known.address} does"
            return
        if known is None and len(self._members) >= MAX_MEMBERS:
            self.refused[address] = f"there are {MAX_MEMBERS:,} nodes already"
            return
        self.refused.pop(address, None)
        self._members[told.node] = Member(told, address, now)

    def due(self, now: float) -> Iterator[Call]:
        """The stalls that nobody has been asked about yet; those that are over are let go."""
        self._forget(now)
        for key, attempt, member, news in self._blamed(now):
            stall = self._stalls.get((key, attempt))
            if stall is not None and not stall.over:
                stall.noticed_by.add(member.told.node)
                if (
                    news.incident
                ):  # there was another coordinator for a while: of two ids the first stays
                    stall.incident = min(stall.incident, news.incident)
                continue
            if not news.incident or (stall and stall.incident == news.incident):
                continue
            self._stalls[key, attempt] = Stall(news.incident, {member.told.node})
            members = tuple(one for one, _ in self._of(key, attempt))
            yield Call(news.incident, news, member.told.node, members)

    def ended(self) -> list[tuple[str, str]]:
        """Stalls that are over since it was asked last: id of the incident, and why."""
        told, self._ended = self._ended, []
        return told

    def named(self, job: str) -> tuple[Call, ...]:
        """The runs of that name, or whose id begins so; as calls without an incident."""
        found: dict[tuple[RunKey, int], tuple[Member, RunNews]] = {}
        for member in self._members.values():
            for news in member.told.runs:
                if job == news.name or run_id(news.key).startswith(job):
                    found.setdefault((news.key, news.attempt), (member, news))
        return tuple(
            Call("", news, member.told.node, tuple(one for one, _ in self._of(*key)))
            for key, (member, news) in found.items()
        )

    def captured(self, news: RunNews, whole: Whole) -> None:
        """What came of a call."""
        stall = self._stalls.get((news.key, news.attempt))
        if stall is not None:
            stall.whole = whole

    def others(self, call: Call, now: float) -> tuple[Member, ...]:
        """Nodes that have announced themselves before, and not since: whoever has the run by now."""
        known = {one.told.node for one in call.members}
        return tuple(
            one
            for name, one in self._members.items()
            if name not in known and not self._is_fresh(one, now)
        )

    def word(self, news: RunNews, node: str, now: float) -> RunWord:
        """What one node is told about one of its runs."""
        others = [
            (one, each)
            for one, each in self._of(news.key, news.attempt)
            if one.told.node != node and self._is_fresh(one, now)
        ]
        stall = self._stalls.get((news.key, news.attempt))
        told = RunWord(key=news.key, signals=tuple(_signals(others, now)))
        if stall is None:
            return told
        whole = stall.whole and msgspec.structs.replace(stall.whole, report=stall.incident)
        return msgspec.structs.replace(told, incident=stall.incident, over=stall.over, whole=whole)

    def heard(self, node: str) -> float | None:
        """When a node was heard of last."""
        known = self._members.get(node)
        return known.at if known else None

    @property
    def patience(self) -> float:
        """Seconds for which an announcement holds."""
        return FRESH + 2 * self.pace

    @property
    def pace(self) -> float:
        """Seconds between two announcements of one node at least."""
        return min(SLOWEST, EACH * len(self._members))

    def fresh(self, now: float) -> tuple[str, ...]:
        """The nodes that announce themselves."""
        return tuple(
            name for name, one in sorted(self._members.items()) if self._is_fresh(one, now)
        )

    def view(self, node: str, peers: Iterable[str], now: float) -> ClusterView:
        """All nodes: who has announced itself, and which of the configured ones never has."""
        found = [
            MemberView(
                node=name, address=one.address, version=one.told.version, seen=round(now - one.at, 1),
                runs=one.told.runs,
            )
            for name, one in sorted(self._members.items())
        ]  # fmt: skip
        known = {*self._members, *(one.address for one in self._members.values())}
        found += [MemberView(node=name) for name in peers if name not in known]
        return ClusterView(
            coordinator=node,
            silent_after=self.patience,
            members=tuple(found),
            refused=dict(self.refused),
        )

    def _is_fresh(self, member: Member, now: float) -> bool:
        return now - member.at < self.patience

    # --- inside ------------------------------------------------------------------------------------

    def _of(self, key: RunKey, attempt: int) -> Iterator[tuple[Member, RunNews]]:
        for name in sorted(self._members):
            member = self._members[name]
            for news in member.told.runs:
                if (news.key, news.attempt) == (key, attempt):
                    yield member, news

    def _blamed(self, now: float) -> Iterator[tuple[RunKey, int, Member, RunNews]]:
        for name in sorted(self._members):
            member = self._members[name]
            for news in member.told.runs if self._is_fresh(member, now) else ():
                if news.stage == BLAMED:
                    yield news.key, news.attempt, member, news

    def _forget(self, now: float) -> None:
        self._members = {n: one for n, one in self._members.items() if now - one.at < KEPT}
        for (key, attempt), stall in self._stalls.items():
            fresh = {
                one.told.node: news
                for one, news in self._of(key, attempt)
                if self._is_fresh(one, now)
            }
            noticed = [news for name, news in fresh.items() if name in stall.noticed_by]
            if stall.over:
                continue
            if noticed and all(news.stage != BLAMED for news in noticed):
                stall.over = MOVES
            elif not fresh:
                stall.over = "no node shows the job any more"
            if stall.over:
                self._ended.append((stall.incident, stall.over))
        here = {(key, attempt) for key, attempt in self._stalls if any(self._of(key, attempt))}
        self._stalls = {each: stall for each, stall in self._stalls.items() if each in here}


def _another(known: Member, told: Announcement, address: str) -> bool:
    """Not the same agent, nor one that was started in its place."""
    return known.told.agent != told.agent and known.address != address


def _signals(others: list[tuple[Member, RunNews]], now: float) -> Iterator[Signal]:
    """Of each kind those of the first node that has it: two nodes may count differently."""
    seen: set[str] = set()
    for member, news in others:
        for signal in news.signals:
            if signal.kind not in seen:
                seen.add(signal.kind)
                age = max(0.0, signal.age) + now - member.at
                yield msgspec.structs.replace(signal, age=age)


def ranks_of(members: Iterable[Member], key: RunKey) -> str:
    """The ranks that these nodes have shown, folded."""
    shown = (news.ranks for one in members for news in one.told.runs if news.key == key)
    return fold_ranks(rank for text in shown if text for rank in unfold(text))
