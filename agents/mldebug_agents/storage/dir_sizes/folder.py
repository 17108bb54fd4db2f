"""A folder of a tree: where it is, what it holds, and what of it must be looked at again."""

import os
from collections.abc import Iterator

from mldebug_agents.storage.dir_sizes.counts import Entries

MANY = 20_000  # names: with more of them all of the folder is looked at again


class Folder:
    """Known by its inode. The path follows from its parents, so a rename above it costs nothing."""

    __slots__ = (
        *("blocks", "children", "dirty", "entries", "gone", "inode", "name", "parent", "unread"),
        *("watch", "whole"),
    )

    def __init__(self, inode: int, name: str, parent: "Folder | None") -> None:
        self.inode = inode
        self.name = name
        self.parent = parent
        self.children: dict[str, Folder] = {}
        self.entries = Entries()
        self.blocks = 0  # of its own, of 512 bytes
        self.watch = 0  # 0: none
        self.dirty: set[str] | None = None  # names to look at again
        self.whole = True  # all of it is to be listed
        self.unread = 0  # what could not be looked at when it was listed
        self.gone = False

    @property
    def path(self) -> str:
        """Where it is; the root's name is its whole path."""
        names, folder = [], self
        while folder.parent is not None:
            names.append(folder.name)
            folder = folder.parent
        return os.path.join(folder.name, *reversed(names))

    def soil(self, name: str) -> None:
        """A name in it has to be looked at again."""
        if self.whole:
            return
        if self.dirty is None:
            self.dirty = set()
        self.dirty.add(name)
        if len(self.dirty) > MANY:
            self.whole, self.dirty = True, None

    def below(self) -> "Iterator[Folder]":
        """Itself and all folders below it."""
        left = [self]
        while left:
            folder = left.pop()
            yield folder
            left.extend(folder.children.values())
