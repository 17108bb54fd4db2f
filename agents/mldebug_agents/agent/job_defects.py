"""Errors of our own code that the data of one job brings out: logged once, shown in status, and no harm to the other jobs.

Belongs to the main loop's thread.
"""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from mldebug.core.model import Gap, Job
from mldebug.core.redact import clean

log = logging.getLogger("mldebug")

WAY_OUT = "report it as a defect of mldebug"


class JobDefects:
    """The last error of each job that had one, by job id."""

    def __init__(self) -> None:
        self._gaps: dict[str, Gap] = {}

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """A gap for each job of which something could not be done in this turn."""
        return tuple(self._gaps.values())

    @contextmanager
    def catching(self, job: Job) -> Iterator[None]:
        """A context for work on one job: an exception is logged and kept as the job's defect, and does not go further."""
        try:
            yield
        except Exception as error:
            reason = clean(f"{type(error).__name__}: {error}", 200)
            gap = Gap(what=f"run {job.id}", reason=reason, way_out=WAY_OUT)
            if self._gaps.get(job.id) != gap:
                log.exception("run %s: an error of ours; all other runs are watched on", job.id)
            self._gaps[job.id] = gap

    def keep(self, present: Collection[str]) -> None:
        """Forget the jobs that are gone."""
        self._gaps = {job_id: gap for job_id, gap in self._gaps.items() if job_id in present}
