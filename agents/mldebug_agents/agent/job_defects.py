"""Exceptions of mldebug's own code while it works on one job: logged once, shown in status, and
without effect on other jobs.

Used by the main loop's thread only.
"""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from mldebug.core.model import Gap, Job
from mldebug.core.redact import clean

log = logging.getLogger("mldebug")

WAY_OUT = "report it as a defect of mldebug"


class JobDefects:
    """The last exception of each job that had one, by job id."""

    def __init__(self) -> None:
        self._gaps: dict[str, Gap] = {}

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """For each job that still exists and for which mldebug's own code failed: the last exception, as the reason why
        something is missing.
        """
        return tuple(self._gaps.values())

    @contextmanager
    def catching(self, job: Job) -> Iterator[None]:
        """A context for work on one job: an exception is kept as the reason why something of the job is missing, logged if it
        differs from the last one, and not raised.
        """
        try:
            yield
        except Exception as error:
            reason = clean(f"{type(error).__name__}: {error}", 200)
            gap = Gap(what=f"run {job.id}", reason=reason, way_out=WAY_OUT)
            if self._gaps.get(job.id) != gap:
                log.exception("run %s: an error of ours; all other runs are watched on", job.id)
            self._gaps[job.id] = gap

    def keep(self, present: Collection[str]) -> None:
        """Forget the exceptions of all jobs whose id is not in `present`."""
        self._gaps = {job_id: gap for job_id, gap in self._gaps.items() if job_id in present}
