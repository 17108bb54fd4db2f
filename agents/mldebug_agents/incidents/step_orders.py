"""What `mldebug profile` and `mldebug memory` check before they ask ranks for something at their next steps."""

from pathlib import Path

from mldebug.capture.inspection import LEAST_WAIT, MOST_RANKS, MOST_WAIT
from mldebug.core.errors import FailedCheckError, MldebugError, UsageError
from mldebug.core.model import Job, RankIdentity
from mldebug.core.ranksets import fold_ranks, unfold
from mldebug.core.units import duration_words, parse_duration
from mldebug_agents.incidents.manual import choose
from mldebug_agents.jobs.hook.requests import HookRequests
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.web.client import ask_nearest


def one_job(found: Discovery, wanted: str | None) -> Job:
    """The one job that is meant. UsageError where there are several."""
    jobs = choose(found, None, wanted)
    if len(jobs) > 1:
        names = ", ".join(job.id for job in jobs[:8])
        raise UsageError(f"{len(jobs)} jobs run here: {names}", f"add --job {jobs[0].id}")
    return jobs[0]


def refuse_if_stalled(state_dir: Path, job: Job, *, here_only: bool) -> None:
    """Raise MldebugError where the agent of this node has an open stall of the job: a sick job is left alone."""
    snapshot = ask_nearest(state_dir, here_only=here_only).answer.snapshot
    pids = {rank.pid for rank in job.ranks}
    for run in snapshot.runs if snapshot else ():
        if run.incident_kind == "stall" and pids & set(run.ranks.values()):
            why = f"a stall of {job.id} is open (report {run.incident})"
            raise FailedCheckError(
                f"{why}: it is not asked for more", f"mldebug dump --job {job.id}"
            )


def chosen_ranks(job: Job, wanted: str | None, requests: HookRequests) -> tuple[RankIdentity, ...]:
    """The ranks on this node that are meant, without `wanted` the lowest.

    Raises UsageError for one that is not here, MldebugError while any rank of the job still works on an earlier request.
    """
    here = {rank.rank: rank for rank in job.ranks}
    if not here:
        raise UsageError(f"{job.id} has no rank on this node yet", "mldebug status")
    numbers = unfold(wanted) if wanted else (min(here),)
    missing = [number for number in numbers if number not in here]
    if missing:
        ranks = fold_ranks(here)
        raise UsageError(f"rank {fold_ranks(missing)} is not on this node", f"here are {ranks}")
    if len(numbers) > MOST_RANKS:
        raise UsageError(f"{len(numbers)} ranks are too many at once", f"at most {MOST_RANKS}")
    busy = requests.working(job.ranks)
    if busy:
        ranks = fold_ranks(busy)
        raise MldebugError(f"rank {ranks} still works on an earlier request", "wait a minute")
    return tuple(here[number] for number in numbers)


def seconds_of(wait: str) -> float:
    """How long the first step may take, in seconds. UsageError where that is no time, or more than 10 minutes."""
    try:
        seconds = parse_duration(wait)
        if not LEAST_WAIT <= seconds <= MOST_WAIT:
            raise ValueError(f"it may be 1 s to {duration_words(MOST_WAIT)}")
    except ValueError as error:
        raise UsageError(f"--wait {wait!r}: {error}", "write it like 60s") from error
    return seconds
