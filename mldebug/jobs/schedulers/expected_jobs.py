"""The jobs that the configuration expects, compared with those that a scheduler lists: missing, blocked, or near their time limit. Pure."""

from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase

import msgspec

from mldebug.core.redact import safe_line
from mldebug.core.units import duration_words
from mldebug.jobs.schedulers.model import PRESENT, JobStanding, Queue, QueueJob, WatchedState
from mldebug.jobs.schedulers.slurm_states import blocked

MOST = 8  # jobs of one watch that are shown


class JobPattern(msgspec.Struct, frozen=True, kw_only=True):
    """Describes the jobs that the configuration expects; `*` matches any text, an empty field matches all jobs."""

    name: str = ""
    user: str = ""
    id: str = ""

    def fits(self, job: QueueJob) -> bool:
        """Whether a job matches. A task of a job array matches also by the array's id."""
        return (
            _fits(self.name, job.name)
            and _fits(self.user, job.user)
            and (
                not self.id
                or any(
                    _fits(self.id, one) for one in (job.id, job.number, job.id.partition("_")[0])
                )
            )
        )


def watched_state(
    name: str, pattern: JobPattern, queue: Queue, now: float, warn: float
) -> WatchedState:
    """The state of one expected job, by one answer of its scheduler. `warn`: a job is taken to be near its end from so many
    seconds before its time limit. `now`: unix time.
    """
    jobs = sorted(filter(pattern.fits, queue.jobs), key=_order)
    running = [job for job in jobs if job.standing is JobStanding.RUNNING]
    queued = [job for job in jobs if job.standing is JobStanding.QUEUED]
    present = [job for job in jobs if job.standing in PRESENT]
    hidden = not present and queue.only_of not in ("", pattern.user)
    near = tuple(job for job in running if job.ends is not None and job.ends - now <= warn)
    return WatchedState(
        name=name,
        missing=not present and not hidden,
        hidden=hidden,
        jobs=tuple(jobs[:MOST]),
        counts=dict(Counter(str(job.standing) for job in jobs)),
        near=near[:MOST],
        blocked=tuple(job for job in queued if blocked(job.reason))[:MOST],
        ends=min((job.ends for job in running if job.ends is not None), default=None),
        waits_since=min((job.submitted for job in queued if job.submitted), default=None),
        sentence=hidden_words(pattern, queue.only_of)
        if hidden
        else _sentence(pattern, jobs, present, now),
    )


def job_words(job: QueueJob, now: float) -> str:
    """A job in words: `17 (my-training): pending for 2 h (Resources), to start in about 3 h`. `now`: unix time."""
    return f"{safe_line(job.id, 60)} ({safe_line(job.name, 60)}): {', '.join(_facts(job, now))}"


def missing_words(pattern: JobPattern) -> str:
    """The words for "no job matches this pattern": `no job named my-training of user ada`."""
    parts = [f"named {safe_line(pattern.name, 60)}"] if pattern.name else []
    parts += [f"of user {safe_line(pattern.user, 40)}"] if pattern.user else []
    parts += [f"with id {safe_line(pattern.id, 40)}"] if pattern.id else []
    return " ".join(["no job", *parts])


def hidden_words(pattern: JobPattern, user: str) -> str:
    """The words for: no listed job matches, but the scheduler lists only those of `user`, so it is not known whether one runs."""
    return (
        f"{missing_words(pattern)} is shown, but the scheduler shows those of {safe_line(user, 40)} alone"
        " (PrivateData): whether one runs is not known"
    )


def _sentence(
    pattern: JobPattern, jobs: list[QueueJob], present: list[QueueJob], now: float
) -> str:
    if present:
        more = f", and {len(present) - 1} more" if len(present) > 1 else ""
        return job_words(present[0], now) + more
    last = f"; {job_words(jobs[0], now)}" if jobs else ""
    return f"{missing_words(pattern)} is running or queued{last}"


def _facts(job: QueueJob, now: float) -> Iterator[str]:
    state = job.state.lower()
    if job.standing is JobStanding.QUEUED:
        since = f" for {_span(now - job.submitted)}" if job.submitted else ""
        reason = f" ({safe_line(job.reason, 120)})" if job.reason else ""
        yield f"{state}{since}{reason}"
        if job.starts is not None and job.starts > now:
            yield f"to start in about {_span(job.starts - now)}"
        return
    yield (
        f"{state} for {_span(now - job.started)}"
        if job.started and job.standing is not JobStanding.OVER
        else state
    )
    if job.nodes and job.standing is not JobStanding.OVER:
        yield f"on {safe_line(job.nodes, 60)}"
    if job.ends is not None:
        yield f"its time limit ends it in {_span(job.ends - now)}"


def _order(job: QueueJob) -> tuple[int, float]:
    """Those that run first, then those queued; of the rest the newest."""
    return list(JobStanding).index(job.standing), -(job.submitted or 0.0)


def _span(seconds: float) -> str:
    return duration_words(int(seconds - seconds % 60 if seconds > 600 else seconds))


def _fits(pattern: str, text: str) -> bool:
    return not pattern or fnmatchcase(text, pattern)
