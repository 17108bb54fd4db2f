"""Groups of nodes with one coordinator each: one group of the configured peers, or one for the nodes of each run.

Belongs to the main loop's thread; asking the candidates is a worker's.
"""

import logging
import queue
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from mldebug.cluster.messages import Announcement, Welcome
from mldebug.cluster.roster import SLOWEST
from mldebug.cluster.run_identity import job_key, run_id
from mldebug.core.errors import MldebugError
from mldebug.core.model import Job
from mldebug.jobs.owners import Owner, in_turns, owner_of
from mldebug_agents.cluster.peers.coordinator_search import (
    CoordinatorSearch,
    FoundCoordinator,
    candidates,
)
from mldebug_agents.cluster.peers.net.client import Peer, PeerClient
from mldebug_agents.system.workers import Result, Worker
from mldebug_agents.watch.runs import Run

log = logging.getLogger("mldebug")

ALONE = 10.0  # seconds without a coordinator, after which a node is alone
ANNOUNCE_DEADLINE = 60.0
AT_ONCE = 4  # circles that are told at the same time
MOST = 64  # circles of one node: where there are more, each owner has as many as any other who wants them
ROOT: Owner = (0, "")
ALL = ""  # the circle of all configured peers


def leader_words(welcome: Welcome) -> str:
    """The words for which agent coordinates: "node1 coordinates", or "node1 coordinates, by way of node2" where that node
    passes on.
    """
    by = f", by way of {welcome.node}" if welcome.follows else ""
    return f"{welcome.follows or welcome.node} coordinates{by}"


class CoordinatedRun(NamedTuple):
    """A run that has a coordinator: the run's `id` and `name` as users know them, and `by`, the coordinating agent's address."""

    id: str
    name: str
    by: Peer


class CoordinatorGroup:
    """Nodes with one coordinator among them. `peers`: candidates for it. `owner`: of its runs; root for the group of all configured peers. Times are monotonic seconds."""

    def __init__(
        self,
        name: str,
        peers: tuple[Peer, ...],
        client: PeerClient,
        now: float,
        owner: Owner = ROOT,
    ) -> None:
        self.name, self.candidates, self.owner = name, peers, owner
        self.seeker = CoordinatorSearch(client, peers)
        self.found: FoundCoordinator | None = None  # who coordinates; None: nobody answers
        self.trouble = ""
        self.due, self.busy = now, False
        self.heard_at = now  # when somebody coordinated last
        self._passed: tuple[str, ...] = ()
        self._left_out = 0

    def led_by(self, agent: str) -> bool:
        """Whether the agent with this id coordinates the group."""
        return self.found is not None and self.found.welcome.agent == agent

    def welcomed(self, found: FoundCoordinator, now: float, interval: float, us: str) -> None:
        """Note that a coordinator, perhaps this agent itself, answered. `found`: that agent and its answer. `interval`:
        seconds between two announcements. `us`: this agent's id. `now`: monotonic seconds.
        """
        if not self.led_by(found.welcome.agent):
            ours = found.welcome.agent == us
            log.info("%s", "this agent coordinates" if ours else leader_words(found.welcome))
        self.found, self.heard_at, self.trouble = found, now, ""
        if self.due > now:  # or there is news already
            self.due = max(self.due, now + min(found.welcome.pace, SLOWEST) - interval)
        for why in set(found.passed) - set(self._passed):
            log.warning("no answer of %s", why)
        self._passed = found.passed or self._passed

    def take_turn(self, now: float, interval: float) -> bool:
        """Whether the runs must be announced to the coordinator now; if so, the next time is `interval` seconds later.
        `now`: monotonic seconds.
        """
        if now < self.due or self.busy:
            return False
        self.due = now + interval
        return True

    def hurry(self) -> None:
        """Announce the runs at the next turn of the loop."""
        self.due = 0.0

    def answered(self) -> None:
        """Note that the last announcement has come back, with an answer or an error."""
        self.busy = False

    def left_out(self, runs: int) -> None:
        """Log that an announcement had no room for this many runs, if that is more than ever before."""
        if runs > self._left_out:
            self._left_out = runs
            log.warning("%d runs of this node are not announced: there are too many", runs)

    def no_answer(self, error: Exception, now: float) -> None:
        """Note that no candidate answered. After about `ALONE` seconds without an answer the group has no coordinator.
        `now`: monotonic seconds.
        """
        words = (
            error.message if isinstance(error, MldebugError) else f"{type(error).__name__}: {error}"
        )
        if words != self.trouble and "given some seconds" not in words:
            log.warning("%s", words)
            self.trouble = words
        if now - self.heard_at > ALONE + (self.found.welcome.pace if self.found else 0.0):
            self.found = None


class CoordinatorGroups:
    """All groups of this node. `peers`: those of the configuration, which form one group; where there are none, the nodes of each run form one. `port`: of agents found by a run's nodes."""

    def __init__(
        self,
        client: PeerClient,
        peers: tuple[Peer, ...],
        port: int,
        inbox: "queue.SimpleQueue[Result | None]",
        now: float,
    ) -> None:
        self._client, self._port = client, port
        self._all = CoordinatorGroup(ALL, peers, client, now) if peers else None
        self._groups: dict[str, CoordinatorGroup] = {ALL: self._all} if self._all else {}
        self._of: dict[str, str] = {}  # job -> circle
        self._known: dict[
            str, tuple[object, str]
        ] = {}  # job -> what it has said of its nodes, and the circle of that
        self._alone = 0  # runs without a circle
        self.worker = Worker(
            "members", self._announce, inbox, ANNOUNCE_DEADLINE, AT_ONCE, owner_key=self._owner
        )

    def __iter__(self) -> Iterator[CoordinatorGroup]:
        return iter(tuple(self._groups.values()))

    def named(self, name: str) -> CoordinatorGroup | None:
        """The group of this name; None where it no longer exists."""
        return self._groups.get(name)

    def of(self, run: Run | None) -> CoordinatorGroup | None:
        """The group of this run; None where it has none. `run` None (no rank on this node): the group of the configured
        peers, if any.
        """
        if run is None or self._all is not None:
            return self._all
        return self._groups.get(self._of.get(run.job.id, "none"))

    def coordinated_runs(self, runs: Mapping[str, Run], node: str) -> Iterator[CoordinatedRun]:
        """The runs that have a coordinator, each with it. `node`: this node's name."""
        for run in runs.values():
            group = self.of(run)
            if group is not None and group.found is not None and run.job.ranks:
                yield CoordinatedRun(run_id(job_key(run.job, node)), run.job.name, group.found.peer)

    def sort(self, runs: Mapping[str, Run], now: float) -> None:
        """Put each of these runs into its group, make groups that are missing, and drop groups that have no run left. Does
        nothing where peers are configured. `now`: monotonic seconds.
        """
        if self._all is not None:
            return
        jobs = [run.job for run in runs.values()]
        fresh: dict[str, tuple[Peer, ...]] = {}
        self._known = {job.id: self._name(job, fresh) for job in jobs}
        of = {name: job for job in jobs if (name := self._known[job.id][1])}
        kept = dict(list(self._shared_out(jobs).items())[:MOST])
        for name in (one for one in kept if one not in self._groups):
            peers = fresh.get(name) or candidates(of[name], self._port)
            self._groups[name] = CoordinatorGroup(name, peers, self._client, now)
        self._groups = {name: self._groups[name] for name in kept}
        for name, owner in kept.items():
            self._groups[name].owner = owner
        self._of = {job_id: name for job_id, (_, name) in self._known.items() if name in kept}
        alone = sum(bool(name) for _, name in self._known.values()) - len(self._of)
        if alone > self._alone:
            log.warning("%d runs are watched without their other nodes: there are too many", alone)
        self._alone = alone

    def _shared_out(self, jobs: Sequence[Job]) -> dict[str, Owner]:
        """The names of the groups of these runs, in the order in which they are kept where there are too many, each with the owner whose
        it counts as. Of several owners with runs in one group (root of containers on the same nodes) each may keep it.
        """
        wanted = dict.fromkeys(
            (name, owner_of(job)) for job in jobs if (name := self._known[job.id][1])
        )
        here = sorted(wanted, key=lambda one: one[0] not in self._groups)
        kept: dict[str, Owner] = {}
        for name, owner in in_turns(here, lambda one: one[1]):
            kept.setdefault(name, owner)
        return kept

    def _name(self, job: Job, fresh: dict[str, tuple[Peer, ...]]) -> tuple[object, str]:
        """(facts, name of the group) of a run. Unchanged facts are not looked at again; peers of new groups go into `fresh`."""
        facts = (
            job.uid,
            job.node_list,
            job.world_size,
            len(job.ranks),
            len(job.lost),
            job.ranks[:1],
            job.waits.endpoint if job.waits else "",
        )
        known = self._known.get(job.id)
        if known is not None and known[0] == facts:
            return known
        if not (peers := candidates(job, self._port)):
            return facts, ""
        name = run_id((f"uid {job.uid}", *(f"{peer.host} {peer.port}" for peer in peers)))
        fresh[name] = peers
        return facts, name

    def announce(self, group: CoordinatorGroup, announcement: Announcement) -> None:
        """Send an announcement to the group's coordinator from a worker thread; the answer comes into the main loop's inbox."""
        group.busy = self.worker.order(announcement)

    def _owner(self, announcement: Announcement) -> Owner:
        group = self._groups.get(announcement.circle)
        return group.owner if group is not None else ROOT

    def _announce(self, announcement: Announcement) -> FoundCoordinator:
        """In the worker."""
        group = self._groups.get(announcement.circle)
        if group is None:
            raise MldebugError("the run is gone")
        return group.seeker.announce(announcement)
