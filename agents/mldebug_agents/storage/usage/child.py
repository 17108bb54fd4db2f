"""The child that counts: with idle priority, within its limits, through no link and into no other filesystem.

Before it touches a folder where time has passed it says which one: if no message follows, the parent knows what hangs. A mount
point below is known by the kernel's list and never touched.
"""

import contextlib
import os
import resource
import socket
import stat
import time
from collections.abc import Iterator

import msgspec
import psutil

from mldebug.storage.checkpoints.names import is_part
from mldebug.storage.usage.model import CountedFolder, CountedTree, PartFile
from mldebug_agents.storage.usage.messages import CountProgress, CountRequest
from mldebug_agents.system import procfs
from mldebug_agents.system.child.link import ChildLink

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC
SPEAK = 0.25  # seconds between two messages
TOGETHER = 2000  # folders of one message
MAX_PARTS, MAX_LINKS, MAX_NAMED = 4096, 64, 16
TIME, MANY = "there was no more time", "more inodes than are counted at once"


def serve(connection: socket.socket) -> None:
    """Count the directories of one request: the child's main function."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, psutil.Error):
        os.nice(19)
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)
    link = ChildLink(connection, msgspec.msgpack.Decoder(CountRequest))
    with contextlib.suppress(OSError):  # nobody waits any more
        request = link.receive()
        walk = UsageWalk(request, link)
        for number, path in enumerate(request.paths):
            walk.count(number, path)
        link.send(CountProgress(over=True))


class _Level:
    """A folder on the way down: open, with the names of its folders that are still to be counted."""

    def __init__(self, fd: int, path: bytes, left: list[bytes]) -> None:
        self.fd, self.path, self.left = fd, path, left


class UsageWalk:
    """Counts one directory after the other within the limits of one request."""

    def __init__(self, request: CountRequest, link: "ChildLink[CountRequest]") -> None:
        self._request, self._link = request, link
        self._until = time.monotonic() + request.seconds
        self._spoken = 0.0
        self._folders: list[CountedFolder] = []
        self._counted_links: set[tuple[int, int]] = set()  # files with several names
        self._mounts = _mount_points()
        self._inodes = 0  # of all directories
        self._clear()

    def _clear(self) -> None:
        self._began, self._device = time.monotonic(), -1
        self._others: list[str] = []
        self._unreadable = self._too_deep = self._own_inodes = self._bytes = 0
        self._stopped_by = ""

    def count(self, number: int, path: bytes) -> None:
        """Count what lies in one directory, and send how far that came."""
        self._clear()
        self._say(path, at_once=True)
        try:
            path = os.path.realpath(path)
            top = os.open(path, _FOLDER)
        except OSError as error:
            self._end(number, CountedTree(path=_text(path), trouble=error.strerror or str(error)))
            return
        facts = os.fstatvfs(top)
        self._device = os.fstat(top).st_dev
        left = self._walk(top, path)
        unfinished = tuple(_text(one) for one in left[:MAX_NAMED])
        tree = CountedTree(
            path=_text(path), finished=not self._stopped_by, unfinished=unfinished,
            stopped_by=self._stopped_by, other_filesystems=tuple(self._others[:MAX_NAMED]),
            unreadable=self._unreadable, too_deep=self._too_deep, inodes=self._own_inodes,
            bytes=self._bytes, seconds=round(time.monotonic() - self._began, 3),
            size=facts.f_frsize * facts.f_blocks or None, left=facts.f_frsize * facts.f_bavail if facts.f_blocks else None,
            inodes_size=facts.f_files or None, inodes_left=facts.f_favail if facts.f_files else None,
        )  # fmt: skip
        self._end(number, tree)

    def _walk(self, top: int, path: bytes) -> list[bytes]:
        """Count all folders, depth first. The folders of the first level that were not counted to the end; the top itself where it was not listed."""
        levels = [_Level(top, path, [])]
        try:
            levels[0].left = self._list(top, path)
            while levels:
                level = levels[-1]
                if not level.left or self._is_over():
                    if level.left or (self._stopped_by and len(levels) > 1):
                        return self._unfinished(levels)
                    os.close(levels.pop().fd)
                    continue
                name = level.left.pop()
                if (inner := self._enter(level, name, len(levels))) is not None:
                    levels.append(inner)
            return [path] if self._stopped_by else []
        finally:
            for level in levels:
                os.close(level.fd)

    def _unfinished(self, levels: list[_Level]) -> list[bytes]:
        begun = [levels[1].path] if len(levels) > 1 else []
        return begun + [os.path.join(levels[0].path, name) for name in reversed(levels[0].left)]

    def _enter(self, level: _Level, name: bytes, depth: int) -> _Level | None:
        path = os.path.join(level.path, name)
        if path in self._mounts:
            self._others.append(_text(path))
            return None
        if depth >= self._request.depth:
            self._too_deep += 1
            return None
        self._say(path)
        try:
            fd = os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=level.fd)
        except FileNotFoundError:
            return None
        except OSError:
            self._unreadable += 1
            return None
        if os.fstat(fd).st_dev != self._device:
            os.close(fd)
            self._others.append(_text(path))
            return None
        inner = _Level(fd, path, [])
        inner.left = self._list(fd, path)
        return inner

    def _list(self, fd: int, path: bytes) -> list[bytes]:
        """Count what lies directly in an open folder; the names of its folders, the last one first."""
        own = os.fstat(fd)
        counts = _Counts(own)
        inner: list[bytes] = []
        try:
            for number, entry in enumerate(self._entries(fd)):
                if number % 256 == 255 and self._is_over():
                    break
                name = os.fsencode(entry.name)
                if entry.is_dir(follow_symlinks=False):
                    inner.append(name)
                    continue
                if os.path.join(path, name) not in self._mounts:
                    self._count_entry(fd, name, entry, counts)
        except OSError:
            self._unreadable += 1
        self._inodes += counts.inodes
        self._own_inodes += counts.inodes
        self._bytes += counts.bytes
        self._folders.append(CountedFolder(path, counts.owners, counts.own, counts.newest, tuple(counts.parts), tuple(counts.links)))  # fmt: skip
        return sorted(inner, reverse=True)

    def _entries(self, fd: int) -> Iterator["os.DirEntry[str]"]:
        with os.scandir(fd) as found:
            yield from found

    def _count_entry(self, fd: int, name: bytes, entry: "os.DirEntry[str]", counts: "_Counts") -> None:  # fmt: skip
        try:
            facts = entry.stat(follow_symlinks=False)
            if stat.S_ISLNK(facts.st_mode) and len(counts.links) < MAX_LINKS:
                counts.links.append(os.readlink(name, dir_fd=fd))
        except FileNotFoundError:
            return
        except OSError:
            self._unreadable += 1
            return
        alone = facts.st_nlink < 2
        if stat.S_ISREG(facts.st_mode) and is_part(entry.name) and len(counts.parts) < MAX_PARTS:
            size = facts.st_blocks * 512
            counts.parts.append(PartFile(name, size, size if alone else 0, 1, facts.st_mtime))
        key = facts.st_dev, facts.st_ino
        if not alone and key in self._counted_links:
            return
        if not alone:
            self._counted_links.add(key)
        counts.add(facts, alone=alone)

    def _is_over(self) -> bool:
        if not self._stopped_by and time.monotonic() > self._until:
            self._stopped_by = TIME
        if not self._stopped_by and self._inodes >= self._request.most:
            self._stopped_by = MANY
        return bool(self._stopped_by)

    def _say(self, path: bytes, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if at_once or now - self._spoken >= SPEAK or len(self._folders) >= TOGETHER:
            self._spoken = now
            folders, self._folders = tuple(self._folders), []
            self._link.send(CountProgress(at=path, folders=folders))

    def _end(self, number: int, tree: CountedTree) -> None:
        folders, self._folders = tuple(self._folders), []
        self._link.send(CountProgress(folders=folders, number=number, tree=tree))


class _Counts:
    """The sums of one folder; the folder itself is the first inode."""

    def __init__(self, own: os.stat_result) -> None:
        self.owners: dict[int, tuple[int, int]] = {}
        self.bytes = self.inodes = self.own = 0
        self.newest = 0.0
        self.parts: list[PartFile] = []
        self.links: list[bytes] = []
        self.add(own, alone=True)
        self.newest = 0.0

    def add(self, facts: os.stat_result, *, alone: bool) -> None:
        size = facts.st_blocks * 512
        had = self.owners.get(facts.st_uid, (0, 0))
        self.owners[facts.st_uid] = had[0] + size, had[1] + 1
        self.bytes, self.inodes = self.bytes + size, self.inodes + 1
        self.own += size if alone else 0
        self.newest = max(self.newest, facts.st_mtime)


def _mount_points() -> frozenset[bytes]:
    try:
        with open("/proc/self/mountinfo", errors="surrogateescape") as file:
            mounts = procfs.parse_mountinfo(file.read())
    except OSError:
        return frozenset()
    return frozenset(os.fsencode(mount.point) for mount in mounts)


def _text(path: bytes) -> str:
    return path.decode(errors="backslashreplace")
