"""Known issues that NCCL's own log lines show: a wrong network or interface, peers that refuse, close or do not answer. Data."""

from collections import Counter
from collections.abc import Iterable, Sequence

from mldebug.jobs.known_issues.model import IssueRule, JobFacts
from mldebug.jobs.known_issues.nccl_log import BROKEN, CLOSED, REFUSED, UNREACHABLE, is_local
from mldebug.jobs.known_issues.setting_rules import NCCL_SETTINGS, network_off

MAX_NAMED = 4
TROUBLES = "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html"


def _sockets(facts: JobFacts) -> str:
    if not facts.several_nodes or not facts.node.rdma or network_off(facts):
        return ""
    only = facts.nccl_log.networks == ("Socket",)
    return f"NCCL uses sockets beside {', '.join(facts.node.rdma[:MAX_NAMED])}" if only else ""


def _interfaces(facts: JobFacts) -> str:
    found = facts.nccl_log.interfaces.items() if facts.several_nodes else ()
    local = [f"{name} ({address})" for name, address in found if is_local(name, address)]
    return f"NCCL uses {', '.join(local[:MAX_NAMED])}" if local else ""


def _adapters(facts: JobFacts) -> str:
    """Processes that found fewer adapters than others of the run, or the same number of another kind of link."""
    found = facts.nccl_log.adapters
    counts = Counter(len(names) for names in found.values())
    if len(counts) > 1:
        most = max(counts)
        fewer = [f"{who} {len(names)}" for who, names in found.items() if len(names) < most]
        return f"network adapters that NCCL found: {_few(fewer)}; {counts[most]} of {len(found)} processes {most}"
    links = Counter(
        tuple(sorted(Counter(_link(name) for name in names).items())) for names in found.values()
    )
    if len(links) < 2:
        return ""
    usual = links.most_common(1)[0][0]
    others = [
        f"{who} {', '.join(names[:2])}"
        for who, names in found.items()
        if tuple(sorted(Counter(map(_link, names)).items())) != usual
    ]
    return f"NCCL found another kind of adapters: {_few(others)}; others {_links(usual)}"


def _link(name: str) -> str:
    """`IB`, `RoCE`, `bond/RoCE`: what a list of adapters is compared by, as names may differ from node to node."""
    link = name.rpartition("/")[2]
    return (
        f"bond/{link}"
        if "bond" in name
        else link
        if not link.isdecimal()
        else name.partition("/")[0]
    )


def _links(counted: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{many} x {link}" for link, many in counted)


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def _peers(facts: JobFacts, kind: str, words: str) -> str:
    """`its log says: {words} 10.2.0.5 (r10i6n5)`, at most `MAX_NAMED` peers; "" for none."""
    peers = facts.nccl_log.peers.get(kind, ())
    if not peers:
        return ""
    names = [_named(peer, facts) for peer in peers[:MAX_NAMED]]
    more = f" and {len(peers) - MAX_NAMED} more" if len(peers) > MAX_NAMED else ""
    return f"its log says: {words} {', '.join(names)}{more}"


def _named(peer: str, facts: JobFacts) -> str:
    """The peer with its host name in brackets: from a rank's own NCCL lines, else from /etc/hosts."""
    host = facts.nccl_log.hosts.get(peer) or facts.node.hosts.get(peer, "")
    return f"{peer} ({host})" if host and host != peer else peer


RULES = (
    IssueRule(
        name="sockets_beside_rdma",
        when="a job on several nodes, RDMA devices with an active port, no setting that asks for it",
        wrong="NCCL did not find or could not use them: slow, and often a container without its devices",
        todo="give the container /dev/infiniband and the memlock limit, or see what NCCL_DEBUG=INFO says of NET/IB",
        source=TROUBLES,
        check=_sockets,
    ),
    IssueRule(
        name="interface_of_one_node",
        when="a job on several nodes",
        wrong="nobody on another node can be reached over that interface: the job may hang",
        todo="set NCCL_SOCKET_IFNAME to the interface of the network between the nodes",
        source=NCCL_SETTINGS,
        check=_interfaces,
    ),
    IssueRule(
        name="fewer_adapters",
        when="`NET/IB : Using [0]mlx5_0:1/IB …`, `NET/OFI … (found 15 nics)` or `No device found` of two ranks or more that differ (`NCCL_DEBUG=INFO`, also in `NCCL_DEBUG_FILE`)",
        wrong="an adapter or a bond is missing, down or not given to that rank's container, and all others wait for the rank with the least",
        todo="compare `ibstat` and /dev/infiniband of the nodes named; NCCL_IB_HCA must fit both",
        source=TROUBLES,
        check=_adapters,
    ),
    IssueRule(
        name="peer_refused",
        when="`Connect to PEER failed : Connection refused`",
        wrong="that rank has ended, never started, or a firewall is between",
        todo="look at the peer's node first, not at the one that wrote the line",
        source=TROUBLES,
        check=lambda facts: _peers(facts, REFUSED, "connection refused by"),
    ),
    IssueRule(
        name="peer_unreachable",
        when="`Connect to PEER failed : Connection timed out`, `No route to host`, `Software caused connection abort`",
        wrong="nothing answers at that address: a firewall, a wrong interface, or the node is gone",
        todo="from this node, try the port of the peer; compare NCCL_SOCKET_IFNAME with the address",
        source=TROUBLES,
        check=lambda facts: _peers(facts, UNREACHABLE, "no connection to"),
    ),
    IssueRule(
        name="rdma_path_broken",
        when="`Got completion from peer PEER with error 12`",
        wrong="the RDMA path to it is broken, though Ethernet may work",
        todo="look at link, subnet manager and partition of both nodes: ibstat, ib_write_bw",
        source=TROUBLES,
        check=lambda facts: _peers(facts, BROKEN, "no answer over RDMA (error 12) from"),
    ),
    IssueRule(
        name="peer_closed",
        when="`Connection closed by remote peer PEER`",
        wrong="that rank has most likely ended, and this one follows from it",
        todo="read the end of the peer's log first",
        source=TROUBLES,
        check=lambda facts: _peers(facts, CLOSED, "connection closed by"),
    ),
)  # fmt: skip
