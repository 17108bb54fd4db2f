"""The size of one tree over time: opened, counted, kept up to date by events, counted again, and given up."""

import errno
import os
import time
from collections.abc import Iterator

from mldebug.core.units import duration_words
from mldebug.storage.dir_sizes import LOST, PARTLY, RESCANNED, WATCHED, DirSize
from mldebug_agents.storage.dir_sizes.folders import FolderIndex
from mldebug_agents.storage.dir_sizes.inotify import IGNORED, OVERFLOW, ROOT_GONE, InotifyQueue
from mldebug_agents.storage.dir_sizes.messages import DirSizeRequest
from mldebug_agents.storage.dir_sizes.mounts import (
    AT_ONCE,
    filesystem,
    is_shared,
    open_ordered,
    real_path,
)
from mldebug_agents.storage.dir_sizes.tree import DirTree, TreeLimits

PAUSE = 1.0  # seconds between two looks at what events told of, or
BUSY = 200  # events of one read, from which on the kernel's queue might run over
SHARE = 0.05  # so much of one core at most
RESCAN_SHARE = 0.25  # of one core, while everything is counted anew
RETRY = 10.0  # seconds after which a root that failed is tried again
ROOT_CHECK = 60.0  # seconds between two looks whether the root is still the same directory
DOUBTS, DOUBT_STORM = (
    900.0,
    300.0,
)  # in doubt, all is counted anew after so long, or so many counts' time
STORM = 10.0  # times as long as a count takes there is none again, however many events are lost


class DirSizeUpdater:
    """Keeps the size of one directory tree up to date. For one thread only; `tick` may block for ever where the filesystem hangs."""

    def __init__(self, order: DirSizeRequest) -> None:
        self.order = order
        self._tree: DirTree | None = None
        self._inotify: InotifyQueue | None = None
        self._retry_at = 0.0  # monotonic, as all that ends in `_at` or `_until`
        self._clear()

    def _clear(self) -> None:
        self._why = self._problem = ""
        self._job: Iterator[None] | None = None
        self._round = False  # the job counts all, or all that is unwatched
        self._began = self._spent = 0.0  # of the job
        self._requested = self._fresh = self._fresh_round = 0.0  # unix
        self._counted = self._lost = self._mending = False
        self.is_busy = False  # many events came the last time
        self._seconds = 0.0
        self._overflows = self._rescans = 0
        self._resume_at = self._flush_at = self._round_at = self._calm_at = self._check_at = 0.0
        self._verify_at = 0.0

    @property
    def fd(self) -> int | None:
        """The inotify descriptor, readable when something in the tree has changed; None where there is none."""
        return self._inotify.fd if self._inotify else None

    def due(self, now: float) -> float:
        """Seconds until `tick` has something to do even if no event comes; 0 for now. `now`: monotonic seconds."""
        return max(0.0, self._next() - now)

    def close(self) -> None:
        """Close the inotify descriptor and forget the tree."""
        if self._inotify is not None:
            self._inotify.close()
        self._tree = self._inotify = self._job = None

    def state(self) -> DirSize:
        """The tree's size as last counted, and how exact that is; only the path and the reason while nothing has been counted."""
        tree = self._tree
        if tree is None or not self._counted:
            return DirSize(path=self.order.path, why=self._problem)
        index, counts = tree.index, tree.counts
        return DirSize(
            path=self.order.path,
            how=self._how(index),
            why=self._explain(index),
            inodes=counts.inodes,
            bytes=counts.blocks * 512,
            apparent_bytes=counts.size,
            folders=len(index.by_inode),
            at=self._as_of(tree),
            unread=index.unread + bool(index.over),
            mounts=index.mounts,
            overflows=self._overflows,
            rescans=self._rescans,
            count_seconds=round(self._seconds, 3),
        )

    def _how(self, index: FolderIndex) -> str:
        if self._lost or self._mending:
            return LOST
        if not index.unwatched:
            return WATCHED
        return PARTLY if index.by_watch else RESCANNED

    def _explain(self, index: FolderIndex) -> str:
        every = duration_words(self.order.rescan)
        reasons = []
        if index.over:
            reasons.append(f"it has more than {index.over}, which are counted at most")
        if index.unwatched and index.by_watch:
            some = f"{index.unwatched} of its {len(index.by_inode)} folders"
            reasons.append(f"{index.no_watch}: {some} are counted anew every {every}")
        elif index.unwatched:
            reasons.append(f"{self._why or index.no_watch}: it is counted anew every {every}")
        return "; ".join(reasons)

    def _as_of(self, tree: DirTree) -> float:
        if tree.index.unwatched or self._lost or self._mending:
            return self._fresh_round
        return time.time() if tree.idle and self._job is None else self._fresh

    # --- work --------------------------------------------------------------------------------------

    def tick(self, seconds: float) -> None:
        """Handle inotify events and go on counting, for about `seconds`. May block for ever where the filesystem hangs."""
        now = time.monotonic()
        tree = self._tree
        if tree is None and now >= self._retry_at:
            tree = self._tree = self._open()
        if tree is None:
            return
        self._take_events(tree)
        self._check(tree, now)
        if self._job is None:
            self._begin(tree, now)
        if self._job is not None and now >= self._resume_at:
            self._work(tree, self._job, now + seconds)
        if tree.problem:
            self._give_up(tree.problem)

    def _open(self) -> DirTree | None:
        self._clear()
        try:
            fd = open_ordered(self.order)
            try:
                root = real_path(fd, self.order.root, self.order.path)
                kind, facts = filesystem(fd), os.fstat(fd)
            finally:
                os.close(fd)
        except OSError as error:
            self._give_up(error.strerror or str(error))
            return None
        self._inotify = self._listen(kind)
        index = FolderIndex(root, facts, self._inotify)
        order = self.order
        limits = TreeLimits(order.max_inodes, order.max_folders, order.max_depth)
        return DirTree(index, late=kind not in AT_ONCE, limits=limits)

    def _listen(self, kind: str) -> InotifyQueue | None:
        if is_shared(kind):
            self._why = f"{kind} does not tell what other machines write"
            return None
        try:
            return InotifyQueue()
        except OSError as error:
            limit = "fs.inotify.max_user_instances is used up"
            self._why = limit if error.errno == errno.EMFILE else f"no events: {error.strerror}"
            return None

    def _give_up(self, problem: str) -> None:
        self.close()
        self._problem = problem
        self._counted = False
        self._retry_at = time.monotonic() + RETRY

    def _take_events(self, tree: DirTree) -> None:
        """Take in what has happened."""
        by_watch, top = tree.index.by_watch, tree.top
        taken = 0
        for watch, mask, name in self._inotify.read() if self._inotify else ():
            taken += 1
            folder = by_watch.get(watch)
            if mask & OVERFLOW:
                self._overflows += 1
                self._lost = True
            elif folder is None:
                continue
            elif mask & IGNORED:
                tree.index.unwatch(watch)
                tree.mark_changed(folder)
            elif name:
                tree.mark_changed(folder, os.fsdecode(name))
            elif folder is top and mask & ROOT_GONE:
                tree.fail("it is not there any more")
            elif folder.unread:
                tree.mark_changed(folder)
        self.is_busy = taken >= BUSY

    def _check(self, tree: DirTree, now: float) -> None:
        """Renamed somewhere above, the root is the same directory, but no longer the one of that name."""
        if now < self._check_at:
            return
        self._check_at = now + ROOT_CHECK
        try:
            fd = open_ordered(self.order)
            try:
                facts = os.fstat(fd)
            finally:
                os.close(fd)
        except OSError as error:
            tree.fail(error.strerror or str(error))
            return
        if (facts.st_ino, facts.st_dev) != (tree.top.inode, tree.index.device):
            tree.fail("another directory stands in its place")

    def _begin(self, tree: DirTree, now: float) -> None:
        """Start the job that is due, if there is one."""
        tree.mark_finished_writes()
        unwatched = bool(tree.index.unwatched) and now >= self._round_at
        whole = now >= self._verify_at or (self._lost and now >= self._calm_at)
        if self._counted and (whole or unwatched):
            tree.soil_all(unwatched=not whole)
            self._rescans += 1
        elif tree.idle or (self._counted and now < self._flush_at):
            return
        self._round = not self._counted or whole or unwatched
        if whole:
            self._mending, self._lost = self._lost, False
        self._job, self._requested = tree.look(), time.time()
        self._began, self._spent, self._resume_at = now, 0.0, now

    def _work(self, tree: DirTree, job: Iterator[None], until: float) -> None:
        began = time.monotonic()
        try:
            while time.monotonic() < until:
                next(job)
        except StopIteration:
            self._job = None
        now = time.monotonic()
        self._spent += now - began
        if self._job is None:
            self._done(tree, now)
        elif self._counted and self._round:
            self._resume_at = now + (now - began) * (1 / RESCAN_SHARE - 1)

    def _done(self, tree: DirTree, now: float) -> None:
        self._fresh = self._requested
        self._flush_at = now + (PAUSE if self._round else max(PAUSE, self._spent / SHARE))
        if not self._round and tree.take_doubts():
            soon = now + max(DOUBTS, DOUBT_STORM * self._seconds)
            self._verify_at = min(self._verify_at, soon)
        if not self._round:
            return
        self._fresh_round, self._seconds = self._requested, self._spent
        self._mending = False
        self._calm_at = now + STORM * self._spent
        self._round_at = now + max(self.order.rescan, STORM * self._spent)
        if not self._counted or now >= self._verify_at:
            self._verify_at = now + self.order.verify
        self._counted = True

    def _next(self) -> float:
        """When there is something to do again, without a new event."""
        tree = self._tree
        if tree is None:
            return self._retry_at
        if self._job is not None:
            return self._resume_at
        if not self._counted:
            return 0.0
        times = [self._check_at, self._verify_at]
        times += [self._round_at] if tree.index.unwatched else []
        times += [self._calm_at] if self._lost else []
        times += [] if tree.idle else [self._flush_at]
        times += [tree.next_recheck] if tree.next_recheck is not None else []
        return min(times)
