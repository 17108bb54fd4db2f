"""The network ports of the nodes of one run, compared: a node with fewer ports, slower ones, or another kind of link than most.

Every collective goes at the pace of its slowest node, and a port that came up at half of its rate looks well to its own node. Nodes
that are unlike by design make no majority, and then nothing is said. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from mldebug.core.model import NodeCapture, NodePort
from mldebug.core.ranksets import fold_nodes
from mldebug.core.redact import clean
from mldebug.core.text import plural
from mldebug.hardware.ports.state import NodePorts, PortState

MAX_PORTS = 256  # of one node
MAX_LINES, MAX_KINDS, MAX_NAMES, MAX_WORD, MAX_WORDS = 8, 6, 4, 32, 80

_Kind = tuple[str, bool, float]  # link, whether it is a bond, Gbit/s


def ports_to_compare(node: NodePorts) -> tuple[NodePort, ...]:
    """The ports that jobs on this node may use: RDMA ports, else its fastest Ethernet port, as a node is managed by others.

    Ports that were never up, or that somebody switched off, are left out.
    """
    counted = [one for one in node.ports if one.used and one.once_up and not one.now.off]
    rdma = [one for one in counted if one.now.link != "ethernet"]
    plain = (one for one in counted if one.now.up and one.now.link == "ethernet")
    fastest = sorted(plain, key=lambda one: -(one.now.gigabits or 0.0))[:1]
    bonds = {one.now.bond for one in node.ports} - {""}
    return tuple(_port(one, bonds) for one in (rdma or fastest)[:MAX_PORTS])


def rdma_gigabits(node: NodePorts) -> float:
    """What the RDMA ports carry, in Gb/s, that jobs on this node may use and that are up; 0 where there is none or a rate is not known."""
    rdma = [one for one in ports_to_compare(node) if one.link != "ethernet" and one.up]
    return sum(one.gigabits for one in rdma) if all(one.gigabits for one in rdma) else 0.0


def _port(one: PortState, bonds: set[str]) -> NodePort:
    now, up = one.now, bool(one.now.up)
    return NodePort(
        name=now.name,
        link=now.link,
        up=up,
        gigabits=now.gigabits or 0.0 if up else 0.0,
        bond=now.netdev in bonds,
    )


def unlike_ports(captures: Iterable[NodeCapture]) -> tuple[str, ...]:
    """One sentence for each group of nodes whose ports are alike and are not those of most nodes of the run; at most 8.

    `network ports of b: 7 x 400 Gb/s infiniband, 1 x 200 Gb/s infiniband (mlx5_3/1); of 31 other nodes: 8 x 400 Gb/s
    infiniband`
    """
    ports = {one.node: one.ports[:MAX_PORTS] for one in captures if one.ports}
    groups: dict[tuple[tuple[_Kind, int], ...], list[str]] = {}
    for node, mine in ports.items():
        groups.setdefault(tuple(sorted(_counted(mine).items())), []).append(node)
    usual = max(groups, key=lambda one: (len(groups[one]), _sum(one)), default=())
    if len(groups) < 2 or 2 * len(groups[usual]) < len(ports):
        return ()
    return tuple(
        _sentence(sorted(nodes), ports, dict(usual), len(groups[usual]))
        for kinds, nodes in sorted(groups.items())
        if kinds != usual
    )[:MAX_LINES]


def _counted(ports: Sequence[NodePort]) -> Counter[_Kind]:
    """Ports that are up, by kind: names and places differ from node to node."""
    return Counter((one.link, one.bond, one.gigabits) for one in ports if one.up)


def _sum(kinds: tuple[tuple[_Kind, int], ...]) -> float:
    return sum(gigabits * many for (_, _, gigabits), many in kinds)


def _sentence(nodes: Sequence[str], ports: Mapping[str, Sequence[NodePort]], usual: Mapping[_Kind, int], many: int) -> str:  # fmt: skip
    mine = ports[nodes[0]]
    found = _counted(mine)
    odd = {kind for kind in found if found[kind] > usual.get(kind, 0)}
    names = {
        kind: [one.name for one in mine if one.up and (one.link, one.bond, one.gigabits) == kind]
        for kind in odd
    }
    words = [_words(kind, found[kind], names.get(kind, ())) for kind in sorted(found, reverse=True)]
    down = [one.name for one in mine if not one.up]
    mine_words = _list(words) + (f", down: {_few(down)}" if down else "")
    like = _list([_words(kind, count) for kind, count in sorted(usual.items(), reverse=True)])
    who = clean(fold_nodes(nodes), MAX_WORDS)
    return f"network ports of {who}: {mine_words}; of {plural(many, 'other node')}: {like}"


def _list(words: Sequence[str]) -> str:
    """The kinds of ports, a few of them."""
    more = ", …" if len(words) > MAX_KINDS else ""
    return ", ".join(words[:MAX_KINDS]) + more if words else "none up"


def _words(kind: _Kind, many: int, names: Sequence[str] = ()) -> str:
    link, bond, gigabits = kind
    rate = f"{gigabits:g} Gb/s " if gigabits else ""
    what = f"{clean(link, MAX_WORD)}{' bond' if bond else ''}"
    return f"{many} x {rate}{what}{f' ({_few(names)})' if names else ''}"


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(clean(name, MAX_WORD) for name in names[:MAX_NAMES]) + more
