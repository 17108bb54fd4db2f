"""Several hosts on one machine, each with its own name, processes, network interface and address; files are shared.

A bridge in a network namespace of its own is the switch: nothing of it is seen outside. `eth0` of a host can be taken down.
"""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from processes.harness import wait_for
from shared.system.own_names import own_name
from system.hosts import MASTER, Host

SWITCH = "switch"


class NetworkHost(Host):
    """One host that runs, behind its own `eth0`."""

    def __init__(self, name: str, address: str, process: "subprocess.Popen[bytes]") -> None:
        super().__init__(name, process)
        self.address = address

    def inside(self, *argv: str) -> list[str]:
        """The words that run a program there."""
        spaces = ("--pid", "--mount", "--uts", "--net")
        return ["nsenter", f"--target={self.pid}", *spaces, *argv]

    def shape(self, rate: str, device: str = "eth0") -> None:
        """What it sends goes no faster than `rate`, as tc writes it."""
        words = ("rate", rate, "burst", "32kbit", "latency", "400ms")
        argv = self.inside("tc", "qdisc", "add", "dev", device, "root", "tbf", *words)
        subprocess.run(argv, check=True)

    def cable(self, other: "NetworkHost", rate: str) -> None:
        """The two of them, and nobody else, talk over a link of their own, which is no faster than `rate` each way."""
        peer = ("type", "veth", "peer", "name", "cable", "netns", str(other.pid))
        _ip(self.pid, "link", "add", "cable", *peer)
        for host, there in ((self, other), (other, self)):
            _ip(host.pid, "link", "set", "cable", "up")
            _ip(host.pid, "route", "add", f"{there.address}/32", "dev", "cable", "src", host.address)  # fmt: skip
            host.shape(rate, "cable")

    def part(self, other: "NetworkHost") -> None:
        """Nothing goes from here to that host any more."""
        argv = self.inside("ip", "route", "add", "blackhole", f"{other.address}/32")
        subprocess.run(argv, check=True)

    def link(self, state: str) -> None:
        """Take its network `down` or `up`."""
        subprocess.run(self.inside("ip", "link", "set", "eth0", state), check=True)


@contextmanager
def network(names: Sequence[str]) -> Iterator[dict[str, NetworkHost]]:
    """Hosts of these names, 10.77.0.1 and up; at the end nothing of them is left."""
    folder = Path("/run") / own_name()
    folder.mkdir(parents=True)
    addresses = {name: f"10.77.0.{number}" for number, name in enumerate(names, 1)}
    lines = [f"{address} {name}" for name, address in addresses.items()]
    first = addresses[names[0]]
    (folder / "hosts").write_text(
        "\n".join(["127.0.0.1 localhost", *lines, f"{first} {MASTER}", ""])
    )
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in (SWITCH, *names):
            processes[name] = _start(name, folder)
        switch = Host(SWITCH, processes[SWITCH])
        _ip(switch.pid, "link", "add", "br0", "type", "bridge")
        _ip(switch.pid, "link", "set", "br0", "up")
        hosts = {name: NetworkHost(name, addresses[name], processes[name]) for name in names}
        for number, host in enumerate(hosts.values(), 1):
            _plug(switch.pid, host, number)
        yield hosts
    finally:
        for process in processes.values():
            process.kill()
            process.wait(10)
        shutil.rmtree(folder)


def _start(name: str, folder: Path) -> "subprocess.Popen[bytes]":
    ready = folder / f"ready.{name}"
    setting = 'hostname "$1" && mount --bind "$2" /etc/hosts && : >"$3" && exec sleep infinity'
    process = subprocess.Popen(
        [
            *("setpriv", "--pdeathsig", "KILL"),  # a pytest that is killed leaves no hosts
            *("unshare", "--fork", "--kill-child", "--pid", "--mount-proc", "--uts", "--net"),
            *("sh", "-c", setting, "host", name, str(folder / "hosts"), str(ready)),
        ],
        stdin=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    wait_for(f"host {name}", ready.exists, 20)
    return process


def _plug(switch: int, host: NetworkHost, number: int) -> None:
    port = f"port{number}"
    _ip(switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", str(host.pid))
    _ip(switch, "link", "set", port, "master", "br0", "up")
    _ip(host.pid, "link", "set", "lo", "up")
    _ip(host.pid, "addr", "add", f"{host.address}/24", "dev", "eth0")
    _ip(host.pid, "link", "set", "eth0", "up")


def _ip(pid: int, *words: str) -> None:
    subprocess.run(["nsenter", f"--target={pid}", "--net", "ip", *words], check=True)
