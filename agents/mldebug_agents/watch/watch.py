"""The watch: one cheap look at all jobs of this node, every few seconds, without attaching to anybody.

Runs in one worker thread. What a job can make slow (its log, its stacks) has a deadline of its own in its `JobWatch`, so
that one job cannot keep us from the others.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from mldebug.core.model import Gap, Job
from mldebug.jobs.known_issues.match import KnownIssue, remarks
from mldebug.stall.signals import RankLook, RunLook
from mldebug_agents.capture.tools import CaptureTools
from mldebug_agents.jobs.hook.records import HeartbeatReader
from mldebug_agents.jobs.logs.job_logs import HungMounts, LogSharing
from mldebug_agents.jobs.logs.locations import LogFinder
from mldebug_agents.jobs.logs.pipes import UnreadPipes
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.watch.job_watch import JobLook, JobWatch, with_traces

log = logging.getLogger("mldebug")

MAX_GAPS = 16  # of one look


class NodeLook(msgspec.Struct, frozen=True, kw_only=True):
    """All jobs at one look. The gaps of the jobs are among those of `found`, at most `MAX_GAPS`."""

    at: float
    found: Discovery
    jobs: tuple[JobLook, ...] = ()
    seconds: float = 0.0


class Watch:
    """Looks at the node. `wanted` is the set of job ids whose stacks the next look shall sample."""

    def __init__(self, tools: CaptureTools, clock: Callable[[], float] = time.monotonic) -> None:
        self.tools = tools
        self._host = tools.context.host
        self.clock = clock
        self._hung = HungMounts(tools.context.host, tools.context.reader)
        self._writers = LogSharing()
        self._heartbeats = HeartbeatReader(tools.context.host, tools.context.reader)
        self._jobs: dict[str, JobWatch] = {}
        self._unread = UnreadPipes()

    def look(self, wanted: Iterable[str] = ()) -> NodeLook:
        """Look once; a job that is gone is forgotten."""
        started = self.clock()
        found = self.tools.finder.find()
        finder = LogFinder(self._host, self._unread)
        to_sample = set(wanted)
        self._jobs = {job.id: self._jobs.get(job.id) or self._meet() for job in found.jobs}
        self._writers.keep([watch.logs for watch in self._jobs.values()])
        looks = tuple(
            self._look(job, found, finder, sample=job.id in to_sample) for job in found.jobs
        )
        self.tools.known_issues.keep(self._jobs)
        looks = tuple(
            msgspec.structs.replace(one, traps=self._traps(one.job, found)) for one in looks
        )
        if self.tools.context.config.capture.flight_recorder:
            self.tools.flight_recorders.update(found)
        written = self.tools.traces.update(found)
        looks = tuple(with_traces(one, written) for one in looks)
        gaps = _few([gap for look in looks for gap in look.gaps])
        notes = [note for one in looks for note in remarks(one.job, one.traps)]
        found = msgspec.structs.replace(
            found, gaps=(*found.gaps, *gaps), remarks=(*found.remarks, *notes)
        )
        return NodeLook(at=started, found=found, jobs=looks, seconds=self.clock() - started)

    def _traps(self, job: Job, found: Discovery) -> tuple[KnownIssue, ...]:
        """An error in a rule must cost nothing but the finding."""
        try:
            logs = self._jobs[job.id].logs
            return self.tools.known_issues.of(job, found.programs, logs.nccl.facts(), gpu=logs.gpu)
        except Exception:
            log.exception("run %s could not be compared with the known traps", job.id)
            return ()

    def _meet(self) -> JobWatch:
        return JobWatch(self.tools, self._hung, self._writers, self._heartbeats)

    def _look(self, job: Job, found: Discovery, finder: LogFinder, *, sample: bool) -> JobLook:
        """One job; an error in our own code that only this job brings out must not hide the others."""
        now = self.clock()
        try:
            return self._jobs[job.id].look(job, found.children, finder, now, sample=sample)
        except Exception as error:
            log.exception("the look at run %s failed", job.id)
            reason = f"{type(error).__name__}: {error}"
            gap = Gap(
                what=f"run {job.id}", reason=reason, way_out="report it as a defect of mldebug"
            )
            ranks = tuple(RankLook(rank=rank.rank) for rank in job.ranks)
            empty = RunLook(at=now, run=job.id, attempt=job.attempt, ranks=ranks)
            return JobLook(job=job, look=empty, gaps=(gap,))


def _few(gaps: Sequence[Gap]) -> list[Gap]:
    """The first of them, and how many more there are."""
    if len(gaps) <= MAX_GAPS:
        return list(gaps)
    more = f"{len(gaps) - MAX_GAPS} more things"
    return [*gaps[:MAX_GAPS], Gap(what=more, reason=f"{more} could not be looked at")]
