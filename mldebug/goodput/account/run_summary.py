"""The summary of an attempt (one start of a run) that has ended: how it ended, where its GPU time went, and which ranks were waited for. Pure.

It stands in the report of an end, in what `mldebug goodput` prints, and in an alert where `goodput.summary` wants one.
"""

from collections.abc import Iterable, Iterator

from mldebug.alerts.model import Alert, Severity
from mldebug.alerts.node_events import SubjectAlerts
from mldebug.core.redact import safe_line
from mldebug.core.report_model import GoodputView
from mldebug.core.text import plural
from mldebug.core.units import duration_words
from mldebug.goodput.account.job_goodput import AttemptGoodput, JobGoodput
from mldebug.goodput.account.segments import GpuUse

SUMMARY = "summary/"
SHOWN = 600.0  # seconds for which an end is an alert
ENDS = {"well": "ended well", "failed": "failed", "unknown": "ended"}


def end_words(one: AttemptGoodput) -> str:
    """How an attempt that is over ended, and where its GPU time went: `failed after 1 h 2 min: 71 % productive; 9 % stalls`."""
    lasted = max(0.0, (one.ended or one.began) - one.began)
    return f"{ENDS.get(one.outcome, ENDS['unknown'])} after {duration_words(round(lasted))}: {one.sentence}"


def summary_lines(one: AttemptGoodput, job: JobGoodput) -> tuple[str, ...]:
    """The summary of one attempt of a job that is over: how it ended and its GPU time, the ranks that were waited for, the whole job where
    there was more than this attempt, and the advice on checkpoints.
    """
    return (end_words(one), *_further(goodput_view(one, job)))


def goodput_view(one: AttemptGoodput, job: JobGoodput) -> GoodputView:
    """Where the GPU time of an attempt went, as a report shows it, with that of its whole job. An attempt that still has processes
    is shown up to now.
    """
    whole = sum(one.gpu_seconds.values())
    productive = one.gpu_seconds.get(GpuUse.PRODUCTIVE, 0.0)
    return GoodputView(
        attempt=one.attempt,
        outcome=one.outcome,
        gpu_seconds=dict(one.gpu_seconds),
        productive_ratio=round(productive / whole, 4) if whole else 0.0,
        sentence=one.sentence,
        stragglers=one.stragglers,
        job_attempts=job.attempts,
        job_restarts=job.restarts,
        job_gpu_seconds=dict(job.gpu_seconds),
        job_sentence=job.sentence,
        advice=job.advice,
    )


def view_lines(found: GoodputView | None) -> tuple[str, ...]:
    """The lines of a report that say where the GPU time of its attempt went; none where that was not accounted for."""
    if found is None:
        return ()
    hours = sum(found.gpu_seconds.values()) / 3600
    first = f"{hours:.2f} GPU hours of attempt {found.attempt}: {found.sentence}"
    return (first, *_further(found))


def _further(found: GoodputView) -> Iterator[str]:
    yield from found.stragglers
    if found.job_attempts > 1:
        many = plural(found.job_attempts, "attempt")
        yield f"the job so far, of {many}: {found.job_sentence}"
    if found.advice:
        yield found.advice


def summary_alerts(jobs: Iterable[JobGoodput], now: float) -> Iterator[SubjectAlerts]:
    """For ten minutes after each end an alert of severity `info` with its summary. `now`: unix seconds."""
    alerts = tuple(
        _alert(one, job)
        for job in jobs
        for one in job.newest
        if one.ended is not None and 0 <= now - one.ended < SHOWN
    )
    yield SubjectAlerts(alerts=alerts, watched=(SUMMARY,))


def _alert(one: AttemptGoodput, job: JobGoodput) -> Alert:
    name, run = safe_line(job.name, 100), safe_line(one.run, 80)
    first, *others = summary_lines(one, job)
    return Alert(
        key=f"{SUMMARY}{run}/{one.attempt}#{one.began:.0f}",
        kind="run_summary",
        severity=Severity.INFO,
        sentence=safe_line(f"{name} {first}", 400),
        labels={"run": run, "job": name},
        next_steps=tuple(safe_line(line, 400) for line in others),
        uid=job.uid,
        since=one.ended,
    )
