"""The memory groups of processes, versions 1 and 2, and those above them: any of these may be the one that is full."""

from collections.abc import Iterable, Iterator
from posixpath import join
from typing import NamedTuple

from mldebug_agents.system.host import Host

FILES = {
    2: ("memory.max", "memory.current", "memory.stat", "memory.high", "memory.events"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "memory.oom_control"),
}
MAX_GROUPS = 64


class MemoryCgroup(NamedTuple):
    """A control group with a memory controller: its folder on this node, its name, the version of its hierarchy."""

    folder: str
    name: str
    version: int


class _Mounted(NamedTuple):
    point: str
    base: str  # what of the hierarchy is mounted there
    version: int


def groups_of(host: Host, pids: Iterable[int]) -> list[MemoryCgroup]:
    """The control groups of these processes and all groups above them, each once; at most `MAX_GROUPS`."""
    mounts = list(_mounts(_mountinfo(host)))
    found: dict[MemoryCgroup, None] = {}
    for pid in pids:
        for version, name in _named(host.text(pid, "cgroup")):
            for mount in mounts:
                if mount.version == version:
                    found |= dict.fromkeys(_upward(host.root, mount, name))
                    break
    return list(found)[:MAX_GROUPS]


def _mountinfo(host: Host) -> str:
    return host.self_text("mountinfo")


def _mounts(text: str) -> Iterator[_Mounted]:
    for line in text.splitlines():
        words, _, after = line.partition(" - ")
        parts, kind = words.split(" "), after.split(" ")
        if len(parts) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2":
            yield _Mounted(parts[4], parts[3], 2)
        elif kind[0] == "cgroup" and "memory" in kind[2].split(","):
            yield _Mounted(parts[4], parts[3], 1)


def _named(text: str) -> Iterator[tuple[int, str]]:
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        kinds, _, name = rest.partition(":")
        if number == "0" and not kinds:
            yield 2, name
        elif "memory" in kinds.split(","):
            yield 1, name


def _upward(root: str, mount: _Mounted, name: str) -> Iterator[MemoryCgroup]:
    base = mount.base.rstrip("/")
    inside = name == base or name.startswith(f"{base}/")
    if not inside or name.startswith("/.."):
        return  # a neighbour of the agent's own container: none of its limits can be seen from here
    below = name[len(base) :].strip("/")
    while True:
        yield MemoryCgroup(
            join(f"{root}{mount.point}", below).rstrip("/"), f"/{below}", mount.version
        )
        if not below:
            return
        below = below.rpartition("/")[0]
