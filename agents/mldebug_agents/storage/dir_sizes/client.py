"""The agent's side of the child that counts directory trees. It never waits, and gives up a child that does not answer.

A tree that hangs is not touched again while that child lives, not even by the next agent, because the child is recorded as left
over. All other trees go on in a new child.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from mldebug.storage.dir_sizes import STUCK, DirSize
from mldebug_agents.storage.dir_sizes.messages import (
    MAX_BODY,
    NAME,
    DirSizeRequest,
    DirSizeRequests,
    DirSizeUpdate,
)
from mldebug_agents.system.child.leftovers import Leftover
from mldebug_agents.system.child.link import ChildLink, WorkerStarter
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
        self._kept: list[DirSizeRequest] = []  # by the worker, in its order
        self._states: dict[str, DirSize] = {}
        self._stuck: dict[str, float] = {}  # path -> unix time
        self._working: tuple[int, float] | None = None  # tree, and since when
        self._not_before = 0.0

    @property
    def states(self) -> tuple[DirSize, ...]:
        """The size of each configured directory as far as it is known, in the order of the configuration."""
        return tuple(self._state(order.path) for order in self._orders)

    def count_only(self, orders: Sequence[DirSizeRequest]) -> None:
        """Count these directories from now on, and stop counting all others."""
        if tuple(orders) != self._orders:
            self._orders = tuple(orders)
            self._states = {}
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
            self._let_go(self._kept[self._working[0]].path)

    def _start(self) -> None:
        self._kept = [order for order in self._orders if order.path not in self._stuck]
        if not self._kept or self._clock() < self._not_before:
            return
        self._not_before = self._clock() + AGAIN
        try:
            worker = self._worker = self._starter.fork_worker(NAME)
            decoder = msgspec.msgpack.Decoder(DirSizeUpdate)
            self._link = ChildLink(worker.socket, decoder, max_body=MAX_BODY)
            self._link.send(DirSizeRequests(orders=tuple(self._kept)))
            worker.socket.setblocking(False)
        except OSError as error:
            log.warning("trees: nobody counts them: %s", error)
            self.close()
            return
        self._working = (0, self._clock())

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
            self._working = (update.number, self._clock())
        else:
            self._working = None
            self._states[update.state.path] = update.state

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
