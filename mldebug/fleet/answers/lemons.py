"""Which nodes are lemons: those that cause far more than their share of failures. Pure.

Each piece of evidence has a weight, which halves every two weeks. What happens again within a day to the same part, or to the same job at
the same node, is one piece: a job that was restarted 14 times on a bad GPU has met one bad GPU. What a program did by itself counts for
no node, since a rank of a faulty program is a culprit on whichever node it stands.

What one node says of another is believed only of jobs that the other one has told of itself, and only up to a limit: an agent that
was taken over makes no lemon of its neighbours.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from mldebug.core.model.base import ReportData
from mldebug.core.ranksets import fold_nodes
from mldebug.core.text import plural, rfc3339
from mldebug.fleet.answers.built_in import BuiltIn
from mldebug.fleet.events import (
    AnyEvent,
    AttemptEvent,
    HardwareFaultEvent,
    IncidentEvent,
    ProbeEvent,
)

DAY = 86400.0
WINDOW, HALF_LIFE = 90 * DAY, 14 * DAY
LEMON = 2.0  # score from which a node is a lemon, with at least LEAST pieces of evidence
LEAST = 2
MOST_STRAY = 64  # GPUs built in nowhere that an answer names
HARDWARE_VERDICTS = ("gpu_fault", "network_fault", "node_unreachable")
WEIGHTS = {"high": 1.0, "medium": 0.5}  # of an incident, by confidence
FAULTS = {"critical": 1.0, "warning": 0.25}
NO_HARDWARE = ("memory", "storage")  # components that jobs fill
NO_DEFECT = ("check_job", "check_settings")  # actions about the job or the settings
SLOW, PROBE = 0.5, 0.5  # weights: a slow rank, a probe that has become slower
MANY_JOBS, OTHER = 3, 0.25  # so many jobs must blame one node for other things, until each counts
MOST_REASONS = 6
ONE_SENDER = 1.0  # the greatest weight of all that one node says against another


class Reason(ReportData, frozen=True, kw_only=True):
    """One piece of evidence against a node. `weight`: as it counts now; `at`: RFC 3339."""

    kind: str  # hardware_fault, incident, probe
    at: str
    weight: float
    sentence: str
    part: str = ""  # the GPU, where it is one: its serial number or uuid
    report: str = ""


class NodeScore(ReportData, frozen=True, kw_only=True):
    """What is known against a node. `standing`: lemon; ill (a critical fault lasts now); watch (there is some evidence); well."""

    node: str
    score: float
    standing: str
    pieces: int  # of evidence
    reasons: tuple[Reason, ...]  # the heaviest first


class LemonList(ReportData, frozen=True, kw_only=True):
    """The nodes of a fleet against which there is evidence, the worst first. `stray_gpus`: those with faults that are built in nowhere now."""

    at: str
    nodes: tuple[NodeScore, ...]
    stray_gpus: tuple[str, ...] = ()

    @property
    def excluded(self) -> tuple[str, ...]:
        """The nodes on which no job should start: lemons, and those that are ill now."""
        return tuple(one.node for one in self.nodes if one.standing in ("lemon", "ill"))


class Piece(NamedTuple):
    """A piece of evidence against a node before its weight has faded. `same`: equal for what counts once within a day."""

    node: str
    kind: str
    at: float
    weight: float
    sentence: str
    same: tuple[str, ...]
    sender: str  # "": the node itself
    part: str = ""
    report: str = ""


def lemons(events: Sequence[AnyEvent], now: float) -> LemonList:
    """The nodes against which stored events speak. `events`: in the order of their times; `now`: unix time."""
    places = BuiltIn(events)
    found = [*_of_faults(events, places), *_of_incidents(events), *_of_probes(events)]
    # each sender's for itself first: what is beyond the limit of one must not have taken the place of another's
    pieces = _distinct(_bounded(_distinct(found, by_sender=True)))
    by_node: dict[str, list[Piece]] = defaultdict(list)
    for piece in pieces:
        if now - piece.at < WINDOW:
            by_node[piece.node].append(piece)
    stray = sorted({piece.part for piece in by_node.pop("", ()) if piece.part})
    ill = ill_nodes(events, places)
    scores = [
        _score(node, by_node.get(node, []), ill.get(node, ""), now) for node in {*by_node, *ill}
    ]
    order = {"lemon": 0, "ill": 1}
    scores.sort(key=lambda one: (order.get(one.standing, 2), -one.score, one.node))
    return LemonList(at=rfc3339(now), nodes=tuple(scores), stray_gpus=_some(stray))


def _some(stray: Sequence[str]) -> tuple[str, ...]:
    """The first of them: a node may invent as many as it likes."""
    more = len(stray) - MOST_STRAY
    return (*stray[:MOST_STRAY], *([f"{more:,} more"] if more > 0 else ()))


def slurm_exclude(found: LemonList) -> str:
    """The excluded nodes as Slurm's --exclude takes them: `node[017-018]`; "" for none."""
    return fold_nodes(found.excluded)


def ill_nodes(events: Sequence[AnyEvent], places: BuiltIn) -> dict[str, str]:
    """By node, the sentence of a critical hardware fault that lasts now, in a part that is still there. Only a node's own events count."""
    newest: dict[tuple[str, str], HardwareFaultEvent] = {}
    for event in events:
        if isinstance(event, HardwareFaultEvent):
            newest[event.node, event.subject] = event
    lasting = (one for one in newest.values() if one.ended is None and one.severity == "critical")
    return {one.node: one.sentence for one in lasting if _is_hardware(one) and places.is_ill_by(one)}  # fmt: skip


def _score(node: str, pieces: list[Piece], ill: str, now: float) -> NodeScore:
    reasons = sorted((_reason(one, now) for one in pieces), key=lambda one: -one.weight)
    score = round(sum(one.weight for one in reasons), 2)
    standing = "watch" if pieces else "well"
    if ill:
        standing = "ill"
    if score >= LEMON and len(pieces) >= LEAST:
        standing = "lemon"
    return NodeScore(
        node=node,
        score=score,
        standing=standing,
        pieces=len(pieces),
        reasons=tuple(reasons[:MOST_REASONS]),
    )


def _reason(one: Piece, now: float) -> Reason:
    faded = one.weight * 0.5 ** (max(0.0, now - one.at) / HALF_LIFE)
    return Reason(
        kind=one.kind,
        at=rfc3339(one.at),
        weight=round(faded, 2),
        sentence=one.sentence,
        part=one.part,
        report=one.report,
    )


def _is_hardware(event: HardwareFaultEvent) -> bool:
    return event.component not in NO_HARDWARE and event.action not in NO_DEFECT


def _of_faults(events: Iterable[AnyEvent], places: BuiltIn) -> Iterator[Piece]:
    for event in events:
        if not isinstance(event, HardwareFaultEvent) or not _is_hardware(event):
            continue
        part = places.part(event.gpu) if event.gpu is not None else ""
        node = places.node_of(event)
        yield Piece(
            node=node,
            kind="hardware_fault",
            at=event.since,
            weight=FAULTS.get(event.severity, 0.0),
            sentence=event.sentence,
            same=("fault", event.component, part or event.node),
            sender="" if node in (event.node, "") else event.node,
            part=part,
        )


def _of_incidents(events: Sequence[AnyEvent]) -> Iterator[Piece]:
    """Of each incident the newest state that each node has sent."""
    newest = {(one.node, one.incident): one for one in events if isinstance(one, IncidentEvent)}
    own = {(one.node, one.job, one.uid) for one in events if isinstance(one, AttemptEvent)}
    others: dict[str, list[Piece]] = defaultdict(list)
    for one in newest.values():
        for node in dict.fromkeys(culprit.node for culprit in one.culprits if culprit.node):
            if node != one.node and (node, one.job, one.uid) not in own:
                continue
            weight = WEIGHTS.get(one.confidence, 0.0)
            if one.verdict == "straggler":
                weight *= SLOW
            piece = Piece(
                node=node,
                kind="incident",
                at=one.since,
                weight=weight,
                sentence=one.sentence,
                same=("incident", node, one.job or one.run, str(one.uid)),
                sender="" if node == one.node else one.node,
                report=one.incident,
            )
            if one.verdict in (*HARDWARE_VERDICTS, "straggler"):
                yield piece
            elif weight:
                others[node].append(piece._replace(weight=OTHER))
    for pieces in others.values():
        if len({one.same for one in pieces}) >= MANY_JOBS:
            yield from pieces


def _of_probes(events: Iterable[AnyEvent]) -> Iterator[Piece]:
    """Measurements on one node alone that have become slower: of several nodes nobody knows which it is."""
    for event in events:
        slower = isinstance(event, ProbeEvent) and event.trend == "shifted" and event.nodes in ("", event.node)  # fmt: skip
        if isinstance(event, ProbeEvent) and slower and (event.change or 0.0) < 0:
            words = f"probe {event.op} is {-100 * (event.change or 0.0):.0f} % slower than usual"
            same = "probe", event.node, event.op
            yield Piece(event.node, "probe", event.at, PROBE, words, same, sender="")


def _distinct(pieces: Iterable[Piece], *, by_sender: bool = False) -> Iterator[Piece]:
    """The pieces that count: the heaviest of those that are the same (and with `by_sender` are said by the same node) and within a day
    of the first.
    """
    by_same: dict[tuple[str, ...], list[Piece]] = defaultdict(list)
    for piece in sorted(pieces, key=lambda one: one.at):
        groups = by_same[(piece.sender, *piece.same) if by_sender else piece.same]
        if groups and piece.at - groups[-1].at < DAY:
            if piece.weight > groups[-1].weight:
                groups[-1] = piece._replace(at=groups[-1].at)
        elif piece.weight > 0:
            groups.append(piece)
    for groups in by_same.values():
        yield from groups


def _bounded(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """The pieces without what is beyond the limit of one sender, the newest first."""
    weights: dict[tuple[str, str], float] = defaultdict(float)
    for piece in sorted(pieces, key=lambda one: -one.at):
        if piece.sender:
            weights[piece.node, piece.sender] += piece.weight
        if weights[piece.node, piece.sender] <= ONE_SENDER:
            yield piece


def lemon_lines(found: LemonList) -> Iterator[str]:
    """The list as lines for a person: each node with its score and the reasons."""
    for one in found.nodes:
        yield f"{one.node}: {one.standing}, score {one.score:g} of {plural(one.pieces, 'piece')} of evidence"
        for reason in one.reasons:
            part = f" ({reason.part})" if reason.part else ""
            report = f", report {reason.report}" if reason.report else ""
            yield f"  {reason.weight:>5.2f}  {reason.at[:10]}  {reason.sentence}{part}{report}"
    if found.stray_gpus:
        yield f"GPUs with faults that are built in nowhere now: {', '.join(found.stray_gpus)}"
