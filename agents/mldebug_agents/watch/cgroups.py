"""The control groups of a process: their folders, in both versions of the kernel's interface."""

from collections.abc import Iterator
from posixpath import join
from typing import NamedTuple

from mldebug_agents.system import procfs
from mldebug_agents.system.host import Host
from mldebug_agents.system.procfs import Mount


class Cgroup(NamedTuple):
    """A control group: its folder on this node, its name, the version of its hierarchy."""

    folder: str
    name: str
    version: int


class CgroupMounts:
    """Where the control groups of a controller (memory, cpu) are mounted on this node, as of now."""

    def __init__(self, host: Host, controller: str) -> None:
        self._host, self._controller = host, controller
        mounts = procfs.parse_mountinfo(host.self_text("mountinfo"))
        self._mounts = [(one, version) for one in mounts if (version := self._version(one))]

    def of(self, pid: int) -> Iterator[Cgroup]:
        """The group of a process and all groups above it, innermost first."""
        for controllers, name in procfs.parse_cgroups(self._host.text(pid, "cgroup")):
            version = 1 if self._controller in controllers else 2 if not controllers else 0
            for mount, of_version in self._mounts:
                if of_version == version:
                    yield from _upward(self._host.root, mount, version, name)
                    break

    def _version(self, mount: Mount) -> int:
        """The version of the control groups of this mount that have the controller; 0: it has none of them."""
        if mount.fstype == "cgroup2":
            return 2
        return int(mount.fstype == "cgroup" and self._controller in mount.options.split(","))


def _upward(root: str, mount: Mount, version: int, name: str) -> Iterator[Cgroup]:
    base = mount.root.rstrip("/")
    inside = name == base or name.startswith(f"{base}/")
    if not inside or name.startswith("/.."):
        return  # a neighbour of the agent's own container: none of its limits can be seen from here
    below = name[len(base) :].strip("/")
    while True:
        folder = join(f"{root}{mount.point}", below).rstrip("/")
        yield Cgroup(folder, f"/{below}", version)
        if not below:
            return
        below = below.rpartition("/")[0]
