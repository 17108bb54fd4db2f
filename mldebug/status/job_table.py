"""The jobs of a node as a table, one line a job, as `mldebug status -o table` prints them."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from mldebug.core.model import Job, MeasuredData
from mldebug.core.ranksets import fold_ranks
from mldebug.core.redact import clean
from mldebug.core.text import aligned
from mldebug.core.units import age_words
from mldebug.status.snapshot import RunState

HEADER = ("ID", "AGE", "JOB", "USER", "RANKS", "STEP", "QUIET", "STATE", "VERDICT", "WHO")
UNKNOWN = "-"


class JobRow(MeasuredData, frozen=True, kw_only=True):
    """A job of this node, and its run as the agent sees it; None where no agent watches it."""

    job: Job
    run: RunState | None


class JobFilter(MeasuredData, frozen=True, kw_only=True):
    """Which jobs are wanted; by default all. `started_after`: unix time; `job`: name or the beginning of an id."""

    started_after: float | None = None
    job: str | None = None
    verdict: str | None = None

    def matches(self, row: JobRow) -> bool:
        """Is this job wanted? One whose start nobody knows is in no period; only an open incident has a verdict."""
        job, run = row.job, row.run
        if self.started_after is not None and (job.started_at or 0.0) < self.started_after:
            return False
        if self.job is not None and job.name != self.job and not job.id.startswith(self.job):
            return False
        return self.verdict is None or (run is not None and run.verdict == self.verdict)


def table_lines(rows: Sequence[JobRow], now: float) -> Iterator[Text]:
    """The header and a line for each job; jobs with an open incident come first. `now`: unix time."""
    ordered = sorted(rows, key=lambda row: not (row.run and row.run.incident))
    header, *lines = aligned([HEADER, *(_cells(row, now) for row in ordered)])
    yield Text(header, style="dim", no_wrap=True)
    for row, line in zip(ordered, lines, strict=True):
        incident = row.run is not None and bool(row.run.incident)
        yield Text(line, style="red" if incident else "", no_wrap=True)


def _cells(row: JobRow, now: float) -> tuple[str, ...]:
    job, run = row.job, row.run
    own = (
        clean(job.id, 40),
        age_words(now - job.started_at) if job.started_at else UNKNOWN,
        clean(job.name, 40),
        clean(job.user, 40) or str(job.uid),
        f"{len(job.ranks)}/{job.world_size}",
    )
    if run is None:
        return (*own, UNKNOWN, UNKNOWN, "not watched", UNKNOWN, UNKNOWN)
    return (
        *own,
        UNKNOWN if run.step is None else str(run.step),
        age_words(run.quiet_seconds),
        "incident" if run.incident else clean(run.stage, 20),
        clean(run.verdict, 40) or UNKNOWN,
        fold_ranks(run.culprits) or UNKNOWN,
    )
