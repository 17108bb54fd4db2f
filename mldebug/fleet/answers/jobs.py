"""All runs and attempts of one job on one time line, over all nodes: what each cost, and why it ended. Pure."""

import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from mldebug.core.model.base import ReportData
from mldebug.core.ranksets import fold_nodes
from mldebug.core.text import plural, rfc3339
from mldebug.fleet.events import NODE_NAME, AnyEvent, AttemptEvent, IncidentEvent

SAME_START = 120.0  # seconds within which the nodes of one attempt begin
AROUND = 300.0  # seconds around an attempt's end within which its incident is closed, or opened
MOST = 200  # attempts of one answer, the newest
MOST_ALIKE = 64  # attempts of one number that are compared with one more, the newest
MOST_OF_RUN = 500  # incidents of one run that are looked at, the newest
PRODUCTIVE = "productive"


class JobAttempt(ReportData, frozen=True, kw_only=True):
    """One attempt of a job on all its nodes. Times are RFC 3339, "" for one that goes on. `reason`: why it ended, where an incident says it."""

    run: str
    attempt: int
    nodes: str  # folded
    began: str
    ended: str
    seconds: float
    outcome: str  # well, failed, unknown; running
    reason: str
    verdict: str
    confidence: str
    culprits: tuple[str, ...]  # nodes
    report: str
    gpu_hours: float
    productive_ratio: float


class JobTimeline(ReportData, frozen=True, kw_only=True):
    """A job with its attempts, the oldest first."""

    job: str
    user: str
    uid: int
    attempts: tuple[JobAttempt, ...]
    failed: int
    gpu_hours: float
    productive_ratio: float


class JobList(ReportData, frozen=True, kw_only=True):
    """Jobs, the one with the newest event first."""

    jobs: tuple[JobTimeline, ...]


class _Launch:
    """One attempt as its nodes have told it."""

    def __init__(self, first: AttemptEvent) -> None:
        self.number, self.began = first.attempt, first.began
        self.by_node: dict[str, AttemptEvent] = {}

    def fits(self, event: AttemptEvent) -> bool:
        """Whether this is the same attempt, told by another node."""
        return event.node not in self.by_node and abs(event.began - self.began) <= SAME_START

    @property
    def ended(self) -> float | None:
        """When the last node's part was over; None while one goes on."""
        ends = [one.ended for one in self.by_node.values()]
        return None if None in ends else max(end for end in ends if end is not None)


def job_list(events: Sequence[AnyEvent]) -> JobList:
    """The jobs of these events (by name and owner), each with its time line. `events`: in the order of their times."""
    by_job: dict[tuple[str, int], list[AnyEvent]] = {}
    for event in events:
        if event.job:
            by_job.setdefault((event.job, event.uid), []).append(event)
    found = (timeline(name, uid, some) for (name, uid), some in by_job.items())
    with_attempts = [one for one in found if one.attempts]
    with_attempts.sort(key=lambda one: one.attempts[-1].ended or "9", reverse=True)
    return JobList(jobs=tuple(with_attempts))


def timeline(job: str, uid: int, events: Sequence[AnyEvent]) -> JobTimeline:
    """The time line of one job, from its own events."""
    launches = _launches(one for one in events if isinstance(one, AttemptEvent))
    incidents = _by_run(events)
    attempts = tuple(_attempt(one, incidents) for one in launches[-MOST:])
    hours = sum(one.gpu_hours for one in attempts)
    productive = sum(one.gpu_hours * one.productive_ratio for one in attempts)
    users = [one.user for launch in launches for one in launch.by_node.values() if one.user]
    return JobTimeline(
        job=job,
        user=users[-1] if users else "",
        uid=uid,
        attempts=attempts,
        failed=sum(one.outcome == "failed" for one in attempts),
        gpu_hours=round(hours, 3),
        productive_ratio=round(productive / hours, 4) if hours else 0.0,
    )


def _launches(events: Iterable[AttemptEvent]) -> list[_Launch]:
    """The attempts of a job, in the order in which they began. It costs no more than a look at `MOST_ALIKE` for each event."""
    launches: list[_Launch] = []
    known: dict[tuple[str, str, int], _Launch] = {}  # by node, run and number
    alike: dict[int, list[_Launch]] = {}  # by number
    for event in sorted(events, key=lambda one: (one.began, one.at, one.revision)):
        same = alike.setdefault(event.attempt, [])
        key = event.node, event.run, event.attempt
        launch = known.get(key) or next((one for one in same[: -MOST_ALIKE - 1 : -1] if one.fits(event)), None)  # fmt: skip
        if launch is None:
            launch = _Launch(event)
            launches.append(launch)
            same.append(launch)
        known[key] = launch
        before = launch.by_node.get(event.node)
        if before is None or before.ended is None:
            launch.by_node[event.node] = event
    return launches


def _by_run(events: Iterable[AnyEvent]) -> dict[str, list[IncidentEvent]]:
    """The newest incidents of each run."""
    found: dict[str, deque[IncidentEvent]] = {}
    for one in events:
        if isinstance(one, IncidentEvent):
            found.setdefault(one.run, deque(maxlen=MOST_OF_RUN)).append(one)
    return {run: list(some) for run, some in found.items()}


def _attempt(launch: _Launch, incidents: Mapping[str, Sequence[IncidentEvent]]) -> JobAttempt:
    parts = list(launch.by_node.values())
    ended, seconds = launch.ended, _summed(parts)
    last = ended if ended is not None else max(one.at for one in parts)
    runs = dict.fromkeys(one.run for one in parts)
    why = incident_of(launch.began, last, [one for run in runs for one in incidents.get(run, ())])
    whole = sum(seconds.values())
    return JobAttempt(
        run=parts[0].run,
        attempt=launch.number,
        nodes=fold_nodes(launch.by_node),
        began=rfc3339(launch.began),
        ended="" if ended is None else rfc3339(ended),
        seconds=round(max(0.0, last - launch.began), 1),
        outcome="running" if ended is None else _outcome(parts),
        reason=why.sentence if why else "",
        verdict=why.verdict if why else "",
        confidence=why.confidence if why else "",
        culprits=_named(why) if why else (),
        report=why.incident if why else "",
        gpu_hours=round(whole / 3600, 3),
        productive_ratio=round(seconds.get(PRODUCTIVE, 0.0) / whole, 4) if whole else 0.0,
    )


def incident_of(
    began: float, ended: float, incidents: Iterable[IncidentEvent]
) -> IncidentEvent | None:
    """The incident of its runs with which an attempt ended: its newest state; an abnormal end before a stall. None where there is none."""
    fitting = [one for one in incidents if began <= one.since <= ended + AROUND and one.incident_kind != "slowdown"]  # fmt: skip
    open_at_end = [one for one in fitting if one.ended is None or one.ended >= ended - AROUND]
    newest = {one.incident: one for one in sorted(open_at_end, key=lambda one: (one.at, one.revision))}  # fmt: skip
    last = [one for one in newest.values() if one.outcome != "recovered"]
    return max(last, key=lambda one: (one.incident_kind == "abnormal_end", one.since), default=None)


def _named(why: IncidentEvent) -> tuple[str, ...]:
    """The nodes of its culprits. What is no node's name is left out: they go on to `sbatch --exclude`."""
    names = dict.fromkeys(one.node for one in why.culprits)
    return tuple(one for one in names if re.search(NODE_NAME, one))


def _outcome(parts: Iterable[AttemptEvent]) -> str:
    """One node that failed has failed all."""
    outcomes = {one.outcome for one in parts}
    return next((one for one in ("failed", "well") if one in outcomes), "unknown")


def _summed(parts: Iterable[AttemptEvent]) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in parts:
        for use, seconds in part.gpu_seconds.items():
            found[use] = found.get(use, 0.0) + seconds
    return found


def job_lines(found: JobList) -> Iterator[str]:
    """The jobs that the hub has found as lines of text for a terminal, each job followed by its attempts (starts)."""
    for job in found.jobs:
        attempts = f"{plural(len(job.attempts), 'attempt')}, {job.failed} failed"
        yield f"{job.job} of {job.user or job.uid}: {attempts}, {job.gpu_hours:.1f} GPU hours, {100 * job.productive_ratio:.0f} % productive"
        for one in job.attempts:
            reason = f": {one.reason}" if one.reason else ""
            yield f"    {one.began[:19]}Z  attempt {one.attempt} of {one.run} on {one.nodes}, {one.gpu_hours:.1f} GPU hours, {one.outcome}{reason}"
    if not found.jobs:
        yield "The hub has heard of no such job."
