"""The incidents of a fleet: searched by words, verdict, node, user, job and time; those that are like one of them; what people have noted. Pure."""

import re
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from mldebug.core.model.base import ReportData
from mldebug.core.ranksets import fold_nodes, unfold_nodes
from mldebug.core.text import plural, rfc3339
from mldebug.fleet.events import AnyEvent, AttemptEvent, IncidentEvent, NoteEvent

MOST = 200  # incidents of one answer
ALIKE = 0.5  # share of the words of two sentences that both have, from which they tell the same
ALIKE_UNKNOWN = 0.7  # where no verdict says that they are of one kind
_WORD = re.compile(r"[a-z_]{3,}")


class FleetNote(ReportData, frozen=True, kw_only=True):
    """A note that a person has written about an incident. `at`: RFC 3339."""

    at: str
    author: str
    text: str


class FoundIncident(ReportData, frozen=True, kw_only=True):
    """An incident by the last event of each of its nodes. Times are RFC 3339; `ended`: "" while it lasts; `nodes`: those that reported it, folded."""

    incident: str
    kind: str
    at: str
    ended: str
    outcome: str
    verdict: str
    confidence: str
    sentence: str
    job: str
    run: str
    user: str
    uid: int
    nodes: str
    culprits: tuple[str, ...]  # nodes
    notes: tuple[FleetNote, ...] = ()


class IncidentList(ReportData, frozen=True, kw_only=True):
    """Incidents, the newest first. `total`: how many fit; only the newest `MOST` are written out."""

    total: int
    incidents: tuple[FoundIncident, ...]


class SimilarIncidents(ReportData, frozen=True, kw_only=True):
    """An incident, and those before and after it that were alike. `noted`: what people have written about any of them, the newest first."""

    incident: FoundIncident
    alike: int  # those that are alike
    similar: tuple[FoundIncident, ...]
    noted: tuple[FleetNote, ...]


class IncidentQuery(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for: all that is given has to fit. Times are unix seconds."""

    words: str = ""  # each of them, anywhere in what the incident and its notes say
    verdict: str = ""
    node: str = ""  # that told it, or is blamed
    user: str = ""  # name or number
    job: str = ""  # name, or id of a run
    since: float = 0.0
    until: float = float("inf")


def search(events: Sequence[AnyEvent], wanted: IncidentQuery) -> IncidentList:
    """The incidents that fit. `events`: incidents, notes and attempts (which know the names of users), in the order of their times."""
    found = [one for one in incidents(events) if _fits(one, wanted)]
    return IncidentList(total=len(found), incidents=tuple(found[:MOST]))


def similar(events: Sequence[AnyEvent], incident: str) -> SimilarIncidents | None:
    """Incidents that are like the one with the id `incident`, with the notes about them; None where the events have no such incident."""
    found = incidents(events)
    mine = next((one for one in found if one.incident == incident), None)
    if mine is None:
        return None
    alike = [one for one in found if one is not mine and are_alike(one, mine)]
    notes = sorted((note for one in (mine, *alike) for note in one.notes), key=lambda one: one.at, reverse=True)  # fmt: skip
    return SimilarIncidents(incident=mine, alike=len(alike), similar=tuple(alike[:MOST]), noted=tuple(notes[:MOST]))  # fmt: skip


def incidents(events: Sequence[AnyEvent]) -> list[FoundIncident]:
    """All incidents of these events, the newest first. Several nodes may tell one."""
    users = {one.uid: one.user for one in events if isinstance(one, AttemptEvent) and one.user}
    by_id: dict[str, list[IncidentEvent]] = {}
    notes: dict[str, list[FleetNote]] = {}
    for event in events:
        if isinstance(event, IncidentEvent):
            by_id.setdefault(event.incident, []).append(event)
        elif isinstance(event, NoteEvent):
            note = FleetNote(at=rfc3339(event.at), author=event.author, text=event.text)
            notes.setdefault(event.incident, []).append(note)
    found = [_found(own, users, notes.get(id, [])) for id, own in by_id.items()]
    return sorted(found, key=lambda one: one.at, reverse=True)


def are_alike(one: FoundIncident, other: FoundIncident) -> bool:
    """Whether two incidents are similar: they have one verdict, and most words of their sentences are equal. Names, numbers and
    addresses are not compared."""
    if (one.verdict, one.kind) != (other.verdict, other.kind):
        return False
    mine, theirs = _words(one), _words(other)
    if not mine or not theirs:
        return mine == theirs and one.verdict not in ("", "unknown")
    least = ALIKE_UNKNOWN if one.verdict in ("", "unknown") else ALIKE
    return len(mine & theirs) >= least * len(mine | theirs)


def _words(one: FoundIncident) -> frozenset[str]:
    """The words of its sentence that name nothing of this one incident: no job, no node."""
    names = {one.job.lower(), *(node.lower() for node in one.culprits)}
    text = " ".join(word for word in one.sentence.lower().split() if word.strip(".,:;()'\"") not in names)  # fmt: skip
    whole = (word for word in re.split(r"[^a-z0-9_]+", text) if not any(sign.isdigit() for sign in word))  # fmt: skip
    return frozenset(word for word in whole if _WORD.fullmatch(word))


def _found(events: Sequence[IncidentEvent], users: dict[int, str], notes: Sequence[FleetNote]) -> FoundIncident:  # fmt: skip
    last = events[-1]
    judged = next((one for one in reversed(events) if one.verdict not in ("", "unknown")), last)
    ended = max((one.ended for one in events if one.ended is not None), default=None)
    return FoundIncident(
        incident=last.incident,
        kind=last.incident_kind,
        at=rfc3339(min(one.since for one in events)),
        ended="" if ended is None else rfc3339(ended),
        outcome=next((one.outcome for one in reversed(events) if one.outcome), ""),
        verdict=judged.verdict,
        confidence=judged.confidence,
        sentence=judged.sentence,
        job=last.job,
        run=last.run,
        user=users.get(last.uid, ""),
        uid=last.uid,
        nodes=fold_nodes({one.node for one in events}),
        culprits=tuple(dict.fromkeys(one.node for one in judged.culprits if one.node)),
        notes=tuple(notes),
    )


def _fits(one: FoundIncident, wanted: IncidentQuery) -> bool:
    nodes = f"{one.nodes} {' '.join(one.culprits)}"
    text = f"{one.incident} {one.kind} {one.verdict} {one.sentence} {one.job} {one.run} {one.user} {nodes} {' '.join(note.text for note in one.notes)}".lower()
    return (
        all(word in text for word in wanted.words.lower().split())
        and wanted.verdict in ("", one.verdict)
        and (
            not wanted.node
            or wanted.node in one.culprits
            or wanted.node in unfold_nodes(one.nodes, groups=False)
        )
        and wanted.user in ("", one.user, str(one.uid))
        and wanted.job in ("", one.job, one.run)
        and rfc3339(wanted.since) <= one.at <= rfc3339(min(wanted.until, 1e11))
    )


def incident_lines(found: Iterable[FoundIncident]) -> Iterator[str]:
    """Incidents as lines for a person."""
    for one in found:
        judged = f"{one.verdict or 'unknown'} ({one.confidence})" if one.confidence else one.verdict or "unknown"  # fmt: skip
        state = one.outcome or "ended" if one.ended else "lasts"
        yield f"{one.at[:19]}Z  {one.incident}  {one.job or '-'} of {one.user or one.uid}: {judged}, {state}"
        yield f"    {one.sentence}"
        for note in one.notes:
            yield f"    note of {note.author}, {note.at[:10]}: {note.text}"


def similar_lines(found: SimilarIncidents) -> Iterator[str]:
    """Similar incidents and their notes, as lines of text."""
    yield from incident_lines((found.incident,))
    if not found.alike:
        yield "Nothing like it is known to the hub."
        return
    yield f"Seen {plural(found.alike, 'more time')}:"
    yield from incident_lines(found.similar)
