"""What a coordinator remembers of other nodes: who has announced itself, with which runs, and the stalls of those. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from mldebug.cluster.messages import Announcement, End, RunNews, RunWord, Signal, Whole
from mldebug.cluster.run_identity import RunKey
from mldebug.core.model import Gap
from mldebug.core.ranksets import count_ranks, join_intervals

T = TypeVar("T", RunNews, RunWord)


class GroupAnnouncement(NamedTuple):
    """The runs that one node has announced in one group of nodes, and when (monotonic)."""

    runs: tuple[RunNews, ...]
    at: float


class KnownPeer(NamedTuple):
    """One node that has announced itself, with the runs of all groups it belongs to. `at`: when (monotonic)."""

    announcement: Announcement
    address: str  # host of its connection
    at: float
    parts: Mapping[str, GroupAnnouncement] = {}
    by: str = ""  # the node that speaks for it; "": itself


class CaptureCall(NamedTuple):
    """A stall to be captured now, on all nodes that have shown ranks of the run."""

    incident: str
    news: RunNews  # as whoever noticed it says it
    noticed_by: str
    peers: tuple[KnownPeer, ...]
    cause: End | None = None  # ranks have ended badly before: the others wait for those

    @property
    def node_list(self) -> str:
        """The scheduler's list of nodes from any announcement: some had no room for it."""
        news = (one for peer in self.peers for one in peer.announcement.runs)
        lists = (one.node_list for one in (self.news, *news) if one.key == self.news.key)
        return next(filter(None, lists), "")

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The gaps of the run's announcement, where the list of the run's nodes is not known."""
        return () if self.node_list else self.news.gaps


class ClusterStall(msgspec.Struct):
    """One stall of one run and attempt."""

    incident: str
    noticed_by: dict[str, str]  # node -> its agent: one that was started again has noticed nothing
    whole: Whole | None = None
    over: str = ""
    shown_by: set[str] = set()  # nodes that have had the run since
    tries: int = 0  # calls that came to nothing
    again: bool = False  # it is to be called once more
    doubted: float | None = None  # since when nobody who noticed it is left, and nobody else does
    cause: End | None = None


def aged(message: T, seconds: float) -> T:
    """The message with all ages in it increased by `seconds`."""
    signals = tuple(
        msgspec.structs.replace(one, age=one.age + seconds, stale=one.stale + seconds)
        for one in message.signals
    )
    return msgspec.structs.replace(message, signals=signals)


def lives(news: RunNews) -> bool:
    """Whether the run has ranks on the announcing node, and the message is not only about its end."""
    return bool(news.ranks) or news.end is None


def is_another_agent(known: KnownPeer, announcement: Announcement, address: str) -> bool:
    """Whether the announcement is neither from the known agent nor from one that was started in its place at the same address."""
    return known.announcement.agent != announcement.agent and known.address != address


def signals_of(others: list[tuple[KnownPeer, RunNews]], now: float) -> Iterator[Signal]:
    """Of each kind those of the first node that has it: two nodes may count differently."""
    kinds: set[str] = set()
    for peer, news in others:
        for signal in news.signals:
            if signal.kind not in kinds:
                kinds.add(signal.kind)
                since = now - peer.at
                age, silence = max(0.0, signal.age) + since, max(0.0, signal.stale) + since
                yield msgspec.structs.replace(signal, age=age, stale=silence)


def first_of_each_kind(shown: Iterable[tuple[KnownPeer, RunNews]]) -> tuple[str, ...]:
    """The nodes that have each kind of signal first, and second for whoever is the first himself."""
    found: dict[str, list[str]] = {}
    for peer, news in shown:
        for signal in news.signals:
            names = found.setdefault(signal.kind, [])
            if len(names) < 2:
                names.append(peer.announcement.node)
    return tuple(sorted({name for names in found.values() for name in names}))


def shown_ranks(peers: Iterable[KnownPeer], key: RunKey) -> int:
    """How many ranks these nodes have shown."""
    shown = (news.ranks for one in peers for news in one.announcement.runs if news.key == key)
    return count_ranks(join_intervals(shown))
