"""What the rules for known traps must know of this node: RDMA ports, IOMMU, the kernel's arguments, /etc/hosts."""

import contextlib
import os
from collections.abc import Iterable

from mldebug.core.redact import clean
from mldebug.jobs.known_issues.model import NodeFacts
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader

MAX_DEVICES, MAX_PORTS = 64, 4
MAX_HOSTS_FILE = 1 << 20
MAX_HOSTS = 20_000
MAX_STATE = 64  # bytes of a port's state: "4: ACTIVE"
TIMEOUT = 2.0  # seconds for one path: the state of a port is asked from its card


def read_node(host: Host, reader: Reader) -> NodeFacts:
    """Look once. What cannot be read is left out; nothing here waits longer than a read that times out."""
    arguments = f"{host.proc}/cmdline"
    ports = dict(_ports(f"{host.root}/sys/class/infiniband"))
    states = reader.read_many([*ports, arguments], max_bytes=4096, timeout=TIMEOUT)
    given = states[arguments]
    active = {ports[path] for path in ports if _is_active(states[path])}
    return NodeFacts(
        machine=os.uname().machine,
        rdma=tuple(sorted(active)),
        iommu=bool(_names(f"{host.root}/sys/class/iommu")),
        kernel_arguments=tuple(given.decode(errors="replace").split())
        if isinstance(given, bytes)
        else (),
        cores=os.cpu_count() or 0,
        hosts=_hosts(reader.read_file(f"{host.root}/etc/hosts", max_bytes=MAX_HOSTS_FILE)),
    )


def _ports(folder: str) -> Iterable[tuple[str, str]]:
    """Path of a port's state, and its device."""
    for device in _names(folder)[:MAX_DEVICES]:
        for port in _names(f"{folder}/{device}/ports")[:MAX_PORTS]:
            yield f"{folder}/{device}/ports/{port}/state", clean(device, 40)


def _is_active(state: object) -> bool:
    return isinstance(state, bytes) and b"ACTIVE" in state[:MAX_STATE]


def _names(folder: str) -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(os.listdir(folder))
    return []


def _hosts(text: object) -> dict[str, str]:
    """Address -> first name; the first line of an address counts."""
    if not isinstance(text, bytes):
        return {}
    found: dict[str, str] = {}
    for line in text.decode(errors="replace").splitlines()[:MAX_HOSTS]:
        words = line.partition("#")[0].split()
        if len(words) > 1:
            found.setdefault(words[0], clean(words[1], 80))
    return found
