"""Which pod and container a process is in, by what nobody inside of it can choose: the outermost name of its control group, and its
process namespace.

Root of a container may make control groups below its own and call them as it likes (with another container's id, or `user.slice`), and
below `user.slice` users do the same. So the first name on the way from the root of the hierarchy counts.
"""

import fcntl
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

_PARENT = 0xB702  # NS_GET_PARENT of ioctl_ns(2)
_OURS = "/proc/self/ns/pid"
_NAMES = re.compile(
    r"/(?P<users>user\.slice)/"
    r"|kubepods[^\n]{0,200}?[-/]pod(?P<pod>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
    r"|(?<![0-9a-f])(?P<container>[0-9a-f]{64})(?![0-9a-f])"
    r"|/(?P<machine>(?:machine-|lxc\.payload[./]|lxc/|systemd-nspawn@)[^/\n]{1,255})"
)
SHORT = 12  # digits of a container's id


class ContainerName(NamedTuple):
    """The pod and the container in which a process runs: the pod's id, and the container's id or name; "" for none."""

    pod: str = ""
    container: str = ""


def container_of(cgroup: str, above: frozenset[str] = frozenset()) -> ContainerName:
    """The pod and the container in a text of /proc/PID/cgroup, the outermost ones.

    `above`: names that the agent's own groups have, which stand for nobody.
    """
    for line in cgroup.split("\n"):
        names = [one for one in _found(line) if one[1] not in above]
        if names and names[0][0] == "users":
            break
        if names:
            pod = names[0][1] if names[0][0] == "pod" else ""
            inner = (name for kind, name in names if kind in ("container", "machine"))
            return ContainerName(pod, next(inner, ""))
    return ContainerName()


def names_above(cgroup: str) -> frozenset[str]:
    """The pods and containers around the agent, by their names in its own /proc/self/cgroup. Its own pod is left out, since a process
    with that name is another container of the same pod.
    """
    pods: list[str] = []
    others: set[str] = set()
    for kind, name in _found(cgroup):
        if kind == "pod":
            pods.append(name)
        elif kind != "users":
            others.add(name)
    return frozenset(others.union(pods) - set(pods[-1:]))


def _found(text: str) -> Iterator[tuple[str, str]]:
    for one in _NAMES.finditer(text):
        kind = one.lastgroup or ""
        name = one[kind]
        yield kind, name[:SHORT] if kind == "container" else name.replace("_", "-") if kind == "pod" else name  # fmt: skip


def outer_namespace(path: str) -> str:
    """The process namespace at `path`, as "pid:[NUMBER]"; where namespaces are nested, the outermost one below the agent's.

    "" for the agent's own, and where it cannot be read.
    """
    found = ""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return found
    try:
        while not os.path.samestat(os.fstat(handle), os.stat(_OURS)):
            found = f"pid:[{os.fstat(handle).st_ino}]"
            parent = fcntl.ioctl(handle, _PARENT)
            os.close(handle)
            handle = parent
    except OSError:  # ours lies beside it, or deeper
        pass
    finally:
        os.close(handle)
    return found
