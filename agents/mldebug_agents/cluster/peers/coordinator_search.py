"""Finds the coordinating agent: the first of the candidates that answers and has the key. For the thread that announces.

Where no peers are configured, the candidates are the nodes of the run's scheduler in their order, then its master. A job can set
these names, so they are only addresses at which the key has to be proved.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from mldebug.cluster.messages import MAX_WELCOME, Announcement, Welcome, believed_welcome, read
from mldebug.cluster.run_identity import is_loopback
from mldebug.cluster.source_shares import MAX_PEERS
from mldebug.core.errors import MldebugError, UsageError
from mldebug.core.model import Job
from mldebug.core.ranksets import unfold_nodes
from mldebug_agents.cluster.peers.net.client import Peer, PeerClient
from mldebug_agents.cluster.peers.net.errors import SilentError
from mldebug_agents.cluster.peers.openapi import ANNOUNCE

MAX_HOST = 253  # characters of a name
MAX_LISTED = 2048  # nodes that are asked who coordinates; of more, peers are to be configured
ANSWER = 5.0  # seconds
AGAIN, SELDOM = 5.0, 60.0  # seconds until one that did not answer is asked again: doubled each time
AT_ONCE = 8  # candidates asked at the same time
LONGEST = 20.0  # seconds, after which no others are asked in one round


def candidates(job: Job, port: int) -> tuple[Peer, ...]:
    """Addresses of agents that may coordinate a job, in an order that is the same on all its nodes; empty for a job whose ranks
    are all on this node. `port`: the port of all agents.
    """
    if job.world_size <= len(job.ranks) + len(job.lost):
        return ()
    hosts = dict.fromkeys((*listed(job.node_list, MAX_LISTED), *_master(job)))
    return tuple(Peer(host, port) for host in hosts)


def listed(text: str, most: int = MAX_PEERS) -> tuple[str, ...]:
    """The nodes in a scheduler's node list (a job can set this text); empty where it cannot be parsed, or has more than `most`
    nodes.
    """
    try:
        return unfold_nodes(text, groups=False, most=most) if text else ()
    except UsageError:
        return ()


def _master(job: Job) -> tuple[str, ...]:
    master = next((rank.master for rank in job.ranks if rank.master), "")
    master = job.waits.endpoint if job.waits else master
    host = master.rpartition(":")[0].strip("[]")
    usable = host and len(host) <= MAX_HOST and not is_loopback(master)
    return (host,) if usable else ()


class FoundCoordinator(NamedTuple):
    """The agent that coordinates, its answer to our announcement, and why earlier candidates do not coordinate."""

    peer: Peer
    welcome: Welcome
    passed: tuple[str, ...] = ()  # why none of those before him does


class CoordinatorSearch:
    """Finds the coordinator among `candidates`, in their order; this agent may be one of them.

    The last coordinator gets each announcement, and so do those before it that may be back; only where nobody answers are
    the others tried, the first alone and then `AT_ONCE` at a time.
    """

    def __init__(
        self,
        client: PeerClient,
        candidates: Sequence[Peer],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._candidates = tuple(candidates)
        self._clock = clock
        self._not_before: dict[Peer, float] = {}
        self._failed: dict[Peer, int] = {}  # times in a row
        self._last: Peer | None = None

    def announce(self, announcement: Announcement) -> FoundCoordinator:
        """Send an announcement to the first candidate that coordinates. Raises SilentError, with up to three reasons, where
        none does.
        """
        body = msgspec.json.encode(announcement)
        why: list[str] = []
        until = self._clock() + LONGEST
        for some in self._groups():
            for candidate, answer in self._ask(some, body):
                if isinstance(answer, Welcome):
                    self._last = candidate
                    return self._led(body, FoundCoordinator(candidate, answer, tuple(why)))
                why.append(f"{candidate.host}: {answer.message}")
            if self._clock() > until:
                break
        words = "; ".join(why[:3]) or "all are given some seconds"
        raise SilentError(f"no other agent coordinates: {words}")

    def _led(self, body: bytes, found: FoundCoordinator) -> FoundCoordinator:
        """The agent that the one that answered follows, where it answers this agent, too; else the one that answered."""
        welcome = found.welcome
        leader = Peer(welcome.follows, welcome.port)
        if not welcome.follows or not self._ready((leader,)):
            return found
        answer = self._answer(leader, body)
        if isinstance(answer, Welcome) and not answer.follows:
            return FoundCoordinator(leader, answer, found.passed)
        return found

    def _groups(self) -> Iterator[tuple[Peer, ...]]:
        """Who is asked at once, one group after the other; who has just failed is in none."""
        last = self._last
        if last is not None:
            before = self._ready(self._candidates[: self._candidates.index(last)])
            yield (*before[:AT_ONCE], last)
        else:
            yield self._ready(self._candidates)[:1]
        self._last = None
        while ready := self._ready(self._candidates):  # who has failed least, first
            yield tuple(sorted(ready, key=lambda one: self._failed.get(one, 0)))[:AT_ONCE]

    def _ready(self, some: Sequence[Peer]) -> tuple[Peer, ...]:
        now = self._clock()
        return tuple(one for one in some if self._not_before.get(one, -math.inf) <= now)

    def _ask(
        self, some: Sequence[Peer], body: bytes
    ) -> Sequence[tuple[Peer, Welcome | MldebugError]]:
        if len(some) == 1:
            return [(some[0], self._answer(some[0], body))]
        with ThreadPoolExecutor(max(1, len(some))) as pool:
            return list(zip(some, pool.map(lambda one: self._answer(one, body), some), strict=True))

    def _answer(self, candidate: Peer, body: bytes) -> Welcome | MldebugError:
        try:
            data = self._client.ask(candidate, ANNOUNCE, body, timeout=ANSWER, most=MAX_WELCOME)
            welcome = believed_welcome(read(data, Welcome))
        except MldebugError as error:
            times = self._failed[candidate] = self._failed.get(candidate, 0) + 1
            pause = min(SELDOM, AGAIN * 2 ** min(times - 1, 10))
            self._not_before[candidate] = self._clock() + pause
            return error
        self._failed.pop(candidate, None)
        self._not_before.pop(candidate, None)
        return welcome
