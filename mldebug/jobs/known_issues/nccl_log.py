"""What NCCL says in a job's log: which network it took, over which interfaces, and which peers it lost. Pure, bounded.

`node-2:5776:5902 [0] transport/net_ib.cc:1296 NCCL WARN NET/IB : Got completion from peer 10.2.0.5<33092> with error 12`

Any program that writes the log can write such lines, so nothing of it is more than "its log says". A line is believed where it is
whole and names one writer, and that writer may be a rank of this job: a process of this node that is none of its ranks
(another job, an earlier launch) is ignored.
"""

import re
from collections.abc import Collection

import msgspec

from mldebug.core.model import MeasuredData
from mldebug.core.redact import clean

MAX_PEERS = 16  # of one kind
MAX_INTERFACES = 16
MAX_HOSTS = 4096
REFUSED, UNREACHABLE, BROKEN, CLOSED = "refused", "unreachable", "broken", "closed"

_HOST = r"[A-Za-z0-9][\w.-]{0,63}"
_LINE = re.compile(
    rf"(?:^|[\s\]:])(?P<host>{_HOST}):(?P<pid>\d{{1,10}}):\d{{1,10}} \[-?\d{{1,4}}\] (?:[\w./-]{{1,80}}:\d{{1,6}} (?:\(\w{{1,60}}\) )?)?"
    r"NCCL (?P<level>INFO|WARN) (?P<text>.{1,1000})$"
)
_ADDRESS = r"(?:\d{1,3}\.){3}\d{1,3}|[0-9a-fA-F]{0,4}(?::[0-9a-fA-F]{0,4}){2,7}"
_INTERFACE = re.compile(
    rf"(?:\[\d{{1,3}}\]|OOB |Using )(?P<name>[A-Za-z][\w.-]{{0,31}}):(?P<address>{_ADDRESS})(?=[<%\s]|$)"
)
_NETWORK = re.compile(r"Using network (?P<network>[\w /-]{1,40}?)\s*$")
_VERSION = re.compile(
    r"(?:^|NCCL INFO )NCCL version (?P<version>\d{1,3}(?:\.\d{1,4}){1,2})(?![.\d])"
)
_PEER = r"(?P<peer>[A-Za-z0-9:][\w.:%-]{0,79})<\d{1,5}>"
_TROUBLES = (
    (REFUSED, re.compile(rf"onnect to {_PEER} .{{0,80}}Connection refused(?!.*retrying)")),
    (UNREACHABLE, re.compile(rf"onnect to {_PEER} .{{0,80}}(?:Connection timed out|No route to host|Network is unreachable|Host is (?:down|unreachable)|Software caused connection abort)(?!.*retrying)")),
    (BROKEN, re.compile(rf"completion from peer {_PEER} with (?:error 12\b|status=(?:\w{{1,40}}\()?12\b)")),
    (CLOSED, re.compile(rf"Connection closed by remote peer {_PEER}")),
)  # fmt: skip


_ADAPTER = re.compile(r"\[\d{1,3}\](?P<name>[A-Za-z][\w.-]{0,31}:\d{1,3}/\w{1,12})")
_OFI = re.compile(
    r"NET/OFI Selected [Pp]rovider is (?P<name>[\w;*.-]{1,40}).{0,100}\(found (?P<many>\d{1,3}) nics\)"
)
_NONE = "NET/IB : No device found"


def adapters_of(text: str) -> tuple[str, ...] | None:
    """The network adapters that a line of NCCL's log lists, () where it says that there are none; None for any other line.

    `NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_bond_0:1/IB [RO]; OOB eth0:10.0.0.1<0>`
    `NET/OFI Selected provider is efa, fabric is efa-direct (found 15 nics)`
    """
    if text.startswith("NET/IB : Using "):
        names = tuple(found["name"] for found in _ADAPTER.finditer(text.partition("; OOB")[0]))
        return names or None  # "Using interface eth0 for sideband communication"
    if text.startswith(_NONE):
        return ()
    ofi = _OFI.match(text)
    return tuple(f"{ofi['name']}/{number}" for number in range(int(ofi["many"]))) if ofi else None


class NcclLogFacts(MeasuredData, frozen=True, kw_only=True):
    """What NCCL's lines in a job's log have shown so far: version, networks, interfaces, lost peers."""

    version: str = ""
    networks: tuple[str, ...] = ()  # IB, Socket, AWS Libfabric: as NCCL calls them
    interfaces: dict[str, str] = {}  # name -> address
    peers: dict[
        str, tuple[str, ...]
    ] = {}  # refused, unreachable, broken, closed -> addresses or names
    hosts: dict[str, str] = {}  # address -> the host that said it is its own
    adapters: dict[
        str, tuple[str, ...]
    ] = {}  # host:pid -> what that process found: "mlx5_0:1/RoCE"; of OFI only how many


class LogWriters(msgspec.Struct, frozen=True, kw_only=True):
    """The processes whose NCCL lines in a log count for one job: its ranks on this node and, with `elsewhere`, every process of
    another host.
    """

    node: str
    pids: Collection[int]  # as they are called here and in their own namespace
    elsewhere: bool = False

    def writes(self, host: str, pid: int) -> bool:
        """Whether a line that this host and pid wrote may belong to the job."""
        here = host.partition(".")[0] == self.node.partition(".")[0]
        return pid in self.pids or (self.elsewhere and not here)


class NcclLog:
    """Collects from NCCL's lines in a log its version, the networks and interfaces that it took, and the addresses of peers.

    `strange`: the number of lines that were left out, as processes of other jobs wrote them.
    """

    def __init__(self) -> None:
        self.strange = 0
        self._version = ""
        self._networks: dict[str, None] = {}
        self._sockets = False
        self._interfaces: dict[str, str] = {}
        self._peers: dict[str, dict[str, None]] = {}
        self._hosts: dict[str, str] = {}
        self._adapters: dict[str, tuple[str, ...]] = {}

    def add_line(self, line: str, ours: LogWriters) -> None:
        """Read one line of the log, without its end. Lines that are not NCCL's, are incomplete, or come from a process outside
        `ours` are ignored.
        """
        if line.count(" NCCL ") - line.count(" NCCL INFO NCCL version ") > 1:
            return  # two lines that ran into each other
        found = _LINE.search(line)
        if found is None:
            self._bare(line)
        elif not ours.writes(found["host"], int(found["pid"])):
            self.strange += 1
        else:
            self._take(found["host"], found["level"], found["text"])
            self._note_adapters(f"{found['host']}:{found['pid']}", found["text"])

    def facts(self) -> NcclLogFacts:
        """All facts that the lines of NCCL's log have told so far."""
        networks = tuple(self._networks) or (("Socket",) if self._sockets else ())
        return NcclLogFacts(
            version=self._version,
            networks=networks,
            interfaces=dict(self._interfaces),
            peers={kind: tuple(peers) for kind, peers in self._peers.items()},
            hosts=dict(self._hosts),
            adapters=dict(self._adapters),
        )

    def _bare(self, line: str) -> None:
        """`NCCL version 2.14.3+cuda11.7` stands alone in its line."""
        if found := _VERSION.match(line):
            self._version = found["version"]

    def _take(self, host: str, level: str, text: str) -> None:
        if level == "WARN":
            self._trouble(text)
        elif found := _NETWORK.search(text):
            self._networks.setdefault(clean(found["network"], 40))
        elif found := _VERSION.search(text):
            self._version = found["version"]
        elif text.startswith(("NET/", "Bootstrap")):
            self._interface(host, text)

    def _interface(self, host: str, text: str) -> None:
        for found in _INTERFACE.finditer(text):
            self._sockets |= text.startswith("NET/Socket")
            name, address = found["name"], found["address"]
            if name in self._interfaces or len(self._interfaces) < MAX_INTERFACES:
                self._interfaces[name] = address
            if len(self._hosts) < MAX_HOSTS and not is_local(name, address):
                self._hosts.setdefault(address, host)

    def _note_adapters(self, writer: str, text: str) -> None:
        """The adapters that a process found; the last such line of it counts."""
        found = adapters_of(text)
        if found is not None and (writer in self._adapters or len(self._adapters) < MAX_HOSTS):
            self._adapters[writer] = found

    def _trouble(self, text: str) -> None:
        for kind, pattern in _TROUBLES:
            found = pattern.search(text)
            peers = self._peers.setdefault(kind, {}) if found else {}
            if found and len(peers) < MAX_PEERS:
                peers.setdefault(clean(found["peer"], 80))


_LOCAL = re.compile(
    r"lo|(?:docker|podman|cni|virbr|lxcbr|lxdbr)\d{1,3}|veth\w{1,15}|br-[0-9a-f]{12}"
)


def is_local(name: str, address: str = "") -> bool:
    """Whether a network interface reaches no other node: loopback, a container bridge, or one with a link-local address."""
    return _LOCAL.fullmatch(name) is not None or address.startswith(("169.254.", "127."))
