"""Alerts from schedulers (Slurm and others), and about processes that go on after their job has ended ("orphans").

Pure.

A scheduler that cannot be asked resolves no alert: its last answer goes on to hold.
"""

from collections.abc import Iterable, Iterator

from mldebug.alerts.model import Alert, Severity
from mldebug.alerts.node_events import SubjectAlerts
from mldebug.core.redact import safe_line
from mldebug.jobs.schedulers.expected_jobs import job_words
from mldebug.jobs.schedulers.model import Orphan, QueueJob, SchedulerState, WatchedState
from mldebug.jobs.schedulers.status_lines import orphan_words

SCHEDULER, ORPHAN = "scheduler/", "orphan/"
FAILURES = 3  # bad answers in a row after which somebody is told


def of_schedulers(states: Iterable[SchedulerState], now: float) -> Iterator[SubjectAlerts]:
    """The alerts of each configured scheduler that has answered, or failed `FAILURES` times in a row.

    `now`: unix time.
    """
    for one in states:
        begin = f"{SCHEDULER}{one.name}/"
        if not one.asks or (one.success_at is None and one.failing < FAILURES):
            continue
        alerts = (*_watched(one, begin, now), *_nodes(one, begin), *_trouble(one, begin))
        hidden = tuple(f"{begin}{it.name}{end}" for it in one.watched if it.hidden for end in "#/")
        unsure = hidden if not one.trouble else (begin,)
        yield SubjectAlerts(alerts=alerts, watched=(begin,), unsure=unsure)


def of_orphans(orphans: Iterable[Orphan] | None) -> Iterator[SubjectAlerts]:
    """One alert for each orphan (a process whose job has ended).

    None means that no search was made, and changes nothing.
    """
    if orphans is not None:
        yield SubjectAlerts(alerts=tuple(map(_orphan, orphans)), watched=(ORPHAN,))


def _watched(state: SchedulerState, begin: str, now: float) -> Iterator[Alert]:
    for one in state.watched:
        if one.missing:
            yield _missing(state, one, begin)
        for job in one.blocked:
            sentence = f"{one.name}: {job_words(job, now)}; it will not start by itself"
            yield _of_job("job_blocked", begin, one, job, sentence, f"scontrol show job {safe_line(job.number, 20)}")  # fmt: skip
        for job in one.near:
            yield _of_job(
                "time_limit_near", begin, one, job, f"{one.name}: {job_words(job, now)}", ""
            )


def _missing(state: SchedulerState, one: WatchedState, begin: str) -> Alert:
    return Alert(
        key=f"{begin}{one.name}#missing",
        kind="job_missing",
        severity=Severity.CRITICAL,
        sentence=f"{one.name}: {one.sentence}",
        labels={"scheduler": state.name, "watch": one.name},
        next_steps=("submit it again, or take it out of `jobs.expected`",),
    )


def _of_job(
    kind: str, begin: str, one: WatchedState, job: QueueJob, sentence: str, step: str
) -> Alert:
    name = safe_line(job.id, 60)
    return Alert(
        key=f"{begin}{one.name}/{name}#{kind}",
        kind=kind,
        severity=Severity.WARNING,
        sentence=sentence,
        labels={"watch": one.name, "job_id": name, "job": safe_line(job.name, 100)},
        next_steps=(step,) if step else (),
    )


def _nodes(state: SchedulerState, begin: str) -> Iterator[Alert]:
    for one in state.nodes:
        if one.name in state.node_events:
            reason = f": {safe_line(one.reason, 200)}" if one.reason else ", without a reason"
            yield Alert(
                key=f"{begin}{safe_line(one.name, 100)}#node",
                kind="node_out",
                severity=Severity.WARNING,
                sentence=f"node {safe_line(one.name, 100)} is {one.state} in {state.name}{reason}",
                labels={"scheduler": state.name, "scheduler_node": safe_line(one.name, 100)},
            )


def _trouble(state: SchedulerState, begin: str) -> Iterator[Alert]:
    if state.trouble and state.failing >= FAILURES:
        yield Alert(
            key=f"{begin}#unanswered",
            kind="scheduler_unanswered",
            severity=Severity.WARNING,
            sentence=f"{state.name} cannot be asked whether jobs run: {safe_line(state.trouble, 200)}",
            labels={"scheduler": state.name},
        )


def _orphan(one: Orphan) -> Alert:
    return Alert(
        key=f"{ORPHAN}{one.pid}/{one.start_ticks}",
        kind="orphan_process",
        severity=Severity.WARNING,
        sentence=orphan_words(one),
        labels={"pid": str(one.pid), "user": one.user, "of": safe_line(one.job, 60)},
        next_steps=(
            f"look at it: ps -o pid,user,etime,args -p {one.pid}; then end it: kill {one.pid}",
        ),
        uid=one.uid,
    )
