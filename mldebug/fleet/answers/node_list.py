"""All nodes of a fleet: when each sent its last event, what is unhealthy on it, and whether it is a lemon (causes more than its share of failures). Pure."""

from collections.abc import Iterator, Sequence

from mldebug.core.model.base import ReportData
from mldebug.core.text import aligned, rfc3339
from mldebug.fleet.answers.lemons import LemonList
from mldebug.fleet.answers.retry import SILENT
from mldebug.fleet.events import AnyEvent, NodeHealthEvent

ORDER = {"lemon": 0, "ill": 1, "silent": 2, "watch": 3, "well": 4}


class FleetNode(ReportData, frozen=True, kw_only=True):
    """One node by its newest inventory. `standing`: lemon, ill, silent (nothing was heard of it for hours), watch, well; `unhealthy`:
    component -> state.
    """

    node: str
    standing: str
    score: float
    last_sent: str  # RFC 3339
    version: str
    gpus: int
    unhealthy: dict[str, str]


class NodeList(ReportData, frozen=True, kw_only=True):
    """All nodes, the worst first. `standings`: how many stand how."""

    standings: dict[str, int]
    nodes: tuple[FleetNode, ...]


def node_list(inventories: Sequence[AnyEvent], lemons: LemonList, now: float) -> NodeList:
    """The nodes of which an inventory was sent, or against which there is evidence. `inventories`: the newest of each node."""
    newest = {one.node: one for one in inventories if isinstance(one, NodeHealthEvent)}
    scores = {one.node: one for one in lemons.nodes}
    found = []
    for node in newest.keys() | scores.keys():
        health, score = newest.get(node), scores.get(node)
        standing = score.standing if score is not None else "well"
        silent = health is not None and now - health.at > SILENT and ORDER[standing] > ORDER["silent"]  # fmt: skip
        found.append(
            FleetNode(
                node=node,
                standing="silent" if silent else standing,
                score=score.score if score is not None else 0.0,
                last_sent=rfc3339(health.at) if health is not None else "",
                version=health.version if health is not None else "",
                gpus=len(health.gpus) if health is not None else 0,
                unhealthy=dict(health.components) if health is not None else {},
            )
        )
    found.sort(key=lambda one: (ORDER[one.standing], -one.score, one.node))
    counts = {standing: sum(one.standing == standing for one in found) for standing in ORDER}
    return NodeList(standings=counts, nodes=tuple(found))


def node_lines(found: NodeList) -> Iterator[str]:
    """The nodes as a table for a person, after how many stand how."""
    yield ", ".join(f"{count} {standing}" for standing, count in found.standings.items() if count) or "no node has sent anything yet"  # fmt: skip
    rows = [("node", "standing", "score", "GPUs", "last sent", "unhealthy")]
    for one in found.nodes:
        unhealthy = ", ".join(f"{name} {state}" for name, state in one.unhealthy.items())
        rows.append((one.node, one.standing, f"{one.score:g}", str(one.gpus), one.last_sent[:19], unhealthy))  # fmt: skip
    if found.nodes:
        yield from aligned(rows)
