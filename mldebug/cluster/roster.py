"""The coordinator's list of nodes: which have announced themselves, with which runs, and when.

Pure.

`now` is monotonic seconds of this node.
"""

import itertools
from collections.abc import Collection, Iterable, Iterator

import msgspec

from mldebug.cluster.known_peers import (
    CaptureCall,
    GroupAnnouncement,
    KnownPeer,
    aged,
    is_another_agent,
    lives,
)
from mldebug.cluster.messages import (
    MAX_RELAYED,
    MAX_RUNS,
    Announcement,
    ClusterView,
    PeerView,
    Relayed,
    RunNews,
)
from mldebug.cluster.rank_claims import RankClaims
from mldebug.cluster.run_identity import RunKey
from mldebug.cluster.source_shares import RUN_BYTES, SourceShares, source_of
from mldebug.core.ranksets import shorten_ranks

FRESH = 15.0  # seconds that an announcement holds
DIRECT = 5.0  # seconds in which who speaks for himself is believed before who speaks for him
KEPT = 3600.0  # seconds that a node which was heard of is remembered
MAX_CIRCLES = 64  # of one node
EACH = 0.02  # seconds between two announcements to one coordinator, which cost it 2 ms each
SLOWEST = 20.0  # seconds between two announcements of one node


class PeerRoster:
    """The nodes that have announced themselves, with their runs. For one thread only."""

    def __init__(self) -> None:
        self.refused: dict[str, str] = {}  # address -> why
        self._peers: dict[str, KnownPeer] = {}  # by name of the node
        self._shares = SourceShares()
        self._claims: dict[tuple[RunKey, int], RankClaims] = {}
        self._shown: dict[tuple[RunKey, int], dict[str, RunNews]] = {}  # node -> its part of a run
        self._bad: dict[tuple[RunKey, int], set[str]] = {}  # nodes on which ranks ended badly

    def update(self, announcement: Announcement, address: str, now: float) -> None:
        """Store a node's announcement, which came from `address`.

        Another agent with the same node name is refused while the known one's announcement is still valid. `now`: monotonic
        seconds.
        """
        known = self._peers.get(announcement.node)
        if known and self._is_fresh(known, now) and is_another_agent(known, announcement, address):
            self.refused[address] = f"it calls itself {announcement.node}, as {known.address} does"
            return
        self.refused.pop(address, None)
        announcement = self._uncontested(announcement, address, now)
        new = self._with_parts(KnownPeer(announcement, address, now, via=address), known)
        if not self._put(announcement.node, new):
            self.refused[address] = "it announces more than there is room for"

    def _uncontested(self, announcement: Announcement, address: str, now: float) -> Announcement:
        """The announcement without runs of which it shows a rank that another node, lately heard of, has shown before, and without
        those of which other nodes show all ranks.
        """
        kept = []
        for news in announcement.runs:
            run = news.name or "a run"
            if owner := self._owner(announcement.node, news, now):
                self.refused[address] = (
                    f"it shows ranks {shorten_ranks(news.ranks)} of {run}, as {owner} does"
                )
            elif owner := self._whole_owner(announcement.node, news, now):
                if (
                    news.ranks
                ):  # else it is an end of an earlier start, which everybody may still tell
                    self.refused[address] = (
                        f"it shows ranks {shorten_ranks(news.ranks)} of {run}, of which {owner} and others have all"
                    )
            else:
                kept.append(news)
        return msgspec.structs.replace(announcement, runs=tuple(kept))

    def _owner(self, node: str, news: RunNews, now: float) -> str:
        """The node that has shown one of these ranks before and is still heard of; "" for none."""
        claims = self._claims.get((news.key, news.attempt))
        while claims is not None and (owner := claims.owner(node, news.ranks)):
            if self._is_fresh(self._peers[owner], now):
                return owner
            claims.remove(owner)
        return ""

    def _whole_owner(self, node: str, news: RunNews, now: float) -> str:
        """One of the other nodes that together show all ranks of the run, where they are heard of and agree how many those are;
        "" where a rank is left that this node may have.
        """
        claims = self._claims.get((news.key, news.attempt))
        if claims is None or claims.has(node):
            return ""
        shown = self._shown.get((news.key, news.attempt), {})
        world = min((one.world_size for one in shown.values() if one.ranks), default=0)
        if not world or claims.count != world:
            return ""
        holders = [name for name, one in shown.items() if one.ranks and name != node]
        agree = all(shown[name].world_size == world for name in holders)
        fresh = agree and all(self._is_fresh(self._peers[name], now) for name in holders)
        return min(holders) if fresh else ""

    def _with_parts(self, new: KnownPeer, known: KnownPeer | None) -> KnownPeer:
        """The peer with what it announced in other groups, as long as those announcements hold."""
        same = known is not None and known.announcement.agent == new.announcement.agent
        before = dict(known.parts) if known and same else {}
        before.pop(new.announcement.circle, None)
        patience = FRESH + 2 * self.pace_of(new.via)
        parts = {n: one for n, one in before.items() if new.at - one.at < patience}
        shown = {news.key for news in new.announcement.runs}
        others = tuple(
            aged(news, new.at - one.at)
            for one in parts.values()
            for news in one.runs
            if news.key not in shown
        )
        merged = msgspec.structs.replace(
            new.announcement, runs=(*new.announcement.runs, *others)[:MAX_RUNS]
        )
        runs = new.announcement.runs
        parts[new.announcement.circle] = GroupAnnouncement(runs, new.at, _size(runs))
        return new._replace(announcement=merged, parts=dict(list(parts.items())[-MAX_CIRCLES:]))

    def update_relayed(self, announcement: Announcement, now: float, via: str = "") -> None:
        """Store the announcements of other nodes that one node (at the address `via`) relays.

        Left out are nodes that announced themselves directly a short time ago. Refused is an announcement that names another
        agent for a node than the one that announced itself there lately. `now`: monotonic seconds.
        """
        for one in announcement.relayed:
            known = self._peers.get(one.node)
            if known and not known.by and now - known.at < DIRECT + self.pace_of(known.via):
                continue
            if known and self._is_fresh(known, now) and known.announcement.agent != one.agent:
                self.refused[via] = f"it speaks for {one.node}, and for another agent than is there"
                continue
            own = Announcement(
                node=one.node,
                agent=one.agent,
                port=one.port,
                circle=announcement.circle,
                runs=one.runs,
                gpus=one.gpus,
                version=announcement.version,
            )
            own = self._uncontested(own, via, now)
            at, by = now - one.age, announcement.node
            self._put(one.node, KnownPeer(own, one.address, at, by=by, via=via))

    def relayed(self, group: str, but: str, now: float) -> tuple[Relayed, ...]:
        """Valid announcements that nodes of this group made directly to this agent, to be relayed to the group's
        coordinator: at most `MAX_RELAYED`.

        `but`: a node to leave out. `now`: monotonic seconds.
        """
        fresh = (
            (one, one.parts[group])
            for name, one in sorted(self._peers.items())
            if name != but and not one.by and group in one.parts and self._is_fresh(one, now)
        )
        return tuple(
            Relayed(
                node=one.announcement.node,
                agent=one.announcement.agent,
                port=one.announcement.port,
                address=one.address,
                runs=part.runs,
                gpus=one.announcement.gpus,
                age=max(0.0, now - part.at),
            )
            for one, part in itertools.islice(fresh, MAX_RELAYED)
        )

    def others(self, call: CaptureCall, now: float) -> tuple[KnownPeer, ...]:
        """Return the nodes whose last announcement is out of date and that `call` does not name: by now they may have ranks
        of the run that is to be captured. `now`: monotonic seconds.
        """
        known = {peer.announcement.node for peer in call.peers}
        return tuple(
            one
            for name, one in self._peers.items()
            if name not in known and not self._is_fresh(one, now)
        )

    def idle(self, call: CaptureCall, hosts: Collection[str], now: float) -> tuple[KnownPeer, ...]:
        """Nodes among `hosts` (compared by short name) with a valid announcement and no rank of this run. `now`: monotonic
        seconds.
        """
        known = {peer.announcement.node for peer in call.peers}
        short = {host.partition(".")[0] for host in hosts}
        return tuple(
            one
            for name, one in self._peers.items()
            if name not in known and name.partition(".")[0] in short and self._is_fresh(one, now)
        )

    def last_heard(self, node: str) -> float | None:
        """When a node last announced itself (monotonic seconds); None: never."""
        known = self._peers.get(node)
        return known.at if known else None

    def is_relayed(self, node: str) -> bool:
        """Whether another node relays this node's announcements."""
        known = self._peers.get(node)
        return known is not None and bool(known.by)

    @property
    def patience(self) -> float:
        """For how many seconds an announcement is valid."""
        return FRESH + 2 * self.pace

    @property
    def pace(self) -> float:
        """The least seconds between two announcements of a node at the address that has most nodes: these announce most rarely."""
        return min(SLOWEST, EACH * self._shares.sources * self._shares.most())

    def nodes_at(self, source: str) -> int:
        """How many nodes have announced themselves from a source (see `source_of`), by way of others included. From any thread."""
        return self._shares.count(source)

    def pace_of(self, address: str) -> float:
        """The least seconds between two announcements of a node at this address. They grow with the number of addresses, and with the
        number of nodes at this one.
        """
        return min(SLOWEST, EACH * self._shares.sources * self._shares.count(source_of(address)))

    def fresh(self, now: float) -> tuple[str, ...]:
        """The names of nodes whose last announcement is still valid. `now`: monotonic seconds."""
        return tuple(name for name, one in sorted(self._peers.items()) if self._is_fresh(one, now))

    def view(self, node: str, peers: Iterable[str], now: float) -> ClusterView:
        """All nodes for `mldebug status --cluster`: those that announced themselves, and configured ones (`peers`) that
        never did. `node`: the coordinator's name. `now`: monotonic seconds.
        """
        found = [
            PeerView(
                node=name, address=one.address, version=one.announcement.version, seconds_ago=round(now - one.at, 1),
                runs=one.announcement.runs, gpus=one.announcement.gpus,
            )
            for name, one in sorted(self._peers.items())
        ]  # fmt: skip
        known = {*self._peers, *(peer.address for peer in self._peers.values())}
        known |= {name.partition(".")[0] for name in self._peers}
        found += [
            PeerView(node=name)
            for name in peers
            if name not in known and (name[:1].isdecimal() or name.partition(".")[0] not in known)
        ]
        return ClusterView(
            coordinator=node,
            silent_after=self.patience,
            peers=tuple(found),
            refused=dict(self.refused),
        )

    def _is_fresh(self, peer: KnownPeer, now: float) -> bool:
        return now - peer.at < FRESH + 2 * self.pace_of(peer.via)

    def _put(self, node: str, new: KnownPeer | None) -> bool:
        """Know a node anew, or no more. Returns whether it is known then: its address may have announced too much."""
        known = self._peers.pop(node, None)
        for news in known.announcement.runs if known else ():
            run = (news.key, news.attempt)
            self._shown.get(run, {}).pop(node, None)
            self._bad.get(run, set()).discard(node)
            if not self._shown.get(run):
                self._shown.pop(run, None)
                self._bad.pop(run, None)
        self._claim(node, known, new)
        if new is None:
            self._shares.remove(node)
            return False
        self._peers[node] = new
        for news in new.announcement.runs:
            run = (news.key, news.attempt)
            self._shown.setdefault(run, {})[node] = news
            if news.end is not None:
                self._bad.setdefault(run, set()).add(node)
        size = _size(new.announcement.runs) + sum(part.size for part in new.parts.values())
        surplus = self._shares.add(node, source_of(new.via), size)
        for name in surplus:
            self._put(name, None)
        return node not in surplus

    def _claim(self, node: str, known: KnownPeer | None, new: KnownPeer | None) -> None:
        """Note which ranks the node has now."""
        now = {(n.key, n.attempt): n.ranks for n in new.announcement.runs} if new else {}
        for news in known.announcement.runs if known else ():
            run = (news.key, news.attempt)
            if not now.get(run) and (claims := self._claims.get(run)):
                claims.remove(node)
                if not claims:
                    del self._claims[run]
        for run, ranks in now.items():
            if ranks:
                self._claims.setdefault(run, RankClaims()).put(node, ranks)

    def shown_runs(
        self, now: float
    ) -> Iterator[tuple[tuple[RunKey, int], list[tuple[KnownPeer, RunNews]]]]:
        """Each attempt of a run, with its nodes; only attempts whose nodes have all announced themselves lately. `now`: monotonic seconds."""
        for run in self._shown:
            shown = list(self._of(*run))
            if shown and all(self._is_fresh(one, now) for one, _ in shown):
                yield run, shown

    def _forget_old(self, now: float) -> None:
        for name in [n for n, one in self._peers.items() if now - one.at >= KEPT]:
            self._put(name, None)

    def _all(self, key: RunKey, attempt: int) -> Iterator[tuple[KnownPeer, RunNews]]:
        """Every node that has shown the run, or its end."""
        for name, news in sorted(self._shown.get((key, attempt), {}).items(), key=_name):
            yield self._peers[name], news

    def _of(self, key: RunKey, attempt: int) -> Iterator[tuple[KnownPeer, RunNews]]:
        """Those where ranks of it live."""
        return (pair for pair in self._all(key, attempt) if lives(pair[1]))


def _size(runs: tuple[RunNews, ...]) -> int:
    """Bytes of memory that the runs take, at least."""
    return max(len(msgspec.json.encode(runs)), RUN_BYTES * len(runs))


def _name(shown: tuple[str, RunNews]) -> str:
    return shown[0]
