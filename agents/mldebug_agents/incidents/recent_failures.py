"""Runs that failed on this node, remembered for a while, because ranks on other nodes may wait for theirs.

Used by the main loop's thread only.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from mldebug.core.model import Diagnosis, Judgement
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.incidents.incident import Incident
from mldebug_agents.system.service.clock import Clock
from mldebug_agents.watch.runs import Run

MOST, KEPT = 16, 3600.0  # runs, seconds


class FailedRun(NamedTuple):
    """A run that failed lately, as it was then. `at`: its first exit, in monotonic seconds (`Clock.steady`)."""

    run: Run
    incident: Incident
    diagnosis: Diagnosis
    at: float


class RecentFailures:
    """The runs that failed lately on this node by job id, at most `MOST`."""

    def __init__(self, clock: Clock, *, wanted: bool = False) -> None:
        """`wanted`: by agents of other nodes. Nothing is kept else: captures are large."""
        self._clock = clock
        self._wanted = wanted
        self._ends: dict[str, FailedRun] = {}

    def note(
        self, run: Run, attempt: AttemptExit, incident: Incident, judgement: Judgement
    ) -> None:
        """Remember that a run has failed, or replace what is remembered of it.

        Does nothing where no other agent may want it.
        """
        if not self._wanted:
            return
        known = self._ends.pop(run.job.id, None)
        job = msgspec.structs.replace(attempt.job, ranks=attempt.identities or attempt.job.ranks)
        first = min((one.at for one in attempt.exits if one.at), default=self._clock.now())
        since = max(0.0, self._clock.now() - first)
        at = known.at if known else self._clock.steady() - since
        new = FailedRun(Run(job, run.watch), incident, judgement.diagnosis, at)
        self._ends = dict(list(self.recent().items())[1 - MOST :]) | {run.job.id: new}

    def renamed(self, job_id: str, incident: Incident) -> None:
        """Note that the incident of this job has another id now. `incident`: its new state."""
        if (known := self._ends.get(job_id)) is not None:
            self._ends[job_id] = known._replace(incident=incident)

    def incident(self, incident_id: str) -> Incident | None:
        """The incident with this id; None where it is not known."""
        found = (one.incident for one in self._ends.values())
        return next((one for one in found if one.id == incident_id), None)

    def recent(self) -> Mapping[str, FailedRun]:
        """The runs that failed within the last `KEPT` seconds, by job id."""
        now = self._clock.steady()
        return {job: one for job, one in self._ends.items() if now - one.at < KEPT}
