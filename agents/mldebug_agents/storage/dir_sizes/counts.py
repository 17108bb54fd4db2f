"""The totals of a directory tree: each inode counts once, however many names (hard links) it has in the tree.

Entries of a folder are kept in four arrays, 32 bytes a file and no object: hash of the name, inode, blocks of 512 bytes (or
`LINKED`), length. A file with several names is counted in `TreeCounts.links`, by inode.
"""

from array import array
from collections.abc import Iterable
from typing import Protocol, TypeVar

LINKED = (1 << 64) - 1


class FolderEntries:
    """The files of one folder, in no order, as four arrays of equal length."""

    __slots__ = ("blocks", "inodes", "keys", "sizes")

    def __init__(self) -> None:
        self.keys = array("q")
        self.inodes = array("Q")
        self.blocks = array("Q")
        self.sizes = array("Q")

    def append(self, key: int, inode: int, blocks: int, size: int) -> None:
        """Add a file: a hash of its name, its inode, blocks and size."""
        self.keys.append(key)
        self.inodes.append(inode)
        self.blocks.append(blocks)
        self.sizes.append(size)

    def places(self, keys: set[int]) -> dict[int, int]:
        """The positions of the files with these keys; keys that are not here are left out."""
        if len(keys) > 3:
            return {key: at for at, key in enumerate(self.keys) if key in keys}
        found = {}
        for key in keys:
            try:
                found[key] = self.keys.index(key)
            except ValueError:
                continue
        return found

    def remove(self, places: Iterable[int]) -> None:
        """Remove the files at these positions; the last file moves into each hole."""
        for at in sorted(places, reverse=True):
            for column in (self.keys, self.inodes, self.blocks, self.sizes):
                last = column.pop()
                if at < len(column):
                    column[at] = last


class HasEntries(Protocol):
    """An object that has the files of a folder."""

    entries: FolderEntries


H = TypeVar("H", bound=HasEntries)


class HardLink:
    """A file with several names: how many of them were found in the tree, and its blocks (of 512 bytes) and size in bytes."""

    __slots__ = ("blocks", "names", "size")

    def __init__(self, blocks: int, size: int) -> None:
        self.names, self.blocks, self.size = 0, blocks, size


class TreeCounts:
    """The totals of one directory tree: inodes, blocks of 512 bytes, bytes. A file with several names counts once."""

    def __init__(self) -> None:
        self.inodes = self.blocks = self.size = 0
        self.links: dict[int, HardLink] = {}
        self.unsure: set[int] = set()  # has other names, which may have been counted as sole ones
        self.stale: set[int] = (
            set()
        )  # has lost a name, by which it may have been written just before

    def sum(self, inodes: int, blocks: int, size: int) -> None:
        """Add inodes, blocks (of 512 bytes) and bytes to the totals; negative numbers subtract."""
        self.inodes += inodes
        self.blocks += blocks
        self.size += size

    def add(self, inode: int, names: int, blocks: int, size: int) -> int:
        """Count one name of a file that has `names` hard links. Returns the blocks to keep with that name: `LINKED` for
        several links.
        """
        link = self.links.get(inode)
        if link is None and names < 2:
            self.sum(1, blocks, size)
            return blocks
        if link is None:
            link = self.links[inode] = HardLink(0, 0)
            self.sum(1, 0, 0)
        self._know(link, blocks, size)
        link.names += 1
        if link.names < names:
            self.unsure.add(inode)
        return LINKED

    def remove(self, inode: int, blocks: int, size: int) -> None:
        """Uncount one name of a file; `blocks` as `add` returned it."""
        if blocks != LINKED:
            self.sum(-1, -blocks, -size)
            return
        link = self.links[inode]
        link.names -= 1
        if not link.names:
            self.sum(-1, -link.blocks, -link.size)
            del self.links[inode]

    def remove_all(self, entries: FolderEntries) -> None:
        """Subtract all files of a folder from the totals, as `remove` does for one."""
        for inode, blocks, size in zip(entries.inodes, entries.blocks, entries.sizes, strict=True):
            self.remove(inode, blocks, size)

    def lose(self, inodes: Iterable[int]) -> None:
        """Note that these files lost a name. If they have another one in the tree, they must be looked at there again (see
        `holders`).
        """
        self.stale.update(inode for inode in inodes if inode in self.links)

    def holders(self, folders: Iterable[H]) -> list[H]:
        """The folders that have another name of the files noted by `lose`, which are then forgotten."""
        stale = {inode for inode in self.stale if inode in self.links}
        self.stale.clear()
        return [one for one in folders if stale and not stale.isdisjoint(one.entries.inodes)]

    def settle(self, folders: Iterable[FolderEntries]) -> None:
        """For files with several links, find those names in these folders that were counted as the only one, and correct
        the totals.
        """
        unsure = {inode for inode in self.unsure if inode in self.links}
        self.unsure.clear()
        if not unsure:
            return
        for entries in folders:
            if unsure.isdisjoint(entries.inodes):
                continue
            for at, inode in enumerate(entries.inodes):
                if inode in unsure and entries.blocks[at] != LINKED:
                    self.sum(-1, -entries.blocks[at], -entries.sizes[at])
                    entries.blocks[at] = LINKED
                    self.links[inode].names += 1

    def _know(self, link: HardLink, blocks: int, size: int) -> None:
        self.sum(0, blocks - link.blocks, size - link.size)
        link.blocks, link.size = blocks, size
