"""The watch: one cheap look at all jobs of this node, every few seconds, without attaching to anybody.

Runs in one worker thread. What a job can make slow (its log, its stacks) has a deadline of its own in its `JobWatch`, so
that one job cannot keep us from the others.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import msgspec

from mldebug.core.model import Gap, Job
from mldebug.jobs.known_issues.match import KnownIssue, remarks
from mldebug.jobs.owners import Owner, in_turns, owner_of
from mldebug.stall.signals import RankLook, RunLook
from mldebug.status.snapshot import FoundJobs
from mldebug_agents.capture.tools import CaptureTools
from mldebug_agents.jobs.hook.records import HeartbeatReader
from mldebug_agents.jobs.logs.job_logs import HungMounts, LogSharing
from mldebug_agents.jobs.logs.locations import LogFinder
from mldebug_agents.jobs.logs.pipes import UnreadPipes
from mldebug_agents.jobs.ranks.discovery import Discovery
from mldebug_agents.watch.job_watch import JobLook, JobWatch, with_traces

log = logging.getLogger("mldebug")

MAX_GAPS = 16  # of one look
LOOKS = 0.3  # seconds for the jobs of one look, after which the others are left to the next
LOOKS_ALONE = 2.0  # where one owner has all jobs
SAMPLES = 1.5  # seconds for the stacks of one look, in equal shares for the owners who have some to be read
SAMPLES_ALONE = 6.0
LEAST_SHARE = 0.25
FURTHER = 0.25  # seconds for the stacks of an owner's jobs, after which a further one of his waits for the next look
CROWD = 4  # jobs of one owner whose stacks are wanted, beyond which he lets others go first in slow looks
CROWD_EVERY = 3  # of which he is left his stacks in one
ALLOWANCE = 2.0  # seconds of a look for the jobs of one owner, stacks apart; who takes more is left out of some looks
MOST_DEBT = 20.0  # seconds of that which count: a machine that slept is not his doing


class NodeLook(msgspec.Struct, frozen=True, kw_only=True):
    """The result of reading processes, logs and hooks of all jobs of this node once. `found` also lists what could not be read
    of them, at most `MAX_GAPS` entries.
    """

    at: float
    found: Discovery
    searched: FoundJobs = FoundJobs()  # `found` before anything else was read
    jobs: tuple[JobLook, ...] = ()
    later: frozenset[str] = (
        frozenset()
    )  # ids of jobs for which no time was left: they are here, and that is all
    seconds: float = 0.0


class Watch:
    """Reads processes, logs and hooks of all jobs of this node, every few seconds, and keeps what the next reading is compared
    with.

    `clock`: monotonic seconds.
    """

    def __init__(self, tools: CaptureTools, clock: Callable[[], float] = time.monotonic) -> None:
        self.tools = tools
        self._host = tools.context.host
        self.clock = clock
        self._hung = HungMounts(tools.context.host, tools.context.reader)
        self._writers = LogSharing()
        self._heartbeats = HeartbeatReader(tools.context.host, tools.context.reader)
        self._jobs: dict[str, JobWatch] = {}
        self._unread = UnreadPipes()
        self._unsampled: set[str] = set()  # jobs whose stacks were wanted, and not yet read
        self._debts: dict[
            Owner, float
        ] = {}  # seconds that owners have taken beyond their allowance
        self._took = 0.0  # seconds, the look before
        self._let_go = 0  # slow looks in which crowds were asked to wait

    def look(self, wanted: Iterable[str] = ()) -> NodeLook:
        """Search the node and look at each job once; jobs that are gone are forgotten.

        `wanted`: ids of the jobs whose stacks are sampled too; where there was no time for that, they
        are sampled when there is. Jobs for which there was no time are named in `later` and come
        first the next time.
        """
        started = self.clock()
        began, found = self._host.clock(), self.tools.finder.find()
        searched = FoundJobs(at=began, jobs=found.all, remarks=found.remarks, gaps=found.gaps)
        finder = LogFinder(self._host, self._unread)
        self._jobs = {job.id: self._jobs.get(job.id) or self._new_job() for job in found.jobs}
        to_sample = frozenset((self._unsampled | set(wanted)) & self._jobs.keys())
        self._unsampled = set(to_sample)
        self._writers.keep([watch.logs for watch in self._jobs.values()])
        self.tools.known_issues.keep(self._jobs)
        looks = tuple(self._in_turns(found, finder, to_sample))
        present = {one.job.id for one in looks}
        if self.tools.context.config.capture.flight_recorder:
            self.tools.flight_recorders.update(found)
        written = self.tools.traces.update(found, present)
        looks = tuple(with_traces(one, written) for one in looks)
        gaps = _few([gap for look in looks for gap in look.gaps])
        notes = [note for one in looks for note in remarks(one.job, one.traps)]
        found = msgspec.structs.replace(
            found, gaps=(*found.gaps, *gaps), remarks=(*found.remarks, *notes)
        )
        later = frozenset(job.id for job in found.jobs if job.id not in present)
        seconds = self._took = self.clock() - started
        return NodeLook(
            at=started, found=found, searched=searched, jobs=looks, later=later, seconds=seconds
        )

    def _in_turns(
        self, found: Discovery, finder: LogFinder, to_sample: Collection[str]
    ) -> Iterator[JobLook]:
        """Look at one job of each owner, then at the next of each, as long as there is time; what is left comes first the next
        time.

        A thousand jobs of one owner, or one job with a thousand threads, delay the jobs of others by seconds at most.
        """
        begun = time.monotonic()
        waiting = sorted(found.jobs, key=lambda job: self._jobs[job.id].last(job.id in to_sample))
        unlikely = {job.id for job in waiting if _is_unlikely(job, found)}
        jobs = [
            *in_turns((job for job in waiting if job.id not in unlikely), owner_of),
            *in_turns((job for job in waiting if job.id in unlikely), owner_of),
        ]
        owners = len(set(map(owner_of, jobs)))
        crowds = self._crowds(job for job in jobs if job.id in to_sample)
        to_sample = {job.id for job in jobs if job.id in to_sample and owner_of(job) not in crowds}
        samples = SampleTimes((job for job in jobs if job.id in to_sample), alone=owners < 2)
        patience = LOOKS_ALONE if owners < 2 else LOOKS
        resting = self._resting(set(map(owner_of, jobs)))
        had: set[Owner] = set()
        for job in jobs:
            before, owner = time.monotonic(), owner_of(job)
            is_late = before - begun - samples.used > patience
            if owner in resting or (is_late and owner in had):
                continue
            had.add(owner)
            sample = samples.left(job) if job.id in to_sample else 0.0
            one = self._look(job, found, finder, sample=sample)
            yield msgspec.structs.replace(one, traps=self._traps(job, found))
            took = time.monotonic() - before
            self._debts[owner] = self._debts.get(owner, 0.0) + max(0.0, took - sample)
            if sample:
                samples.use(job, took)
                self._unsampled.discard(job.id)

    def _crowds(self, suspected: Iterable[Job]) -> frozenset[Owner]:
        """The owners of so many suspected jobs that their stacks wait for a later look, in two of three looks: only where looks take
        longer than the interval between them, and the stacks of somebody with few are wanted, too.
        """
        wanted = Counter(map(owner_of, suspected))
        many = frozenset(owner for owner, count in wanted.items() if count > CROWD)
        slow = self._took > self.tools.context.config.stall.interval
        if not (slow and many) or len(many) == len(wanted):
            return frozenset()
        self._let_go += 1
        return many if self._let_go % CROWD_EVERY else frozenset()

    def _resting(self, owners: Collection[Owner]) -> frozenset[Owner]:
        """The owners whose jobs have taken so much time that this look is without them; nobody where there is one owner."""
        self._debts = {
            owner: min(debt, MOST_DEBT) - ALLOWANCE
            for owner, debt in self._debts.items()
            if owner in owners and debt > ALLOWANCE and len(owners) > 1
        }
        return frozenset(owner for owner, debt in self._debts.items() if debt > ALLOWANCE)

    def _traps(self, job: Job, found: Discovery) -> tuple[KnownIssue, ...]:
        """An error in a rule must cost nothing but the finding."""
        try:
            logs = self._jobs[job.id].logs
            return self.tools.known_issues.of(job, found.programs, logs.nccl.facts(), gpu=logs.gpu)
        except Exception:
            log.exception("run %s could not be compared with the known traps", job.id)
            return ()

    def _new_job(self) -> JobWatch:
        return JobWatch(self.tools, self._hung, self._writers, self._heartbeats, self.clock)

    def _look(self, job: Job, found: Discovery, finder: LogFinder, *, sample: float) -> JobLook:
        """One job; an error in our own code that only this job brings out must not hide the others."""
        now = self.clock()
        try:
            return self._jobs[job.id].look(job, found.children, finder, now, sample=sample, programs=found.programs)  # fmt: skip
        except Exception as error:
            log.exception("the look at run %s failed", job.id)
            reason = f"{type(error).__name__}: {error}"
            gap = Gap(
                what=f"run {job.id}", reason=reason, way_out="report it as a defect of mldebug"
            )
            ranks = tuple(RankLook(rank=rank.rank) for rank in job.ranks)
            empty = RunLook(at=now, run=job.id, attempt=job.attempt, ranks=ranks)
            return JobLook(job=job, look=empty, gaps=(gap,))


class SampleTimes:
    """The seconds that the stacks of `jobs` may take in one look: each owner has the same share, so that nobody's slow ranks
    leave another's unread. `alone`: the node has jobs of one owner only.
    """

    def __init__(self, jobs: Iterable[Job], *, alone: bool) -> None:
        owners = set(map(owner_of, jobs))
        self._share = SAMPLES_ALONE if alone else max(LEAST_SHARE, SAMPLES / max(1, len(owners)))
        self._further = math.inf if alone else FURTHER
        self._used: dict[Owner, float] = dict.fromkeys(owners, 0.0)

    def left(self, job: Job) -> float:
        """Seconds that may be spent on the stacks of this job; 0 where too little is left of the share of its owner, or where the
        owner's other jobs have used enough in this look.
        """
        owner = owner_of(job)
        left = self._share - self._used[owner]
        return left if left >= LEAST_SHARE and self._used[owner] < self._further else 0.0

    @property
    def used(self) -> float:
        """Wall-clock seconds spent on reading stacks of all jobs in this look."""
        return sum(self._used.values())

    def use(self, job: Job, seconds: float) -> None:
        """Subtract the `seconds` that reading this job's stacks has taken from its owner's share."""
        self._used[owner_of(job)] += seconds


def _is_unlikely(job: Job, found: Discovery) -> bool:
    """Is it a job in its environment alone: most of its ranks are not here, and none has loaded PyTorch?"""
    programs = (found.programs.get(rank.pid) for rank in job.ranks)
    return 2 * len(job.ranks) <= job.world_size and not any(
        one and one.libraries.torch for one in programs
    )


def _few(gaps: Sequence[Gap]) -> list[Gap]:
    """The first of them, and how many more there are."""
    if len(gaps) <= MAX_GAPS:
        return list(gaps)
    more = f"{len(gaps) - MAX_GAPS} more things"
    return [*gaps[:MAX_GAPS], Gap(what=more, reason=f"{more} could not be looked at")]
