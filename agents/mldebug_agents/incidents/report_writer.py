"""Writes incidents to disk: their state, their report, and the evidence from which the same report can be made again."""

import logging
import platform
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from mldebug.cluster.run_identity import RunKey, job_key, run_key
from mldebug.core.model import Job, Judgement, NodeCapture
from mldebug.core.report_model import GoodputView, IncidentState
from mldebug.incidents.incident import Incident, close_incident, has_evidence
from mldebug.incidents.pruning import is_by_hand
from mldebug.incidents.report.build import make_id, write_report
from mldebug.incidents.report.html import render_html
from mldebug.incidents.stored_evidence import QUERIED_FILE
from mldebug.jobs.owners import owner_of as job_owner
from mldebug_agents.state.store import StateStore
from mldebug_agents.system.service.clock import Clock
from mldebug_agents.watch.judging import judge
from mldebug_agents.watch.runs import Run

log = logging.getLogger("mldebug")
GoodputOf = Callable[[Job], GoodputView | None]
MAX_KNOWN = 4096  # ids: more than the reports that are kept
LATEST_IDS = 256  # more than the incidents that are opened in a few seconds


class IncidentWriter:
    """Stores incidents, so that a restarted agent goes on with them, writes their reports, and counts them.

    Used by the main loop's thread only. All disk work is handed to the store's writer thread.
    """

    def __init__(
        self,
        store: StateStore,
        clock: Clock,
        written: Callable[[Incident, Judgement, int], None],
        renamed: Callable[[str], None],
        goodput: GoodputOf = lambda _: None,
    ) -> None:
        """`written` gets each incident that is written, its judgement and its owner's uid; `renamed` each id that is given up. `goodput`: where
        the GPU time of an attempt went; None where nobody has accounted for it.
        """
        self.store, self.clock, self.renamed = store, clock, renamed
        self.counts: Counter[str] = Counter()  # by "kind/verdict"
        self.last_report: dict[str, str] = {}  # by the same, the newest report's id
        self._written, self._goodput = written, goodput
        self._latest_ids: deque[str] = deque(maxlen=LATEST_IDS)
        self.ids = IncidentIds(platform.node(), lambda: self.store.earlier_reports)

    def keep(self, run: Run) -> None:
        if run.incident is not None:
            self.ids.note(run.incident)
        self.store.keep(run.job.id, run.watch.memory(), run.incident)

    def now(self, incident: Incident) -> float:
        """The unix time for a timeline: never before the incident was detected, even if the clock was set back."""
        return max(incident.detected_at, self.clock.now())

    def new_id(self, now: float, job_id: str) -> str:
        """A new incident id from time and job.

        It differs from those given lately: while it equals one of them, a second is added. `now`: unix time.
        """
        made = make_id(now, job_id)
        while made in self._latest_ids:
            now += 1.0
            made = make_id(now, job_id)
        self._latest_ids.append(made)
        return made

    def announce(self, run: Run, incident: Incident, judgement: Judgement) -> None:
        self.count(incident, judgement)
        run.set_incident(msgspec.structs.replace(run.incident or incident, counted=True))
        log.warning("%s: %s", run.job.name, judgement.diagnosis.summary)

    def count(self, incident: Incident, judgement: Judgement) -> None:
        kind = f"{incident.kind}/{judgement.diagnosis.verdict}"
        self.counts[kind] += 1
        self.last_report[kind] = incident.id

    def end(
        self,
        incident: Incident,
        state: IncidentState,
        why: str,
        uid: int,
        known: Judgement | None = None,
    ) -> None:
        """Close an incident and write its last report. An incident without any evidence is judged now, and counted if it
        was not counted before. `known`: its judgement, if there is one; `uid`: the user who owns the job.
        """
        closed = close_incident(incident, state, self.now(incident), why)
        judgement = known if known is not None and has_evidence(closed) else judge(closed)
        if known is None and not has_evidence(closed):
            self.count(closed, judgement)
        self.write(closed, judgement, uid)

    def write(self, incident: Incident, judgement: Judgement, uid: int) -> None:
        self.ids.note(incident)
        incident = self._with_goodput(incident)
        write_files(self.store, incident, judgement, self.now(incident), uid)
        self._written(incident, judgement, uid)

    def _with_goodput(self, incident: Incident) -> Incident:
        """An incident with which an attempt has ended, with where its GPU time went."""
        job = incident.exit.job if incident.exit is not None else incident.job
        if job is None or not (incident.exit is not None or incident.state == "ended"):
            return incident
        found = self._goodput(job)
        return incident if found is None else msgspec.structs.replace(incident, goodput=found)


def write_files(
    store: StateStore, incident: Incident, judgement: Judgement, reported_at: float, uid: int
) -> None:
    """Have the writer thread write the incident's report, and remove old ones.

    So a full or hung state dir cannot stop the main loop.
    """

    def work() -> None:
        report = write_report(incident, judgement, reported_at)
        evidence = evidence_files(incident)
        if incident.exit is not None:
            evidence[f"ending-{report.node}.json"] = msgspec.json.encode(incident.exit)
        store.archive.save(report, render_html(report), evidence, owner_uid=uid)

    owner = (uid, "") if incident.job is None else job_owner(incident.job)
    store.report(incident.id, work, incident.job_id, owner)
    store.prune()


def evidence_files(incident: Incident) -> dict[str, bytes]:
    """The captures that are stored beside a report, by file name; it can be made again from them.

    For an incident of several nodes the captures of all nodes are `capture-NODE.json`, and those of
    this node alone `own-N-NODE.json`.
    """
    beside = "own" if incident.node_captures else "capture"
    files = {
        f"{beside}-{number}-{capture.node}.json": msgspec.json.encode(capture)
        for number, capture in enumerate(incident.captures, 1)
    }
    files |= {
        f"capture-{one.node}.json": msgspec.json.encode(one) for one in incident.node_captures
    }
    if incident.queried is not None:
        files[QUERIED_FILE] = msgspec.json.encode(incident.queried)
    return files


def owner_of(captures: Sequence[NodeCapture]) -> int:
    """The uid of the captured job; 0 (root) where the captures name several, or there are none."""
    owners = {one.job.uid for one in captures}
    return owners.pop() if len(owners) == 1 else 0


def owner(incident: Incident) -> int:
    """The uid of the incident's job; 0 (root) where it is not known."""
    if incident.captures:
        return incident.captures[0].job.uid
    job = incident.exit.job if incident.exit else incident.job
    return job.uid if job else 0


class IncidentIds:
    """Which run each incident id belongs to.

    `stored`: returns the ids of reports that earlier agents left; empty until they are known.
    """

    def __init__(self, node: str, stored: Callable[[], Iterable[str]]) -> None:
        self._node, self._stored = node, stored
        self._keys: dict[str, RunKey] = {}

    def note(self, incident: Incident) -> None:
        """Remember to which run this incident's id belongs; the newest `MAX_KNOWN` are kept."""
        if (key := self._key(incident)) is None:
            return
        self._keys.pop(incident.id, None)
        self._keys[incident.id] = key
        if len(self._keys) > MAX_KNOWN:
            del self._keys[next(iter(self._keys))]

    def is_free(self, incident_id: str, key: RunKey) -> bool:
        """Whether an incident of the run with this key may have the id: it is known as this run's,
        or is neither in use, nor stored, nor that of a manual capture.
        """
        if (known := self._keys.get(incident_id)) is not None:
            return known == key
        return not is_by_hand(incident_id) and incident_id not in self._stored()

    def _key(self, incident: Incident) -> RunKey | None:
        if incident.node_captures:
            return run_key(incident.node_captures[0])
        job = incident.exit.job if incident.exit else incident.job
        return job_key(job, self._node) if job else None
