"""What is stored of one run, in memory and as it lies on disk."""

import logging
from collections.abc import Mapping

import msgspec

from mldebug.core.model import Job
from mldebug.diagnosis.exits.model import KnownExits
from mldebug.incidents.incident import Incident
from mldebug.stall.progress_clock import StallMemory
from mldebug_agents.state.messages import StoredExits, StoredState, StoreRun

log = logging.getLogger("mldebug")

Process = tuple[int, int]  # pid and start


class RunRow(msgspec.Struct):
    """What is stored of one run: the memory of its stall watch, and its open incident."""

    memory: StallMemory
    incident: Incident | None = None


def stored(job_id: str, row: RunRow) -> StoreRun:
    """The message that stores a run's row."""
    incident = msgspec.json.encode(row.incident) if row.incident else None
    return StoreRun(job_id, msgspec.json.encode(row.memory), incident)


def stored_ends(job_id: str, ends: KnownExits) -> StoredExits:
    """The message that stores how a job's ranks exited."""
    return StoredExits(job_id, msgspec.json.encode(ends))


def rows_of(found: StoredState) -> dict[str, RunRow]:
    """The stored rows by job id. A row that cannot be decoded is left out and logged."""
    rows = {}
    for one in found.rows:
        try:
            incident = msgspec.json.decode(one.incident, type=Incident) if one.incident else None
            rows[one.job_id] = RunRow(msgspec.json.decode(one.memory, type=StallMemory), incident)
        except msgspec.MsgspecError as error:
            log.warning("what was stored of run %s is forgotten: %s", one.job_id, error)
    return rows


def ends_of_all(found: StoredState) -> dict[str, KnownExits]:
    """The stored exits by job id. Those that cannot be decoded are left out and logged."""
    ends = {}
    for one in found.ends:
        try:
            ends[one.job_id] = msgspec.json.decode(one.data, type=KnownExits)
        except msgspec.MsgspecError as error:
            log.warning("the stored exits of run %s are forgotten: %s", one.job_id, error)
    return ends


def processes(incident: Incident | None, ends: KnownExits | None) -> set[Process]:
    """All ranks of a run that an earlier agent knew from its captures, incident and exits, as (pid,
    start in clock ticks since boot).
    """
    captures = incident.captures if incident else ()
    ranks = [rank for capture in captures for rank in capture.job.ranks]
    ranks += incident.job.ranks if incident and incident.job else ()
    ranks += ends.identities if ends else ()
    return {(rank.pid, rank.start_ticks) for rank in ranks}


def renamed(row: RunRow, job: Job) -> RunRow:
    """The row with the id (and attempt) that the job has now in place of the stored one."""
    memory = msgspec.structs.replace(row.memory, run=job.id, attempt=job.attempt)
    incident = row.incident
    if incident is not None:
        exit_then = incident.exit
        if exit_then is not None:
            last_job = msgspec.structs.replace(exit_then.job, id=job.id)
            exit_then = msgspec.structs.replace(exit_then, job=last_job)
        job_then = incident.job and msgspec.structs.replace(incident.job, id=job.id)
        incident = msgspec.structs.replace(incident, job_id=job.id, job=job_then, exit=exit_then)
    return RunRow(memory=memory, incident=incident)


def known_as(job: Job, rows: Mapping[str, RunRow], ends: Mapping[str, KnownExits]) -> str | None:
    """The id under which this job is stored: of the first row with one of its rank processes (pid and start).

    None where there is none.
    """
    here = {(rank.pid, rank.start_ticks) for rank in job.ranks}
    found = (one for one, row in rows.items() if here & processes(row.incident, ends.get(one)))
    return next(found, None)
