"""What a coordinator remembers of other nodes: which have announced themselves, with which runs, and what is to be captured.

Pure.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from mldebug.cluster.messages import (
    AnnouncedExit,
    Announcement,
    ClusterView,
    PeerView,
    RunNews,
    RunWord,
    Signal,
)
from mldebug.cluster.run_identity import RunKey, is_of
from mldebug.core.model import Gap
from mldebug.core.ranksets import count_ranks, join_intervals

T = TypeVar("T", RunNews, RunWord)


class GroupAnnouncement(NamedTuple):
    """The runs that one node announced in one group of nodes, and when (monotonic seconds)."""

    runs: tuple[RunNews, ...]
    at: float
    size: int = 0  # bytes, as JSON


class KnownPeer(NamedTuple):
    """A node that announces itself, with the runs of all its groups. `at`: when it last did (monotonic seconds)."""

    announcement: Announcement
    address: str  # host of its connection
    at: float
    parts: Mapping[str, GroupAnnouncement] = {}
    by: str = ""  # the node that speaks for it; "": itself
    via: str = (
        ""  # host of the connection by which it came: of that other node, where one speaks for it
    )


class CaptureCall(NamedTuple):
    """A run that has to be captured now on all nodes that announced ranks of it.

    `incident` is "" where a person asked for it.
    """

    incident: str
    news: RunNews  # as whoever noticed it says it
    noticed_by: str
    peers: tuple[KnownPeer, ...]
    cause: AnnouncedExit | None = None  # ranks have ended badly before: the others wait for those

    @property
    def node_list(self) -> str:
        """The scheduler's node list of the run, from whichever announcement has it (large ones leave it out); "" where none has."""
        news = (run for peer in self.peers for run in peer.announcement.runs)
        lists = (one.node_list for one in (self.news, *news) if one.key == self.news.key)
        return next(filter(None, lists), "")

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Why the scheduler's list of the run's nodes is not known, in the words of the node that noticed the stall; empty where it is known."""
        return () if self.node_list else self.news.gaps


def aged(message: T, seconds: float) -> T:
    """The message with all ages in it increased by `seconds`."""
    signals = tuple(
        msgspec.structs.replace(signal, age=signal.age + seconds, stale=signal.stale + seconds)
        for signal in message.signals
    )
    message = msgspec.structs.replace(message, signals=signals)
    if isinstance(message, RunWord):
        sample, finding = message.sample, message.slowness
        sample = sample and msgspec.structs.replace(sample, begins_in=sample.begins_in - seconds)
        finding = finding and msgspec.structs.replace(finding, age=finding.age + seconds)
        return msgspec.structs.replace(message, sample=sample, slowness=finding)
    samples = message.samples
    samples = samples and msgspec.structs.replace(samples, age=samples.age + seconds)
    return msgspec.structs.replace(message, samples=samples)


def lives(news: RunNews) -> bool:
    """Whether the run still lives on the announcing node: it has ranks there, or the message reports no bad end of it."""
    return bool(news.ranks) or news.end is None


def is_another_agent(known: KnownPeer, announcement: Announcement, address: str) -> bool:
    """Whether an announcement comes from a different agent at a different address.

    A new agent at the same address counts as a restart.
    """
    return known.announcement.agent != announcement.agent and known.address != address


def signals_of(others: list[tuple[KnownPeer, RunNews]], now: float) -> Iterator[Signal]:
    """Yield one progress signal of each kind, from the first node that has it, with its age at `now` (monotonic seconds).

    There is only one of each kind because the counts of different nodes cannot be compared.
    """
    kinds: set[str] = set()
    for peer, news in others:
        for signal in news.signals:
            if signal.kind not in kinds:
                kinds.add(signal.kind)
                since = now - peer.at
                age, silence = max(0.0, signal.age) + since, max(0.0, signal.stale) + since
                yield msgspec.structs.replace(signal, age=age, stale=silence)


def first_of_each_kind(shown: Iterable[tuple[KnownPeer, RunNews]]) -> tuple[str, ...]:
    """Sorted names of the first two nodes that have each kind of signal.

    Two, because a node gets signals of others, so the first needs the second's.
    """
    found: dict[str, list[str]] = {}
    for peer, news in shown:
        for signal in news.signals:
            names = found.setdefault(signal.kind, [])
            if len(names) < 2:
                names.append(peer.announcement.node)
    return tuple(sorted({name for names in found.values() for name in names}))


def shown_ranks(peers: Iterable[KnownPeer], key: RunKey) -> int:
    """How many ranks of the run these nodes have announced."""
    shown = (news.ranks for peer in peers for news in peer.announcement.runs if news.key == key)
    return count_ranks(join_intervals(shown))


def joined(views: Sequence[ClusterView]) -> ClusterView:
    """Merge the views of several coordinators (at least one).

    Where several views have an entry of the same node, the most recent entry is taken, and the runs that only the older
    entries name are added to it.
    """
    if len(views) == 1:
        return views[0]
    by_name: dict[str, PeerView] = {}
    for one in sorted((one for view in views for one in view.peers), key=_how_long_ago):
        first = by_name.setdefault(one.node, one)
        known = {news.key for news in first.runs}
        more = tuple(news for news in one.runs if news.key not in known)
        by_name[one.node] = msgspec.structs.replace(first, runs=(*first.runs, *more))
    return ClusterView(
        coordinator=", ".join(view.coordinator for view in views),
        silent_after=max(view.silent_after for view in views),
        peers=tuple(by_name[name] for name in sorted(by_name)),
        refused={who: why for view in views for who, why in view.refused.items()},
    )


def of_user(view: ClusterView, uid: int | None) -> ClusterView:
    """The part of the view that a user may see: that user's runs, and the nodes that have any, with their GPUs, but not who is on them.

    `uid` None: everything.
    """
    if uid is None:
        return view
    nodes = (
        msgspec.structs.replace(
            one,
            runs=tuple(each for each in one.runs if is_of(each.key, uid)),
            gpus=tuple(msgspec.structs.replace(gpu, user="") for gpu in one.gpus),
        )
        for one in view.peers
    )
    return msgspec.structs.replace(
        view, peers=tuple(node for node in nodes if node.runs), refused={}
    )


def _how_long_ago(one: PeerView) -> float:
    return math.inf if one.seconds_ago is None else one.seconds_ago
