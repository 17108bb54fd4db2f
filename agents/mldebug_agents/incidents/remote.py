"""Stalls that several nodes know: each is reported under one id, with one report over all nodes.

Used by the main loop's thread only.
"""

import logging
import platform
from collections.abc import Iterator

import msgspec

from mldebug.cluster.messages import AnnouncedExit, Whole
from mldebug.cluster.run_identity import RunKey, job_key
from mldebug.core.model import NodeCapture, QueriedNodes
from mldebug.core.report_model import IncidentState
from mldebug.incidents.incident import (
    Incident,
    add_cause,
    add_node_captures,
    add_timeline,
    add_whole,
    is_unreported,
)
from mldebug_agents.incidents.recent_failures import RecentFailures
from mldebug_agents.incidents.report_writer import IncidentWriter, owner_of
from mldebug_agents.state.store import StateStore
from mldebug_agents.system.context import versions
from mldebug_agents.watch.judging import judge
from mldebug_agents.watch.runs import Run

log = logging.getLogger("mldebug")

RENAMED = "other nodes know it already: from now on under their id"
MEMO = "case:"
MAX_STORED = (
    8 << 20
)  # bytes of a case with the captures of all nodes: a larger one is known to this agent alone


class RemoteIncidents:
    """Incidents that concern several nodes: stalls that other nodes announce, and captures of all nodes together.

    `cases`: incidents of runs without a rank on this node; `failures`: runs that failed here
    lately.
    """

    def __init__(self, writer: IncidentWriter, failures: RecentFailures) -> None:
        self._writer = writer
        self._node = platform.node()
        self.cases, self.failures = RemoteCases(writer.store), failures

    def may_be_called(self, run: Run, incident_id: str) -> bool:
        """Whether a stall of this run may have this id, which another node has given it."""
        if run.incident is not None and run.incident.id == incident_id:
            return True
        return self.is_free(incident_id, job_key(run.job, self._node))

    def is_free(self, incident_id: str, key: RunKey) -> bool:
        """Whether the run with this key may use the incident id on this node: no other run, no stored report and no capture
        by hand has it.
        """
        return self._writer.ids.is_free(incident_id, key)

    def called(self, run: Run, incident_id: str, sentence: str, *, caused: bool = False) -> None:
        """Another node has announced a stall of this run: open an incident with its id here, or
        give the open one that id.

        Of two ids that were both shown the first in order stays, unless `caused`: the id is that of
        a failure on another node, which came first.
        """
        known, now = run.incident, self._writer.clock.now()
        own = (
            known is not None and not known.shared and is_unreported(known)
        )  # nobody knows that id
        old = "" if known is None or own else known.id
        if known is None:
            known = Incident(
                id=incident_id,
                key=f"{run.job.id}/{run.job.attempt}/{incident_id}",
                job_id=run.job.id,
                job=run.job,
                detected_at=now,
                why="another node has noticed it",
                sentence=sentence,
                versions=versions(),
            )
            known = add_timeline(known, now, f"incident opened: {sentence}")
        elif incident_id != known.id and (caused or _goes_on(known, incident_id)):
            known = msgspec.structs.replace(known, id=incident_id)
            known = add_timeline(known, now, RENAMED)
        elif own:
            known = msgspec.structs.replace(known, id=incident_id)
        if known == run.incident and known.shared:
            return
        self.failures.renamed(run.job.id, known)
        known = run.set_incident(msgspec.structs.replace(known, shared=True))
        self._writer.keep(run)
        renamed = old not in ("", known.id)
        if run.judgement is not None or (renamed and known.counted):
            self._writer.write(known, run.judge(known), run.job.uid)
        if renamed:
            self._writer.renamed(old)
            self._writer.store.drop(old)  # behind the new one: at no moment there is neither

    def together(
        self,
        run: Run | None,
        incident_id: str,
        found: tuple[NodeCapture, ...],
        queried: QueriedNodes,
        what: str,
        cause: AnnouncedExit | None = None,
    ) -> Whole:
        """Judge the captures of all nodes, keep the result in the incident and write its report.
        Returns the result for the other agents.

        `run`: the run, None where it has no rank on this node; `what`: a line for the timeline; `cause`: a
        failure on a node that caused the stall.
        """
        now = self._writer.clock.now()
        incident = run.incident if run is not None else None
        if incident is None or (incident.kind != "stall" and incident.id != incident_id):
            run, incident = None, self._case(incident_id, found, now)
        again = bool(incident.node_captures)
        incident = add_node_captures(incident, found, queried, max(incident.detected_at, now), what)
        if cause is not None and incident.exit is None:
            incident = add_cause(incident, cause, max(incident.detected_at, now))
        judgement = judge(incident)
        if run is not None:
            run.set_incident(incident, judgement)
            self._writer.keep(run)
        else:
            self.cases.put(incident)
        if not again and not incident.counted and incident.exit is None:
            self._writer.count(incident, judgement)
        log.warning("%s: %s", found[0].job.name, judgement.diagnosis.summary)
        self._writer.write(incident, judgement, owner_of(found))
        return Whole(
            report=incident.id,
            node=self._node,
            nodes=len(incident.node_captures),
            diagnosis=judgement.diagnosis,
        )

    def _case(self, incident_id: str, found: tuple[NodeCapture, ...], now: float) -> Incident:
        """Of a run that has no rank here."""
        job = found[0].job
        why = "a node of the run has noticed it"
        new = Incident(
            id=incident_id, key=incident_id, job_id=job.id, job=job, detected_at=now, why=why,
            versions=versions(),
        )  # fmt: skip
        return self.cases.get(incident_id) or self.failures.incident(incident_id) or new

    def add_whole(self, run: Run, whole: Whole) -> None:
        """Add to the run's incident the diagnosis that another agent has made from the captures of
        all nodes, and write its report.
        """
        incident = run.incident
        if incident is None or incident.id != whole.report or whole.node == self._node:
            return
        if incident.whole is not None and incident.whole.diagnosis == whole.diagnosis:
            return
        incident = add_whole(incident, whole, self._writer.now(incident))
        judgement = run.judge(incident)
        self._writer.keep(run)
        log.warning("%s: %s", run.job.name, judgement.diagnosis.summary)
        self._writer.write(incident, judgement, run.job.uid)

    def rename_case(self, known: str, incident_id: str) -> None:
        """Give the stall of a run without a rank on this node another id.

        The report is written under the new id, then the old one is removed.
        """
        if (incident := self.cases.pop(known)) is None:
            return
        incident = msgspec.structs.replace(incident, id=incident_id)
        incident = add_timeline(incident, self._writer.now(incident), RENAMED)
        self.cases.put(incident)
        self._writer.write(incident, judge(incident), owner_of(incident.node_captures))
        self._writer.renamed(known)
        self._writer.store.drop(known)

    def close_case(self, incident_id: str, state: IncidentState, why: str) -> None:
        """Close the stall of a run without a rank on this node, and write its report."""
        if (incident := self.cases.pop(incident_id)) is not None:
            self._writer.end(
                incident, state, why, owner_of(incident.node_captures), judge(incident)
            )


def _goes_on(known: Incident, incident_id: str) -> bool:
    """Of two ids of one stall the first stays."""
    return known.kind == "stall" and incident_id < known.id


class RemoteCases:
    """Open incidents of runs that have no rank on this node, by incident id. They survive a restart."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._open: dict[str, Incident] = {}
        self._recalled = False

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._all()))

    def get(self, incident_id: str) -> Incident | None:
        """The open incident with this id; None where there is none."""
        return self._all().get(incident_id)

    def put(self, incident: Incident) -> None:
        """Keep a new open incident, or a newer state of one; on disk only up to `MAX_STORED` bytes."""
        self._all()[incident.id] = incident
        data = msgspec.json.encode(incident)
        self._store.remember(MEMO + incident.id, data if len(data) <= MAX_STORED else b"")

    def pop(self, incident_id: str) -> Incident | None:
        """Remove the incident, which is over or has got another id, and return it; None where there is none of this id."""
        self._store.remember(MEMO + incident_id, b"")
        return self._all().pop(incident_id, None)

    def _all(self) -> dict[str, Incident]:
        """With those of the agent before, as soon as the state dir can be read."""
        if not self._recalled and self._store.opened:
            self._recalled = True
            names = self._store.memos(MEMO)
            found = (_read(self._store.memo(name)) for name in names)
            self._open = {one.id: one for one in found if one is not None} | self._open
        return self._open


def _read(data: bytes) -> Incident | None:
    try:
        return msgspec.json.decode(data, type=Incident)
    except msgspec.MsgspecError as error:
        log.warning("a stored incident of several nodes is forgotten: %s", error)
        return None
