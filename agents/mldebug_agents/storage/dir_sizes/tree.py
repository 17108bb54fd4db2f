"""One tree: counted once, then kept up to date by looking again at each name that an inotify event mentions.

An event says only *where* to look, and what is found there counts, so lost order, renames and repeated events do no harm. All work
is cut into pieces by generators; each piece blocks in one system call at most.
"""

import errno
import math
import os
import stat
import time
from collections.abc import Iterator
from typing import NamedTuple

from mldebug_agents.storage.dir_sizes.counts import FolderEntries
from mldebug_agents.storage.dir_sizes.folders import FolderIndex, TreeFolder

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE)
PIECE = 512  # entries looked at between two looks at the clock
SETTLES_AFTER = 45.0  # seconds after which a file that was written has its blocks: ext4, XFS and btrfs give them late
LATE = 20_000  # such files remembered; of the others, their folders


class TreeLimits(NamedTuple):
    """How much of a tree is counted at most."""

    inodes: int
    folders: int
    depth: int  # levels below the root


class DirTree:
    """Reads a directory tree and notes which parts of it have to be read again. For one thread."""

    def __init__(self, index: FolderIndex, *, late: bool, limits: TreeLimits) -> None:
        """`late`: blocks are given some time after a write."""
        self.index = index
        self.top = index.top
        self.counts = index.counts
        self._late: dict[tuple[TreeFolder, str], float] | None = (
            {} if late else None
        )  # the oldest first
        self._limits = limits
        self._dirty: dict[TreeFolder, None] = {self.top: None}
        self._found: list[TreeFolder] = []  # to be listed in the same round
        self.doubts = False  # something may have escaped
        self.problem = ""  # why the root itself cannot be looked at

    def fail(self, problem: str) -> None:
        """Record `problem`, the reason why the root folder of this tree cannot be read; the tree then has no size."""
        self.problem = problem

    def take_doubts(self) -> bool:
        """Whether a change may have been missed since the last call."""
        doubts, self.doubts = self.doubts, False
        return doubts

    # --- what has to be looked at ------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether nothing is left to read."""
        return not self._dirty

    def mark_changed(self, folder: TreeFolder, name: str = "") -> None:
        """Note that a name in a folder (or all of it) has to be read again."""
        if folder.gone:
            return
        if name:
            folder.mark_changed(name)
        else:
            folder.soil_all()
        self._dirty[folder] = None

    def soil_all(self, *, unwatched: bool = False) -> None:
        """Note that everything has to be read again; with `unwatched`, only folders without a watch."""
        if not unwatched:
            self.index.forget_skipped()
        for folder in list(self.top.below()):
            if not (unwatched and folder.watch):
                self.mark_changed(folder)

    def mark_finished_writes(self) -> None:
        """Note for the next look the files that were being written at the last one, once the filesystem should have allocated their
        blocks.
        """
        while (due := self.next_recheck) is not None and due <= time.monotonic():
            folder, name = next(iter(self._late or ()))
            (self._late or {}).pop((folder, name))
            self.mark_changed(folder, name)

    @property
    def next_recheck(self) -> float | None:
        """When `mark_finished_writes` has something to do next, in monotonic seconds; None for never."""
        return next(iter(self._late.values())) if self._late else None

    # --- looking -----------------------------------------------------------------------------------

    def look(self) -> Iterator[None]:
        """Read again what was noted, and new folders, in small pieces (one for each `next`). A folder that cannot be read
        is noted for the next call.
        """
        todo, self._dirty = self._dirty, {}
        for folder in todo:
            yield from self._refresh(folder)
            while self._found:
                yield from self._refresh(self._found.pop())
        self.index.clear_limbo()
        self.counts.settle(folder.entries for folder in self.top.below())
        for folder in self.counts.holders(self.top.below()):
            self.mark_changed(folder)

    def _refresh(self, folder: TreeFolder) -> Iterator[None]:
        if folder.gone or not (folder.whole or folder.dirty):
            return
        names, whole = folder.take_dirty()
        yield
        try:
            fd = os.open(folder.path, _OPEN)
        except OSError as error:
            self._failed(folder, names, error)
            return
        try:
            own = os.fstat(fd)
            if own.st_ino != folder.inode or own.st_dev != self.index.device:
                self._displaced(folder, names)
                return
            self.index.resize(folder, own.st_blocks)
            if folder.watch == 0:
                self.index.watch(folder, fd)
            if whole:
                yield from self._list(folder, fd)
            elif names:
                yield from self._look_at(folder, fd, names)
        except OSError as error:
            self._failed(folder, names, error)
        finally:
            os.close(fd)

    def _failed(self, folder: TreeFolder, names: set[str] | None, error: OSError) -> None:
        if error.errno in _GONE:
            self._displaced(folder, names)
            return
        self.index.blame(folder, max(1, folder.unread))
        if folder is self.top:
            self.problem = error.strerror or str(error)

    def _displaced(self, folder: TreeFolder, names: set[str] | None) -> None:
        """Something else stands in its place, or nothing: its parent knows more once it was looked at."""
        if folder.parent is None:
            self.problem = "it is not there any more"
            return
        self.mark_changed(folder.parent, folder.name)
        for name in names or ("",):
            self.mark_changed(folder, name)

    def _list(self, folder: TreeFolder, fd: int) -> Iterator[None]:
        """All of a folder: the new list takes the place of the old one when it is whole."""
        fresh, missed, fresher, children = FolderEntries(), 0, False, set()
        recent = time.time() - SETTLES_AFTER if self._late is not None else math.inf
        add, append = self.counts.add, fresh.append
        room = self._limits.inodes - (self.counts.inodes - len(folder.entries.inodes))
        cut = False
        try:
            with os.scandir(fd) as found:
                for number, entry in enumerate(found):
                    if number % PIECE == PIECE - 1:
                        yield
                    if cut := len(fresh.inodes) >= max(0, room):
                        self.index.overflow(f"{self._limits.inodes} inodes")
                        break
                    try:
                        facts = entry.stat(follow_symlinks=False)
                    except OSError as error:
                        missed += error.errno not in _GONE
                        continue
                    if stat.S_ISDIR(facts.st_mode):
                        children.add(entry.name)
                        self._child(folder, entry.name, facts)
                    elif facts.st_dev == self.index.device:
                        size = _length(facts)
                        blocks = add(facts.st_ino, facts.st_nlink, facts.st_blocks, size)
                        append(hash(entry.name), facts.st_ino, blocks, size)
                        fresher = fresher or facts.st_ctime > recent
                    else:
                        self.index.skip(folder, entry.name)
        except BaseException:
            self.counts.remove_all(fresh)
            raise
        self.counts.remove_all(folder.entries)
        if self.counts.links:
            self.counts.lose(set(folder.entries.inodes) - set(fresh.inodes))
        folder.replace_entries(fresh)
        self.index.blame(folder, missed)
        if fresher:
            self._remember(folder, "")
        for name in () if cut else folder.children.keys() - children:
            self.index.detach(folder.children[name])

    def _look_at(self, folder: TreeFolder, fd: int, names: set[str]) -> Iterator[None]:
        """Some names of a folder."""
        keys = {name: hash(name) for name in names}
        stats: dict[int, os.stat_result | None] = {}
        recent = time.time() - SETTLES_AFTER if self._late is not None else math.inf
        for number, (name, key) in enumerate(keys.items()):
            if number % PIECE == PIECE - 1:
                yield
            facts = self._facts(folder, fd, name)
            is_folder = facts is not None and stat.S_ISDIR(facts.st_mode)
            known = folder.children.get(name)
            if facts is not None and is_folder:
                self._child(folder, name, facts)
            elif known is not None:
                self.index.detach(known)
            here = facts is not None and not is_folder and facts.st_dev == self.index.device
            stats[key] = facts if here else None
            if here and facts is not None and facts.st_ctime > recent:
                self._remember(folder, name)
        self._exchange(folder.entries, stats)

    def _exchange(self, entries: FolderEntries, stats: dict[int, os.stat_result | None]) -> None:
        """Put what was seen in the place of what was known, in one go."""
        places = entries.places(set(stats))
        over = []
        for key, facts in stats.items():
            at = places.get(key)
            if at is not None:
                old = (entries.inodes[at], entries.blocks[at], entries.sizes[at])
            full = at is None and self.counts.inodes >= self._limits.inodes
            if facts is not None and full:
                self.index.overflow(f"{self._limits.inodes} inodes")
            elif facts is not None:
                size = _length(facts)
                blocks = self.counts.add(facts.st_ino, facts.st_nlink, facts.st_blocks, size)
                if at is None:
                    entries.append(key, facts.st_ino, blocks, size)
                else:
                    entries.inodes[at], entries.blocks[at] = facts.st_ino, blocks
                    entries.sizes[at] = size
            elif at is not None:
                over.append(at)
            else:  # it came and went unseen: if it was a second name, who knows what was written by it
                self.doubts = True
            if at is not None:
                self.counts.remove(*old)
                if facts is None or facts.st_ino != old[0]:
                    self.counts.lose(old[:1])
        entries.remove(over)

    def _child(self, folder: TreeFolder, name: str, facts: os.stat_result) -> None:
        """A folder was seen at a name: it is known there, has moved there, or is new."""
        known = folder.children.get(name)
        if facts.st_dev != self.index.device:
            self.index.skip(folder, name)
            if known is not None:
                self.index.detach(known)
            return
        if known is not None and known.inode == facts.st_ino:
            if known.unread:  # its rights may have changed
                self.mark_changed(known)
            return
        if known is not None:
            self.index.detach(known)
        if limit := self._reached(folder):
            self.index.overflow(limit)
            return
        found = self.index.attach(folder, name, facts)
        if found is not None:
            self._found.append(found)

    def _reached(self, folder: TreeFolder) -> str:
        """The limit that a folder more in this one would break, in words; "" for none."""
        limits = self._limits
        if self.counts.inodes >= limits.inodes:
            return f"{limits.inodes} inodes"
        if len(self.index.by_inode) >= limits.folders:
            return f"{limits.folders} folders"
        return f"{limits.depth} levels of folders" if folder.depth >= limits.depth else ""

    def _remember(self, folder: TreeFolder, name: str) -> None:
        """Its blocks may be given later: it is looked at once more then."""
        if self._late is not None:
            one = (folder, name if len(self._late) < LATE else "")
            self._late.setdefault(one, time.monotonic() + SETTLES_AFTER)

    def _facts(self, folder: TreeFolder, fd: int, name: str) -> os.stat_result | None:
        try:
            return os.stat(name, dir_fd=fd, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _GONE:
                self.index.blame(folder, max(1, folder.unread))
            return None


def _length(facts: os.stat_result) -> int:
    """As `du --apparent-size` has it: of files and links alone."""
    regular = stat.S_ISREG(facts.st_mode) or stat.S_ISLNK(facts.st_mode)
    return facts.st_size if regular else 0
