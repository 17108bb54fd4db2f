"""Sizes of the configured directories, for the storage monitor.

A child process counts the trees. The agent never waits for it, and gives up a child that does not answer.

A tree that hangs is not touched again while that child lives, not even by the next agent, because the child is recorded as left
over. All other trees go on in a new child.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import msgspec

from mldebug.core.model import Gap, Job
from mldebug.storage.dir_sizes import HOWS, STUCK, DirSize, dir_size_lines
from mldebug.storage.filesystems.state import Measure, Row, StorageAlert
from mldebug.storage.filesystems.visibility import UIDS, uids_cell
from mldebug_agents.storage.dir_sizes.learned import (
    LearnedFolder,
    learned_folders,
    request_for,
)
from mldebug_agents.storage.dir_sizes.messages import (
    MAX_BODY,
    NAME,
    DirSizeRequest,
    DirSizeRequests,
    DirSizeUpdate,
)
from mldebug_agents.system.child.leftovers import Leftover
from mldebug_agents.system.child.link import ChildLink, WorkerStarter
from mldebug_agents.system.context import Context
from mldebug_agents.system.spawn import ForkedWorker

log = logging.getLogger("mldebug")

PATIENCE = 30.0  # seconds for one piece of work, which takes a quarter of one
AGAIN = 60.0  # seconds until a child that died is started again


class DirSizeStarter(WorkerStarter, Protocol):
    """The part of a `Spawner` that starts the child and gives it up."""

    @property
    def leftovers(self) -> tuple[Leftover, ...]:
        """All children that are stuck in the kernel."""
        ...

    def abandon(self, worker: ForkedWorker, words: str) -> None:
        """Give up a child that does not answer, and record it as left over. `words`: what it was doing."""
        ...


class DirSizeClient:
    """Keeps the child that counts directories. For the main loop's thread only. `clock` returns seconds; `patience`: seconds
    without a message after which a child that works on a tree is taken to be hung.
    """

    def __init__(
        self,
        starter: DirSizeStarter,
        orders: Sequence[DirSizeRequest],
        clock: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE,
    ) -> None:
        self._starter = starter
        self._orders = tuple(orders)
        self._clock = clock
        self._patience = patience
        self._worker: ForkedWorker | None = None
        self._link: ChildLink[DirSizeUpdate] | None = None
        self._states: dict[str, DirSize] = {}
        self._stuck: dict[str, float] = {}  # path -> unix time
        self._working: tuple[str, float] | None = None  # tree, and since when
        self._not_before = 0.0

    @property
    def states(self) -> tuple[DirSize, ...]:
        """The size of each configured directory as far as it is known, in the order of the configuration."""
        return tuple(self._state(order.path) for order in self._orders)

    def count_only(self, orders: Sequence[DirSizeRequest]) -> None:
        """Count these directories from now on, and stop counting all others."""
        if tuple(orders) == self._orders:
            return
        self._orders = tuple(orders)
        paths = {order.path for order in orders}
        self._states = {path: one for path, one in self._states.items() if path in paths}
        if not orders or self._link is None:
            self.close()
            return
        try:
            self._send(self._link)
        except OSError:  # it is gone, or works on a tree that hangs and reads nothing
            self.close()

    def close(self) -> None:
        """End the child process that counts directories."""
        if self._worker is not None:
            self._worker.kill()
        self._worker = self._link = self._working = None

    def tick(self) -> None:
        """Handle the child's messages; start the child where there is none, give it up where it hangs. Never waits."""
        self._forgive()
        if self._worker is None:
            self._start()
        if self._worker is not None:
            self._take_updates()
        if self._working and self._clock() - self._working[1] > self._patience:
            self._let_go(self._working[0])

    def _send(self, link: ChildLink[DirSizeUpdate]) -> None:
        wanted = tuple(order for order in self._orders if order.path not in self._stuck)
        link.send(DirSizeRequests(orders=wanted))

    def _start(self) -> None:
        kept = [order for order in self._orders if order.path not in self._stuck]
        if not kept or self._clock() < self._not_before:
            return
        self._not_before = self._clock() + AGAIN
        try:
            worker = self._worker = self._starter.fork_worker(NAME)
            decoder = msgspec.msgpack.Decoder(DirSizeUpdate)
            self._link = ChildLink(worker.socket, decoder, max_body=MAX_BODY)
            self._send(self._link)
            worker.socket.setblocking(False)
        except OSError as error:
            log.warning("trees: nobody counts them: %s", error)
            self.close()
            return
        self._working = (kept[0].path, self._clock())

    def _take_updates(self) -> None:
        try:
            for update in self._link.arrived() if self._link else ():
                self._on_message(update)
        except OSError as error:
            log.warning(
                "trees: the child that counts them is gone, and is started again: %s", error
            )
            self._states = {}
            self.close()

    def _on_message(self, update: DirSizeUpdate) -> None:
        if update.state is None:
            self._working = (update.path, self._clock())
        else:
            self._working = None
            if any(order.path == update.path for order in self._orders):
                self._states[update.path] = update.state

    def _let_go(self, path: str) -> None:
        log.warning("trees: %s does not answer: it is left alone until it does", path)
        if self._worker is not None:
            self._starter.abandon(self._worker, _words(path))
        self._worker = self._link = self._working = None
        self._states = {}
        self._stuck[path] = time.time()
        self._not_before = 0.0

    def _forgive(self) -> None:
        """Who came back may be asked again; who is stuck since an earlier agent may not."""
        left = {leftover.words for leftover in self._starter.leftovers}
        for order in self._orders:
            if _words(order.path) in left:
                if order.path not in self._stuck:
                    self._stuck[order.path] = time.time()
                    self.close()
            elif self._stuck.pop(order.path, None) is not None:
                self.close()  # the next child keeps it too
                self._not_before = 0.0

    def _state(self, path: str) -> DirSize:
        if path in self._stuck:
            return DirSize(path=path, how=STUCK, since=self._stuck[path])
        return self._states.get(path, DirSize(path=path))


def _words(path: str) -> str:
    """How the child of a tree is told among what is left over."""
    return f"{NAME}: {path}"[:200]


INTERVAL = 2.0  # seconds between two looks at what the child has told
LEARNED_INTERVAL = 10.0
LEARN_EVERY = 30.0  # seconds between two looks at where jobs write
REMEMBERED = 16  # folders of one job

Writes = Mapping[str, Sequence[str]]
"""By job the folders to which it writes, as its ranks see them."""


class DirSizeCollector:
    """The sizes of the directories in the section `trees`, and of those to which jobs write, as metrics, rows and alerts."""

    name = "trees"

    def __init__(self, context: Context, growing: Callable[[], Writes] = dict) -> None:
        """`growing`: the folders in which files of jobs grow now."""
        self._context = context
        self._client = DirSizeClient(context.spawner, ())
        self._growing = growing
        self._writes: Writes = {}
        self._grown: dict[str, tuple[str, ...]] = {}
        self._learned: dict[str, LearnedFolder] = {}  # by path
        self._learn_at = 0.0

    @property
    def interval(self) -> float:
        """Seconds between two looks: those that nobody configured are looked at less often."""
        return INTERVAL if self._context.config.trees.paths else LEARNED_INTERVAL

    def follow(self, writes: Writes) -> None:
        """Watch the folders of checkpoints and logs, too, in place of those given before. Not to be called while `look` runs."""
        self._writes = writes

    def look(self, now: float, jobs: Sequence[Job]) -> None:
        """Read the newest sizes from the child process that counts directories. `now`: unix time."""
        trees, root = self._context.config.trees, self._context.host.root
        if not trees.learn or not jobs:
            self._learned, self._learn_at = {}, 0.0
        elif now >= self._learn_at:
            self._learn_at = now + LEARN_EVERY
            self._learn(jobs)
        configured = [
            DirSizeRequest(
                path=path,
                root=root,
                rescan=trees.rescan,
                verify=trees.verify,
                max_inodes=trees.max_inodes,
            )
            for path in dict.fromkeys(trees.paths)
        ]
        learned = [request_for(one, root, trees.rescan, trees.verify) for one in self._learned.values() if not one.why]  # fmt: skip
        self._client.count_only([*configured, *learned])
        self._client.tick()

    def _learn(self, jobs: Sequence[Job]) -> None:
        """Find where the jobs write. A folder in which files have grown counts while its job lives."""
        growing = self._growing()
        self._grown = {
            job.id: tuple(dict.fromkeys((*self._grown.get(job.id, ()), *growing.get(job.id, ()))))[
                :REMEMBERED
            ]
            for job in jobs
        }
        writes = {id: (*self._writes.get(id, ()), *grown) for id, grown in self._grown.items()}
        known = self._context.config.trees.paths
        found = learned_folders(self._context.host, jobs, writes, known)
        self._learned = {one.path: one for one in found}

    def _uids(self, path: str) -> tuple[int, ...]:
        """Who may see the size of a directory; empty: everyone, as for those that are configured."""
        return self._learned[path].uids if path in self._learned else ()

    def samples(self) -> Sequence[Measure]:
        """Bytes and inodes of each directory, and how up to date they are (watched, counted again from time to time, and so on)."""
        return [
            msgspec.structs.replace(one, uids=self._uids(state.path))
            for state in self._client.states
            for one in _measures(state)
        ]

    def status(self) -> dict[str, tuple[Row, ...]]:
        """The table "trees" of `mldebug status --storage`: one row for each directory."""
        states = self._client.states
        lines = dir_size_lines(states, time.time())
        rows = tuple(
            _row(one, line) | self._owner(one.path)
            for one, (line, _) in zip(states, lines, strict=True)
        )
        return {"trees": rows} if rows else {}

    def _owner(self, path: str) -> Row:
        """Whose directory it is, where a job's writing tells of it."""
        found = self._learned.get(path)
        return {"job": found.job, UIDS: uids_cell(found.uids)} if found else {}

    def alarms(self) -> Sequence[StorageAlert]:
        """An alert for each directory that does not answer."""
        stuck = tuple(state for state in self._client.states if state.how == STUCK)
        lines = dir_size_lines(stuck, time.time())
        return [
            StorageAlert(kind="stuck", subject=one.path, sentence=line, uids=self._uids(one.path))
            for one, (line, _) in zip(stuck, lines, strict=True)
        ]

    def gaps(self) -> Sequence[Gap]:
        """Directories that could be counted only in part, or not at all, and those to which jobs write that are not watched."""
        counted = [
            Gap(
                what=f"the size of {state.path}",
                reason=_reason(state),
                pid=self._learned[state.path].pid if state.path in self._learned else None,
            )
            for state in self._client.states
            if state.lower_bound or state.how == STUCK or (state.inodes is None and state.why)
        ]
        return [*counted, *(one.gap for one in self._learned.values() if one.why)]


def _reason(one: DirSize) -> str:
    if one.how == STUCK:
        return "it does not answer"
    return one.why or f"{one.unread} of its entries could not be looked at"


def _row(one: DirSize, line: str) -> Row:
    return {
        "path": one.path,
        "how": one.how,
        "why": one.why,
        "bytes": one.bytes,
        "apparent_bytes": one.apparent_bytes,
        "inodes": one.inodes,
        "lower_bound": one.lower_bound,
        "at": one.at,
        "line": line,
    }


def _measures(one: DirSize) -> Iterator[Measure]:
    path = (one.path,)
    for how in HOWS:
        yield Measure(
            metric="mldebug_tree_state", labels=(one.path, how), value=float(how == one.how)
        )
    if one.inodes is None or one.bytes is None or one.apparent_bytes is None:
        return
    yield Measure(metric="mldebug_tree_bytes", labels=path, value=one.bytes)
    yield Measure(metric="mldebug_tree_apparent_bytes", labels=path, value=one.apparent_bytes)
    yield Measure(metric="mldebug_tree_inodes", labels=path, value=one.inodes)
    yield Measure(metric="mldebug_tree_unread_entries", labels=path, value=one.unread)
    yield Measure(metric="mldebug_tree_timestamp_seconds", labels=path, value=one.at)
    yield Measure(metric="mldebug_tree_lost_events", labels=path, value=one.overflows)
    yield Measure(metric="mldebug_tree_rescans", labels=path, value=one.rescans)
