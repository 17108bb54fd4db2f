"""The one way to a path that a job names: it is opened with the rights of the rank's user, all folders above it included.

An agent has more rights than the jobs that it looks at, so a path that a job chose must never be opened with the agent's own. Three
ways lead there, by what the agent is: root takes the user's place in the file system (fsuid, fsgid, groups) while it opens; a user with
CAP_DAC_READ_SEARCH goes step by step and asks what the kernel would ask; who has the user's rights and no others just opens.

Below /proc/PID/root links stay inside that root, and below a learned place none is followed. A descriptor, /proc/PID/fd/N, is the
user's own where the process is; that of another's process counts only where its user reaches the same file by its name.
"""

import ctypes
import errno
import os
import re
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from functools import cache
from typing import Self

import msgspec

from mldebug_agents.system.child.acl import allows
from mldebug_agents.system.child.refusals import Refusal, Refused

READ, WRITE, SEARCH = 4, 2, 1  # as in the last digit of a mode
PATH = os.O_PATH | os.O_CLOEXEC
_IN_ROOT = re.compile(
    rb"(/proc/(?:\d+|self)/root)(?:/(.*))?", re.DOTALL
)  # a folder proc elsewhere is anybody's
_DESCRIPTOR = re.compile(rb"(/proc)/(\d+|self)(?:/task/\d+)?/fd/\d+", re.DOTALL)
_OPENAT2 = 437  # the same number on every architecture
_NO_LINKS, _IN_ROOT_ONLY = 0x04, 0x10  # RESOLVE_NO_SYMLINKS, RESOLVE_IN_ROOT
_MAX_LINKS = 40
_DAC = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
_IDENTITY = 1 << 6 | 1 << 7  # CAP_SETGID, CAP_SETUID
_GET_SECUREBITS, _NO_SETUID_FIXUP = 27, 1 << 2
_UNMAPPED = 65534  # how a user or group shows that this user namespace has no number for
_libc = ctypes.CDLL(None, use_errno=True)


class Rights(msgspec.Struct, frozen=True, array_like=True):
    """The user with whose rights a path is opened: the owner of process `pid` (a rank), which
    started at `start` (clock ticks since boot; 0: not known).

    `everything`: root with the capability to read every file. `name`: instead of a user's rights,
    the name that an open file must have (the log that a container runtime writes for the rank).
    `root`: the folder below which the process's /proc lies, "" for the node's own.
    """

    uid: int
    gid: int = -1
    groups: tuple[int, ...] = ()
    pid: int = 0
    everything: bool = False
    name: str = ""
    start: int = 0
    root: str = ""


OPERATOR = Rights(-1)
"""The agent's own rights: for what its configuration or the node names, and no job. They open nothing below /proc/PID/root or /proc/PID/fd."""
NO_RIGHTS = Rights(-2)
"""Of a process whose user may not look into it, or is not known: nothing is opened."""


class _Way(Enum):
    PLAIN = 0
    BECOME = 1
    CHECK = 2


class Access:
    """A context in which paths are opened with the rights of a user.

    For one thread only: user and group are changed for this thread, the extra groups for the whole
    process.
    """

    def __init__(self, rights: Rights) -> None:
        self.rights = rights
        self.way = _way(rights)
        self._groups: list[int] = []

    def __enter__(self) -> Self:
        if self.way is _Way.BECOME:
            self._groups = os.getgroups()
            try:
                os.setgroups(self.rights.groups)
                _set(_libc.setfsgid, self.rights.gid)
                _set(_libc.setfsuid, self.rights.uid)  # last: it takes the capabilities away
            except OSError:
                self.__exit__()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        if self.way is not _Way.BECOME:
            return
        try:
            _set(_libc.setfsuid, os.geteuid())
            _set(_libc.setfsgid, os.getegid())
            os.setgroups(self._groups)
        except OSError:  # never go on as somebody else
            os._exit(1)

    def check(self, handle: int, wanted: int) -> None:
        """Raise `Refused` where the user lacks the right `wanted` to what an O_PATH descriptor holds.

        Does nothing where the kernel itself checks this user.
        """
        if self.way is _Way.CHECK and not _may(handle, self.rights, wanted):
            raise Refused(Refusal.NOT_REACHED)


@contextmanager
def held(path: bytes, rights: Rights, *, place: int = 0) -> Iterator[tuple[int, Access]]:
    """A context that holds what a path names by an O_PATH descriptor, found with the rights of that
    user. Nothing is opened for reading yet.

    `place`: how many bytes of the path were found out by the agent itself; no link below them is
    followed. 0: only a last link is not followed. Raises OSError, and `Refused` where no rights are
    known or the user's do not lead there.
    """
    access = Access(rights)
    is_open = _match(_DESCRIPTOR, path, rights) is not None and not _match(_IN_ROOT, path, rights)
    with closing(_descriptor(path, access) if is_open else _start(path, rights)) as first:
        try:
            with access:
                if is_open:
                    yield first, access
                    return
                with closing(_named(first, path, access, place)) as handle:
                    if rights.name and _name_of(handle) not in _names(rights):
                        raise Refused(Refusal.NOT_REACHED)
                    yield handle, access
        except PermissionError:
            if access.way is not _Way.BECOME:  # it is the agent that may not
                raise
            raise Refused(Refusal.NOT_REACHED) from None


def reopen(handle: int, access: Access, *, folder: bool = False, more: int = 0) -> int:
    """Open for reading what an O_PATH descriptor holds, if it is a regular file (or with `folder` a folder). `more`: further flags.

    Raises `Refused` for others, OSError for a link.
    """
    mode = os.fstat(handle).st_mode
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if not (stat.S_ISDIR(mode) if folder else stat.S_ISREG(mode)):
        raise Refused(Refusal.NOT_REGULAR)
    access.check(handle, READ | SEARCH if folder else READ)
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    return os.open(b"/proc/self/fd/%d" % handle, flags | more | (os.O_DIRECTORY if folder else 0))


def _match(pattern: re.Pattern[bytes], path: bytes, rights: Rights) -> re.Match[bytes] | None:
    """Match a path that begins in the /proc of these rights; its group 1 ends where `path` may be cut."""
    before = os.fsencode(rights.root)
    return pattern.fullmatch(path, len(before)) if path.startswith(before) else None


def _start(path: bytes, rights: Rights) -> int:
    """The root that the path begins at, by the agent's own right: that way is the kernel's, not the job's."""
    inside = _match(_IN_ROOT, path, rights)
    if not path.startswith(b"/"):  # from where on, nobody knows
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if rights == OPERATOR and inside:
        raise Refused(Refusal.NO_RIGHTS)
    top = path[: inside.end(1)] if inside else b"/"
    root = os.open(top, PATH | os.O_DIRECTORY)
    if inside and not _still_there(top[: -len(b"/root")], rights):
        os.close(root)
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
    return root


def _still_there(folder: bytes, rights: Rights) -> bool:
    """Whether /proc/PID is still the rank, and not another process that has got its number since; of other processes nothing is known."""
    if not rights.start or folder.rpartition(b"/")[2] != b"%d" % rights.pid:
        return True
    with open(folder + b"/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19]) == rights.start


def _named(root: int, path: bytes, access: Access, place: int) -> int:
    """The rest of the path below its root: up to a learned place with links, below it without."""
    inside = _match(_IN_ROOT, path, access.rights)
    begin = inside.end(1) if inside else 0
    flags = PATH | os.O_NOFOLLOW
    if not place:
        return open_inside(root, path[begin:], flags, access=access, links=not access.rights.name)
    middle = max(place, begin)
    with closing(open_inside(root, path[begin:middle], PATH, access=access)) as base:
        return open_inside(base, path[middle:], flags, access=access, links=False)


def _descriptor(path: bytes, access: Access) -> int:
    """An open file of a process, where it is the user's, or where the user reaches the same file by its name."""
    rights = access.rights
    if rights == OPERATOR:
        raise Refused(Refusal.NO_RIGHTS)
    handle = os.open(path, PATH)
    try:
        name = _name_of(handle)
        theirs = name in _names(rights) if rights.name else _is_theirs(path, rights)
        if not theirs and (rights.name or not _reached(name, handle, access)):
            raise Refused(Refusal.NOT_REACHED)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _name_of(handle: int) -> bytes:
    return os.readlink(b"/proc/self/fd/%d" % handle)


def _names(rights: Rights) -> tuple[bytes, bytes]:
    """What the file of a container runtime is called, and what after it was rotated."""
    return os.fsencode(rights.name), os.fsencode(f"{rights.name}.1")


def _is_theirs(path: bytes, rights: Rights) -> bool:
    """Whether the process belongs to the user, who may look into it (else the kernel gives its files to root).

    Root of a container is not root of the node: there the processes of one mount namespace belong together.
    """
    found = _match(_DESCRIPTOR, path, rights)
    if found is None or not _still_there(path[: found.end(2)], rights):
        return False
    if os.stat(path[: found.end(2)] + b"/stat").st_uid != rights.uid:
        return False
    if rights.uid != 0 or found[2] == b"%d" % rights.pid:
        return True
    proc = path[: found.end(1)]
    mine, other = (b"%b/%b/ns/mnt" % (proc, pid) for pid in (b"%d" % rights.pid, found[2]))
    return os.readlink(mine) == os.readlink(other)


def _reached(name: bytes, handle: int, access: Access) -> bool:
    """Whether this name leads the user, from the root directory of the user's process, to the file that is held."""
    flags = PATH | os.O_NOFOLLOW
    try:
        proc = os.fsencode(access.rights.root)
        top = _start(b"%b/proc/%d/root" % (proc, access.rights.pid), access.rights)
        with closing(top), access:
            other = open_inside(top, name, flags, access=access, links=False)
    except (OSError, Refused):
        return False  # he cannot reach it, for whatever reason
    with closing(other):
        return os.path.samestat(os.fstat(other), os.fstat(handle))


# --- a way below a root ----------------------------------------------------------------------------------


def open_inside(
    root: int, rest: bytes, flags: int, *, access: Access | None = None, links: bool = True
) -> int:
    """Open `rest` below the directory `root` as openat2(RESOLVE_IN_ROOT) does.

    It is done by hand where the user's right to each step has to be checked, or where the kernel
    (before 5.6) or a seccomp filter has no openat2. `links`: whether links are followed. Returns the
    descriptor; raises OSError.
    """
    if access is not None and access.way is _Way.CHECK:
        return walk_inside(root, rest, flags, access=access, links=links)
    resolve = _IN_ROOT_ONLY if links else _IN_ROOT_ONLY | _NO_LINKS
    how = struct.pack("<QQQ", flags, 0, resolve)
    for _ in range(8):
        fd = _libc.syscall(_OPENAT2, root, rest.lstrip(b"/") or b".", how, len(how))
        if fd >= 0:
            return int(fd)
        if ctypes.get_errno() != errno.EAGAIN:  # EAGAIN: a rename somewhere came between
            break
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EPERM):
        return walk_inside(root, rest, flags, access=access, links=links)
    raise OSError(number, os.strerror(number))


def walk_inside(
    root: int, rest: bytes, flags: int, *, access: Access | None = None, links: bool = True
) -> int:
    """Open `rest` below the directory `root`, component by component; `..` and links never leave it. Returns the descriptor;
    raises OSError, ELOOP for too many links or for any where `links` is false.
    """
    trail = [root]
    names = rest.split(b"/")[::-1]
    followed = 0
    try:
        while names:
            name = names.pop()
            if name in (b"", b"."):
                continue
            if access is not None:
                access.check(trail[-1], SEARCH)
            if name == b"..":
                if len(trail) > 1:
                    os.close(trail.pop())
                continue
            trail.append(os.open(name, PATH | os.O_NOFOLLOW, dir_fd=trail[-1]))
            is_link = stat.S_ISLNK(os.fstat(trail[-1]).st_mode)
            if is_link and (any(names) or not flags & os.O_NOFOLLOW):
                followed += 1
                if followed > _MAX_LINKS or not links:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                _follow(trail, names)
        return os.dup(trail[-1])
    finally:
        for fd in trail[1:]:
            os.close(fd)


def _follow(trail: list[int], names: list[bytes]) -> None:
    link = trail.pop()
    try:
        target = os.readlink(b"", dir_fd=link)
    finally:
        os.close(link)
    if target.startswith(b"/"):
        while len(trail) > 1:
            os.close(trail.pop())
    names.extend(target.split(b"/")[::-1])


# --- whose rights ----------------------------------------------------------------------------------------


def _way(rights: Rights) -> _Way:
    """How this process comes to have the rights of that user, and no others; raises `Refused` where nobody's are known."""
    if rights == OPERATOR or rights.name or rights.everything:
        return _Way.PLAIN
    if rights.uid < 0:
        raise Refused(Refusal.NO_RIGHTS)
    powers = _powers()
    if rights.uid == os.geteuid() and not powers & _DAC:
        return _Way.PLAIN
    if rights.uid and not os.geteuid() and powers & _IDENTITY == _IDENTITY and _drops():
        return _Way.BECOME
    return _Way.CHECK


def _may(handle: int, rights: Rights, wanted: int) -> bool:
    """What the kernel would say to this user: owner, then access list, group, others. Where we cannot be sure: no."""
    facts = os.fstat(handle)
    unsure = () if _knows_all_ids() else (_UNMAPPED,)
    groups = {rights.gid, *rights.groups}.difference(unsure)
    if facts.st_uid == rights.uid:
        return rights.uid not in unsure and facts.st_mode >> 6 & wanted == wanted
    return allows(handle, facts, rights.uid, groups, wanted)


@cache
def _powers() -> int:
    with open("/proc/self/status", "rb") as file:
        found = re.search(rb"^CapEff:\s*([0-9a-f]+)$", file.read(), re.MULTILINE)
    return int(found[1], 16) if found else ~0


@cache
def _drops() -> bool:
    """Whether root loses the capabilities over files with its fsuid: who set this bit does not want that."""
    return not _libc.prctl(_GET_SECUREBITS, 0, 0, 0, 0) & _NO_SETUID_FIXUP


@cache
def _knows_all_ids() -> bool:
    """Whether users and groups of all files have a number here, as they do in no inner user namespace."""
    with open("/proc/self/uid_map", "rb") as file:
        return file.read().split() == [b"0", b"0", b"4294967295"]


def _set(call: "ctypes._NamedFuncPointer", number: int) -> None:
    """setfsuid or setfsgid, which tell no error: asked again for the number that there is not, they say what it is now."""
    call(number)
    if call(-1) & 0xFFFFFFFF != number:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))


@contextmanager
def closing(handle: int) -> Iterator[int]:
    """A descriptor, closed at the end of the block."""
    try:
        yield handle
    finally:
        os.close(handle)
