"""All folders of a tree, by inode and by inotify watch: how they appear, move and go, with the totals kept up to date."""

import errno
import os
import time
from collections.abc import Iterator

from mldebug_agents.storage.dir_sizes.counts import FolderEntries, TreeCounts
from mldebug_agents.storage.dir_sizes.inotify import InotifyQueue

MANY = 20_000  # names: with more of them all of the folder is looked at again


class TreeFolder:
    """A folder, identified by its inode. Its path is made from its parents, so that renaming a parent costs nothing."""

    __slots__ = (
        *("blocks", "children", "dirty", "entries", "gone", "inode", "name", "parent", "unread"),
        *("watch", "whole"),
    )

    def __init__(self, inode: int, name: str, parent: "TreeFolder | None") -> None:
        self.inode = inode
        self.name = name
        self.parent = parent
        self.children: dict[str, TreeFolder] = {}
        self.entries = FolderEntries()
        self.blocks = 0  # of its own, of 512 bytes
        self.watch = 0  # 0: none
        self.dirty: set[str] | None = None  # names to look at again
        self.whole = True  # all of it is to be listed
        self.unread = 0  # what could not be looked at when it was listed
        self.gone = False

    @property
    def path(self) -> str:
        """The path of the folder; the root's name is its whole path."""
        names, folder = [], self
        while folder.parent is not None:
            names.append(folder.name)
            folder = folder.parent
        return os.path.join(folder.name, *reversed(names))

    def soil_all(self) -> None:
        """Note that all of the folder has to be read again."""
        self.whole, self.dirty = True, None

    def take_dirty(self) -> tuple[set[str] | None, bool]:
        """Return the names to be read again (None: none) and whether the whole folder is to be read again; both are reset."""
        names, whole, self.dirty, self.whole = self.dirty, self.whole, None, False
        return names, whole

    def replace_entries(self, entries: FolderEntries) -> None:
        """Replace the files of the folder by those of a new listing."""
        self.entries = entries

    def mark_changed(self, name: str) -> None:
        """Note that this name in the folder has to be read again."""
        if self.whole:
            return
        if self.dirty is None:
            self.dirty = set()
        self.dirty.add(name)
        if len(self.dirty) > MANY:
            self.soil_all()

    @property
    def depth(self) -> int:
        """How many levels it lies below the root."""
        depth, folder = 0, self
        while folder.parent is not None:
            depth, folder = depth + 1, folder.parent
        return depth

    def below(self) -> "Iterator[TreeFolder]":
        """The folder itself and all folders below it."""
        left = [self]
        while left:
            folder = left.pop()
            yield folder
            left.extend(folder.children.values())


MAX_SKIPPED = 1000
NO_WATCHES = "fs.inotify.max_user_watches is used up"
TRIED_AGAIN = 60.0  # seconds after which a kernel that had no watch left is asked again


class FolderIndex:
    """All folders of a tree by inode and by inotify watch. `inotify` is None where events would not report changes."""

    def __init__(self, root: str, facts: os.stat_result, inotify: InotifyQueue | None) -> None:
        self.device = facts.st_dev
        self.counts = TreeCounts()
        self.top = TreeFolder(facts.st_ino, root, None)
        self.top.blocks = facts.st_blocks
        self.counts.sum(1, facts.st_blocks, 0)
        self._inotify = inotify
        self.by_watch: dict[int, TreeFolder] = {}
        self.by_inode: dict[int, TreeFolder] = {facts.st_ino: self.top}
        self._limbo: dict[
            int, TreeFolder
        ] = {}  # seen to be gone from a place, and not yet elsewhere
        self._skipped: set[tuple[int, str]] = set()
        self.unread = 0
        self.over = ""  # of what there is more than may be counted: `50000 inodes`
        self.no_watch = ""  # why some folders have none
        self._not_before = 0.0

    @property
    def mounts(self) -> int:
        """How many mount points lie in the tree, plus second paths to a folder that is counted already."""
        return len(self._skipped)

    @property
    def unwatched(self) -> int:
        """How many folders have no watch, so that nothing reports their changes."""
        return len(self.by_inode) - len(self.by_watch)

    def overflow(self, limit: str) -> None:
        """Note that the tree has more than may be counted. `limit`: of what, `50000 inodes`."""
        self.over = limit

    def resize(self, folder: TreeFolder, blocks: int) -> None:
        """Set how many blocks (of 512 bytes) the folder itself takes, files not counted."""
        self.counts.sum(0, blocks - folder.blocks, 0)
        folder.blocks = blocks

    def blame(self, folder: TreeFolder, unread: int) -> None:
        """Note how many entries of the folder could not be read."""
        self.unread += unread - folder.unread
        folder.unread = unread

    def skip(self, folder: TreeFolder, name: str) -> None:
        """Note that this name is not counted: another filesystem begins there, or it is a second path to a counted folder."""
        if len(self._skipped) < MAX_SKIPPED:
            self._skipped.add((folder.inode, name))

    def forget_skipped(self) -> None:
        """Forget which names are skipped, before everything is read again."""
        self._skipped.clear()

    def watch(self, folder: TreeFolder, fd: int) -> None:
        """Watch an open folder for changes. Where that fails, it is read again from time to time, and `no_watch` says why."""
        if self._inotify is None or time.monotonic() < self._not_before:
            return
        try:
            folder.watch = self._inotify.add(fd)
        except OSError as error:
            self.no_watch = error.strerror or str(error)
            if error.errno == errno.ENOSPC:
                self.no_watch = NO_WATCHES
                self._not_before = time.monotonic() + TRIED_AGAIN
            return
        self.by_watch[folder.watch] = folder

    def unwatch(self, watch: int) -> TreeFolder | None:
        """Note that the kernel removed this watch. Returns the folder that lost it; None for an unknown watch."""
        folder = self.by_watch.pop(watch, None)
        if folder is not None and folder.watch == watch:
            folder.watch = 0
            return folder
        return None

    def attach(self, parent: TreeFolder, name: str, facts: os.stat_result) -> TreeFolder | None:
        """Add a folder that was found, or move the known one with the same inode to this place. None where that one is
        still at its old path, so that this is a second path to it and is skipped.
        """
        known = self.by_inode.get(facts.st_ino)
        if known is None:
            return self._new(parent, name, facts)
        if known is self.top or (known.inode not in self._limbo and _is_there(known)):
            self.skip(parent, name)
            return None
        if known.inode not in self._limbo:
            self.detach(known)
        del self._limbo[known.inode]
        known.parent, known.name = parent, name
        parent.children[name] = known
        known.whole, known.dirty = True, None  # it may be another one with the same inode
        return known

    def _new(self, parent: TreeFolder, name: str, facts: os.stat_result) -> TreeFolder:
        folder = TreeFolder(facts.st_ino, name, parent)
        folder.blocks = facts.st_blocks
        self.counts.sum(1, facts.st_blocks, 0)
        parent.children[name] = self.by_inode[folder.inode] = folder
        return folder

    def detach(self, folder: TreeFolder) -> None:
        """Take a folder out of its parent. Its content still counts until `clear_limbo`, since it may have been moved elsewhere."""
        if folder.parent is not None and folder.parent.children.get(folder.name) is folder:
            del folder.parent.children[folder.name]
        self._limbo[folder.inode] = folder

    def clear_limbo(self) -> None:
        """Drop folders that were moved away and did not appear elsewhere, with all below them."""
        while self._limbo:
            _, lost = self._limbo.popitem()
            for folder in list(lost.below()):
                self._drop(folder)

    def _drop(self, folder: TreeFolder) -> None:
        folder.gone = True
        self.blame(folder, 0)
        self.counts.remove_all(folder.entries)
        self.counts.lose(folder.entries.inodes)
        self.counts.sum(-1, -folder.blocks, 0)
        if self.by_inode.get(folder.inode) is folder:
            del self.by_inode[folder.inode]
        if folder.watch and self._inotify and self.by_watch.pop(folder.watch, None):
            self._inotify.remove(folder.watch)


def _is_there(folder: TreeFolder) -> bool:
    try:
        return os.lstat(folder.path).st_ino == folder.inode
    except OSError:
        return False  # removed, or renamed
