"""Where a run's nodes are, by the site's configured topology: racks, switches, rooms. Pure."""

from collections.abc import Mapping

import msgspec

from mldebug.core.model import QueriedNodes
from mldebug.core.ranksets import unfold_nodes

Topology = Mapping[str, str]
"""Label -> its nodes, folded: `{"rack07": "node[001-016]"}`."""


def placed(queried: QueriedNodes, topology: Topology | None) -> QueriedNodes:
    """The nodes, each with the label (rack, switch) that the topology gives for its full or short name.

    Raises UsageError for an invalid node list in the topology.
    """
    if not topology:
        return queried
    places: dict[str, str] = {}
    for label, nodes in topology.items():
        for name in unfold_nodes(nodes):
            places.setdefault(name, label)
    names = ((node, node.name.partition(".")[0]) for node in queried.nodes)
    labelled = (
        msgspec.structs.replace(one, place=places.get(one.name) or places.get(short, ""))
        for one, short in names
    )
    return msgspec.structs.replace(queried, nodes=tuple(labelled))
