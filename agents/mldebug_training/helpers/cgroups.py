"""How much memory the control groups (versions 1 and 2) of this process leave it. Page cache counts as free, since the kernel takes
it back.
"""

from __future__ import annotations

import os

from mldebug_training.common.interrupted import pass_on

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_NO_LIMIT = 1 << 60  # version 1 says so by a number like this
_LIMITS = {2: ("memory.max", "memory.high"), 1: ("memory.limit_in_bytes",)}
_USAGE = {2: "memory.current", 1: "memory.usage_in_bytes"}
_CACHED = {
    2: ("inactive_file", "active_file", "slab_reclaimable"),
    1: ("total_inactive_file", "total_active_file"),
}


class CgroupLimit:
    """One memory limit of one control group, identified by its folder and file."""

    def __init__(self, folder: str, file: str, name: str, version: int) -> None:
        self._folder, self._file, self._version = folder, file, version
        self.name = f"{file} of cgroup {name}"

    def bytes(self) -> int | None:
        """The limit in bytes; None where there is none."""
        limit = _number(os.path.join(self._folder, self._file))
        return None if limit is None or limit >= _NO_LIMIT else limit

    def left(self, limit: int, enough: float) -> int | None:
        """How many bytes are left of `limit`; None where the use cannot be read. The page cache counts as free only if less
        than `enough` is left without it.
        """
        used = _number(os.path.join(self._folder, _USAGE[self._version]))
        if used is None or limit - used >= enough:
            return None if used is None else limit - used
        stat = os.path.join(self._folder, "memory.stat")
        cached = sum(_table(stat, _CACHED[self._version]))
        return max(0, limit - max(0, used - cached))


def limits(root: str = "/") -> list[CgroupLimit]:
    """All memory limits of this process's control groups and of those above them. Never raises OSError."""
    found = [
        CgroupLimit(folder, file, name, version)
        for folder, name, version in _groups(root)
        for file in _LIMITS[version]
    ]
    return [one for one in found if one.bytes() is not None]


def meminfo(root: str = "/") -> tuple[int, int] | None:
    """Bytes available and total bytes of the host; None where /proc does not tell. `root`: the folder that holds /proc, for
    tests.
    """
    found = _table(os.path.join(root, "proc/meminfo"), ("MemAvailable:", "MemTotal:"))
    return (found[0] << 10, found[1] << 10) if len(found) == 2 else None


def _groups(root: str) -> Iterator[tuple[str, str, int]]:
    """(folder, name, version) of the memory groups of this process and of all above it."""
    mounts = list(_mounts(root))
    for line in _read(os.path.join(root, "proc/self/cgroup")).splitlines():
        number, _, rest = line.partition(":")
        kinds, _, group = rest.partition(":")
        version = 2 if number == "0" and not kinds else 1 if "memory" in kinds.split(",") else 0
        for place, base, its_version in mounts if version else ():
            if its_version == version:
                yield from _upward(
                    os.path.join(root, place.lstrip("/")), _below(group, base), version
                )
                break


def _mounts(root: str) -> Iterator[tuple[str, str, int]]:
    """(mount point, what of the hierarchy is mounted there, version)."""
    for line in _read(os.path.join(root, "proc/self/mountinfo")).splitlines():
        words, _, after = line.partition(" - ")
        parts, kind = words.split(" "), after.split(" ")
        if len(parts) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2":
            yield parts[4], parts[3], 2
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
            yield parts[4], parts[3], 1


def _below(group: str, base: str) -> str:
    """A group's place below what is mounted. A container that sees its group by the host's name has it as its root."""
    if base in ("", "/"):
        return "" if group.startswith("/..") else group.strip("/")
    inside = group == base or group.startswith(f"{base}/")
    return group[len(base) :].strip("/") if inside else ""


def _upward(mount: str, below: str, version: int) -> Iterator[tuple[str, str, int]]:
    while True:
        yield os.path.join(mount, below), f"/{below}", version
        if not below:
            return
        below = below.rpartition("/")[0]


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return os.fsdecode(file.read(1 << 20))
    except OSError as error:
        pass_on(error)
        return ""


def _number(path: str) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isascii() and text.isdigit() else None  # "max" is none


def _table(path: str, names: tuple[str, ...]) -> list[int]:
    """The numbers behind these names, in this order; those that are missing are left out."""
    rows = (line.split() for line in _read(path).splitlines())
    found = {row[0]: row[1] for row in rows if len(row) >= 2}
    return [int(found[name]) for name in names if found.get(name, "").isdigit()]
