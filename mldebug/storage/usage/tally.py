"""Adds up the folders that were counted: by user, by folder of a run, by checkpoint. Pure."""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from posixpath import basename, dirname, join, normpath

import msgspec

from mldebug.storage.checkpoints.grouping import group_of
from mldebug.storage.checkpoints.names import checkpoint_of, series_of
from mldebug.storage.usage.model import CountedFolder, FolderUsage, UserUsage

MAX_FOLDERS = 200_000  # kept one by one; those below count for the nearest one above
MAX_CHECKPOINTS = 20_000
_INNER = frozenset(("checkpoints", "checkpoint", "ckpts", "ckpt", "saves", "weights", "models"))

CheckpointKey = tuple[
    str, str
]  # folder and name; of files that ranks wrote side by side with # for the rank
Owners = dict[int, tuple[int, int]]  # uid -> bytes, inodes


class CheckpointUsage(msgspec.Struct):
    """What one checkpoint takes: bytes on disk, those that its end would free, inodes, latest change (unix)."""

    bytes: int = 0
    own: int = 0
    inodes: int = 0
    newest: float = 0.0
    uid: int = -1


class _Folder(msgspec.Struct):
    owners: Owners
    own: int
    newest: float


class UsageTally:
    """The sums of what was counted below one or more directories."""

    def __init__(self) -> None:
        self.tops: list[str] = []  # the directories that were counted
        self._folders: dict[str, _Folder] = {}
        self._files: dict[CheckpointKey, CheckpointUsage] = {}  # checkpoints that are files
        self._holders: dict[str, CheckpointKey] = {}  # folders that are checkpoints
        self.links: dict[str, tuple[str, ...]] = {}  # folder -> where its links lead, whole paths
        self.left_out = 0  # checkpoints beyond the most that are kept

    def add(self, counted: CountedFolder) -> None:
        """Add one folder; its parents come before it."""
        path = os.fsdecode(counted.path)
        for part in counted.parts:
            self._add_part(path, os.fsdecode(part.name), part.bytes, part.own, part.newest, counted)
        if counted.links:
            self.links[path] = tuple(
                normpath(join(path, os.fsdecode(one))) for one in counted.links
            )
        if path not in self._folders and len(self._folders) >= MAX_FOLDERS:
            while path not in self._folders and dirname(path) != path:
                path = dirname(path)
        known = self._folders.get(path)
        if known is None:
            self._folders[path] = _Folder(dict(counted.owners), counted.own, counted.newest)
            return
        for uid, (size, inodes) in counted.owners.items():
            had = known.owners.get(uid, (0, 0))
            known.owners[uid] = had[0] + size, had[1] + inodes
        known.own += counted.own
        known.newest = max(known.newest, counted.newest)

    def _add_part(self, folder: str, name: str, size: int, own: int, newest: float, counted: CountedFolder) -> None:  # fmt: skip
        found = checkpoint_of(join(folder, name))
        if found is None:
            return
        whole = join(*found)
        if whole != join(folder, name):
            if whole not in self._holders and len(self._holders) < MAX_CHECKPOINTS:
                self._holders[whole] = (found.folder, found.name)
            return
        key = found.folder, group_of(found.name, single=True)
        if key not in self._files and len(self._files) >= MAX_CHECKPOINTS:
            self.left_out += 1
            return
        usage = self._files.setdefault(key, CheckpointUsage())
        usage.bytes, usage.own, usage.inodes = usage.bytes + size, usage.own + own, usage.inodes + 1
        usage.newest = max(usage.newest, newest)
        usage.uid = max(counted.owners, key=lambda uid: counted.owners[uid], default=-1)

    # --- results -------------------------------------------------------------------------------

    def users(self, name_of: Callable[[int], str]) -> tuple[UserUsage, ...]:
        """Bytes and files of each user, the largest first."""
        sums = _summed(folder.owners for folder in self._folders.values())
        found = (
            UserUsage(user=name_of(uid), uid=uid, bytes=size, inodes=inodes)
            for uid, (size, inodes) in sums.items()
        )
        return tuple(sorted(found, key=lambda one: (-one.bytes, -one.inodes, one.uid)))

    def checkpoints(self) -> dict[CheckpointKey, CheckpointUsage]:
        """The bytes that each checkpoint takes, by checkpoint."""
        found = dict(self._files)
        sums: dict[str, Owners] = defaultdict(dict)
        for path, folder in self._folders.items():
            holder = self._nearest(path, self._holders)
            if holder is None:
                continue
            usage = found.setdefault(self._holders[holder], CheckpointUsage())
            usage.own += folder.own
            usage.newest = max(usage.newest, folder.newest)
            sums[holder] = _summed((sums[holder], folder.owners))
        for holder, owners in sums.items():
            usage = found[self._holders[holder]]
            usage.bytes = sum(size for size, _ in owners.values())
            usage.inodes = sum(inodes for _, inodes in owners.values())
            usage.uid = max(owners, key=lambda uid: owners[uid], default=-1)
        return found

    def folders(
        self, runs: Mapping[str, tuple[str, ...]], name_of: Callable[[int], str]
    ) -> tuple[FolderUsage, ...]:
        """What lies in each folder of a run, and elsewhere by the first level below the directory that was counted.

        `runs`: folders that runs are known to write to, with the names of the runs.
        """
        keys = [*self._files, *self._holders.values()]
        saved = {place for folder, _ in keys if (place := self._place_of(folder))}
        places = dict.fromkeys((*saved, *(path for path in runs if path in self._folders)))
        sums: dict[str, Owners] = defaultdict(dict)
        for path, folder in self._folders.items():
            place = self._nearest(path, places) or self._first_level(path)
            sums[place] = _summed((sums[place], folder.owners))
        found = (
            self._folder(path, owners, path in saved, runs, name_of)
            for path, owners in sums.items()
        )
        return tuple(sorted(found, key=lambda one: (-one.bytes, one.path)))

    def _folder(self, path: str, owners: Owners, saved: bool, runs: Mapping[str, tuple[str, ...]], name_of: Callable[[int], str]) -> FolderUsage:  # fmt: skip
        most = max(owners, key=lambda uid: owners[uid])
        here = dict.fromkeys(
            name for folder, names in runs.items() if is_below(folder, path) for name in names
        )
        return FolderUsage(
            path=path,
            bytes=sum(size for size, _ in owners.values()),
            inodes=sum(inodes for _, inodes in owners.values()),
            user=name_of(most),
            others=len(owners) - 1,
            runs=tuple(here) if saved or path in runs else (),
            has_checkpoints=saved,
        )

    def _place_of(self, folder: str) -> str:
        """The folder of the run whose checkpoints lie there: one up from `…/checkpoints`, if that was counted, too."""
        above = dirname(folder)
        if basename(folder).lower() in _INNER and above in self._folders and above not in self.tops:  # fmt: skip
            return above
        return folder

    def _nearest(self, path: str, places: Mapping[str, object]) -> str | None:
        """The nearest of these folders that a folder lies in, or is."""
        while path not in places:
            above = dirname(path)
            if above == path:
                return None
            path = above
        return path

    def _first_level(self, path: str) -> str:
        top = next((one for one in self.tops if is_below(path, one)), "")
        if not top or path == top:
            return path
        return join(top, path[len(top) :].lstrip("/").partition("/")[0])


def series_keys(checkpoints: Iterable[CheckpointKey]) -> Counter[CheckpointKey]:
    """The series (folder, name with # for numbers) of these checkpoints, and how many each has."""
    return Counter((folder, series_of(name)) for folder, name in checkpoints)


def is_below(path: str, folder: str) -> bool:
    """Whether a path is this folder or lies in it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _summed(many: Iterable[Owners]) -> Owners:
    sums: Owners = {}
    for owners in many:
        for uid, (size, inodes) in owners.items():
            had = sums.get(uid, (0, 0))
            sums[uid] = had[0] + size, had[1] + inodes
    return sums


def without_nested(paths: Iterable[str]) -> Iterator[str]:
    """The paths in order, without those that lie in another one of them."""
    every = list(dict.fromkeys(paths))
    return (one for one in every if not any(is_below(one, other) for other in every if other != one))  # fmt: skip
