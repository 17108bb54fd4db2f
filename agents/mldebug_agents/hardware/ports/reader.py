"""Reads the network ports of this node from /sys/class/infiniband and /sys/class/net. Runs in a worker thread.

Folders are listed here, files are read through the reader child: of an adapter whose firmware is dead a counter may not come back for a
minute. Of network interfaces only those of PCI and virtio devices count: no bridges, no pairs of containers, no USB, no wireless, and no
virtual functions, which come and go with pods.
"""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping

import msgspec

from mldebug.core.model import Gap
from mldebug.hardware.ports.parse import PortPlace, PortReading, parse_port
from mldebug.hardware.ports.state import NodePorts, PortWatch, used_by
from mldebug_agents.system.host import Failure, Host, Paths
from mldebug_agents.system.process.proc_files import names_in

MAX_DEVICES, MAX_PORTS, MAX_NETS = 64, 4, 128
MAX_FILE = 256  # bytes of one file
TIMEOUT = 5.0  # seconds for all files
WAY_OUT = "see dmesg for the adapter: its firmware may be dead"
NOT_FOR_JOBS = ("wireless", "phy80211", "device/physfn")


class PortOrder(msgspec.Struct, frozen=True, kw_only=True):
    """An order to read the network ports. `wanted`: the values of NCCL_IB_HCA of the jobs on this node; `flap_window`: for
    how many seconds a lost link is counted as a flap; `earlier`: the highest rate (Gb/s) of each port that an earlier
    agent found up, by name.
    """

    wanted: tuple[str, ...] = ()
    flap_window: float = 7200.0
    earlier: dict[str, float] = {}


class PortReader:
    """Reads all ports and compares each reading with the ones before. `steady` returns monotonic seconds."""

    def __init__(self, host: Host, reader: Paths, steady: Callable[[], float] = time.monotonic) -> None:  # fmt: skip
        self._host, self._reader, self._steady = host, reader, steady
        self._watch = PortWatch()

    def look(self, order: PortOrder) -> NodePorts:
        """Read each port once. A port with a file that was not read in time keeps its last state and is listed in `gaps`."""
        self._watch.resume(order.earlier)
        readings, silent = self.read()
        states = self._watch.take(readings, self._steady(), order.flap_window, silent)
        gaps = tuple(Gap(what=f"port {name}", reason=why, way_out=WAY_OUT) for name, why in silent.items())  # fmt: skip
        return NodePorts(at=self._host.clock(), ports=used_by(states, order.wanted), gaps=gaps)

    def read(self) -> tuple[list[PortReading], dict[str, str]]:
        """Every port as it is now; and, by name, the reason for each port that could not be read in time."""
        places = list(port_places(self._host.root))
        paths = [path for place in places for path in place.files()]
        read = self._reader.read_many(paths, max_bytes=MAX_FILE, timeout=TIMEOUT)
        texts = {path: data.decode(errors="replace") for path, data in read.items() if isinstance(data, bytes)}  # fmt: skip
        found: list[PortReading] = []
        silent: dict[str, str] = {}
        for place in places:
            why = _no_answer({path: read[path] for path in place.files()})
            if why:
                silent[place.name] = why
            elif (one := parse_port(place, texts)) is not None:
                found.append(one)
        return found, silent


def _no_answer(read: Mapping[str, bytes | Failure]) -> str:
    """Why a port is to be read later: a file of it hangs, or there was no time for it; else ""."""
    for path, one in read.items():
        if not isinstance(one, bytes) and (one.stuck or one.errno == errno.EAGAIN):
            return f"{path}: {one.reason}"
    return ""


def port_places(root: str) -> Iterator[PortPlace]:
    """Yield the place of each network port of this node below `root`/sys, RDMA ports first."""
    devices, nets = f"{root}/sys/class/infiniband", f"{root}/sys/class/net"
    interfaces = {name: f"{nets}/{name}" for name in names_in(nets)[:MAX_NETS] if _for_jobs(f"{nets}/{name}")}  # fmt: skip
    bonds = {name: bond for name, folder in interfaces.items() if (bond := _bond(folder))}
    of_net: dict[str, str] = {}
    for device in names_in(devices)[:MAX_DEVICES]:
        folder = f"{devices}/{device}"
        own = names_in(f"{folder}/device/net")
        shared = _shared(own, interfaces, bonds, folder)
        for port in names_in(f"{folder}/ports")[:MAX_PORTS]:
            name = f"{device}/{port}"
            netdev = bonds[own[0]] if shared else own[0] if len(own) == 1 else ""
            of_net |= dict.fromkeys((*own, *shared), name)
            yield PortPlace(name=name, folder=f"{folder}/ports/{port}", device=folder, netdev=netdev)  # fmt: skip
    for name, folder in interfaces.items():
        yield PortPlace(name=name, folder=folder, rdma=of_net.get(name, ""), bond=bonds.get(name, ""))  # fmt: skip


def _bond(folder: str) -> str:
    """The bond that a network interface belongs to; "" for none. Bridges and others have no `bonding`."""
    master = os.path.realpath(f"{folder}/master")
    return os.path.basename(master) if os.path.isdir(f"{master}/bonding") else ""


def _shared(own: list[str], interfaces: Mapping[str, str], bonds: Mapping[str, str], device: str) -> list[str]:  # fmt: skip
    """The other interfaces that an RDMA device sends through: it stands for a bond (`mlx5_bond_0`) of the ports of one adapter, of which
    only the first is listed below it, and the others have no RDMA device of their own.
    """
    if len(own) != 1 or own[0] not in bonds:
        return []
    slot = _slot(device)
    return [
        name
        for name, folder in interfaces.items()
        if name != own[0] and bonds.get(name) == bonds[own[0]]
        if _slot(folder) == slot and not os.path.lexists(f"{folder}/device/infiniband")
    ]


def _slot(folder: str) -> str:
    """The PCI address of a device without its function, which the ports of one adapter share."""
    return os.path.basename(os.path.realpath(f"{folder}/device")).rpartition(".")[0]


def _for_jobs(folder: str) -> bool:
    """Whether a network interface is a port of its own. InfiniBand's (type 32) are counted as RDMA ports."""
    if not os.path.lexists(f"{folder}/device") or "/usb" in os.path.realpath(f"{folder}/device"):
        return False
    with contextlib.suppress(OSError), open(f"{folder}/type") as file:  # the port went meanwhile
        if file.read(8).strip() != "1":
            return False
    return not any(os.path.lexists(f"{folder}/{name}") for name in NOT_FOR_JOBS)
