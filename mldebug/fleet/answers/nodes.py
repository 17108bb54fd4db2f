"""The history of one node: its faults, the incidents in which it was the culprit, its probes, and GPUs that were built in or taken out. Pure."""

from collections.abc import Iterator, Sequence

from mldebug.core.model.base import ReportData
from mldebug.core.text import plural, rfc3339
from mldebug.fleet.answers.lemons import LemonList, NodeScore
from mldebug.fleet.events import (
    AnyEvent,
    HardwareFaultEvent,
    IncidentEvent,
    NodeHealthEvent,
    ProbeEvent,
)

MOST = 200  # entries, the newest


class NodeEntry(ReportData, frozen=True, kw_only=True):
    """One thing that happened. `kind`: hardware_fault, incident, probe, gpu_in, gpu_out; `ended`: RFC 3339, "" where it lasts or is one moment."""

    at: str
    ended: str
    kind: str
    sentence: str
    part: str = ""
    report: str = ""


class NodeHistory(ReportData, frozen=True, kw_only=True):
    """A node: the evidence against it (None: there is none), its GPUs by its newest inventory, and its entries, the newest first."""

    node: str
    version: str
    last_sent: str  # when its agent has sent something last, RFC 3339
    score: NodeScore | None
    gpus: tuple[str, ...]
    entries: tuple[NodeEntry, ...]


def history(node: str, events: Sequence[AnyEvent], lemons: LemonList) -> NodeHistory:
    """The history of a node. `events`: all of the node, and the incidents of all nodes, in the order of their times."""
    inventories = [one for one in events if isinstance(one, NodeHealthEvent) and one.node == node]
    newest = inventories[-1] if inventories else None
    found = [*_faults(node, events), *_incidents(node, events), *_probes(node, events), *_swaps(inventories)]  # fmt: skip
    found.sort(key=lambda one: one.at, reverse=True)
    mine = [one.at for one in events if one.node == node]
    return NodeHistory(
        node=node,
        version=newest.version if newest else "",
        last_sent=rfc3339(max(mine)) if mine else "",
        score=next((one for one in lemons.nodes if one.node == node), None),
        gpus=tuple(f"{one.model} {one.serial or one.uuid}" for one in newest.gpus)
        if newest
        else (),
        entries=tuple(found[:MOST]),
    )


def _faults(node: str, events: Sequence[AnyEvent]) -> Iterator[NodeEntry]:
    newest = {one.subject: one for one in events if isinstance(one, HardwareFaultEvent) and one.node == node}  # fmt: skip
    for one in newest.values():
        part = (one.gpu.serial or one.gpu.uuid) if one.gpu else ""
        yield _entry(one.since, one.ended, "hardware_fault", one.sentence, part=part)


def _incidents(node: str, events: Sequence[AnyEvent]) -> Iterator[NodeEntry]:
    newest = {one.incident: one for one in events if isinstance(one, IncidentEvent)}
    for one in newest.values():
        if any(culprit.node == node for culprit in one.culprits):
            words = f"{one.verdict} ({one.confidence}): {one.sentence}"
            yield _entry(one.since, one.ended, "incident", words, report=one.incident)


def _probes(node: str, events: Sequence[AnyEvent]) -> Iterator[NodeEntry]:
    """Those that are not as usual."""
    for one in events:
        if isinstance(one, ProbeEvent) and one.node == node and one.change is not None and one.trend in ("shifted", "improved"):  # fmt: skip
            words = f"probe {one.op}: {100 * one.change:+.0f} % against the runs before"
            yield _entry(one.at, one.at, "probe", words)


def _swaps(inventories: Sequence[NodeHealthEvent]) -> Iterator[NodeEntry]:
    """GPUs that one inventory has and the one before it had not, and the other way round."""
    before: dict[str, str] | None = None
    for one in inventories:
        now = {gpu.serial or gpu.uuid: gpu.model for gpu in one.gpus}
        if before is not None:
            for part in now.keys() - before.keys():
                yield _entry(one.at, one.at, "gpu_in", f"{now[part]} was built in", part=part)
            for part in before.keys() - now.keys():
                yield _entry(one.at, one.at, "gpu_out", f"{before[part]} is not listed any more", part=part)  # fmt: skip
        before = now


def _entry(at: float, ended: float | None, kind: str, sentence: str, *, part: str = "", report: str = "") -> NodeEntry:  # fmt: skip
    over = "" if ended is None else rfc3339(ended)
    return NodeEntry(at=rfc3339(at), ended=over, kind=kind, sentence=sentence, part=part, report=report)  # fmt: skip


def history_lines(found: NodeHistory) -> Iterator[str]:
    """The history of a node as lines for a person."""
    standing = f"{found.score.standing}, score {found.score.score:g}" if found.score else "no evidence against it"  # fmt: skip
    yield f"{found.node}: {standing}, {plural(len(found.gpus), 'GPU')}, last heard of {found.last_sent or 'never'}"
    for one in found.entries:
        until = f" until {one.ended[:19]}Z" if one.ended and one.ended != one.at else ""
        part = f" ({one.part})" if one.part else ""
        report = f", report {one.report}" if one.report else ""
        yield f"    {one.at[:19]}Z{until}  {one.kind}: {one.sentence}{part}{report}"
