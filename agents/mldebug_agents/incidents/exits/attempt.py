"""One attempt (one start of a job by its launcher) under watch: its ranks, which of them have
ended, and when to collect the evidence.

Used by the main loop's thread only.
"""

import time
from collections.abc import Iterable

from mldebug.core.model import Job, RankIdentity
from mldebug.diagnosis.exits.model import AttemptExit, KnownExits, RankExit, full_words
from mldebug_agents.incidents.exits.known_exits import known_exits_of, past
from mldebug_agents.incidents.exits.pidfds import ProcessExit
from mldebug_agents.jobs.ranks.discovery import RankChild
from mldebug_agents.watch.runs import Run

GRACE = 5.0  # seconds after the first failing exit, or after the last, until it is judged
SETTLED = 0.5  # where the launcher is gone, too
REFRESH = 30.0  # seconds between two looks at where a job's output goes
YOUNG, SOON = (
    60.0,
    3.0,
)  # the same for a job that was found so lately: its launcher may not have opened its log yet
KEPT = 4096  # children of ranks that are remembered per job


class WatchedAttempt:
    """One attempt of a run under watch: its ranks, their exits, and when its evidence is collected."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.job: Job = run.job
        self.identities: dict[int, RankIdentity] = {}
        self.exits: dict[int, RankExit] = {}
        self.children: dict[int, int] = {}
        self.launcher: ProcessExit | None = None
        self.failing_at: float | None = None
        self.over_at: float | None = None
        self.collecting = False
        self.found_at = time.monotonic()
        self.noted_at = -REFRESH
        self.judged_before: AttemptExit | None = None  # the exit that an earlier agent judged

    def follow(self, run: Run) -> None:
        """Set the run and its job to their newest state."""
        self.run, self.job = run, run.job

    def add_rank(self, rank: RankIdentity) -> None:
        """Add a rank to those whose exit is watched for."""
        self.identities[rank.rank] = rank

    def follow_launcher(self, gone: ProcessExit | None) -> None:
        """Note how the launcher has ended; None while it lives."""
        self.launcher = gone

    def noted(self, now: float) -> None:
        """Note that the places of the job's output were searched at `now` (monotonic seconds)."""
        self.noted_at = now

    def all_gone(self, now: float) -> None:
        """Note that no rank is left.

        From `now` (monotonic seconds) some seconds pass before the evidence is collected.
        """
        self.over_at, self.collecting = now, False

    def collect(self, is_ordered: bool) -> None:
        """Set whether the worker was ordered to collect the evidence and has not finished yet."""
        self.collecting = is_ordered

    def wait_for_others(self) -> None:
        """Forget the first failure, which was judged as harmless: the next exit of a rank is judged anew."""
        self.failing_at, self.collecting = None, False

    def wants_notes(self, now: float) -> bool:
        """Whether it is time to search again for the files to which the job writes; more often while the job is young.
        `now`: monotonic seconds.
        """
        return now - self.noted_at >= (SOON if now - self.found_at < YOUNG else REFRESH)

    def recall(self, ends: KnownExits) -> None:
        """Add the exits that an earlier agent stored.

        A known rank that is gone without a stored exit ended while no agent ran.
        """
        here = {rank.rank for rank in self.run.job.ranks}
        self.judged_before = self.run.incident.exit if self.run.incident else None
        for one in ends.identities:
            self.identities.setdefault(one.rank, one)
        past_exits = {one.rank: one for one in past(ends.exits)}
        unseen = {
            rank: RankExit(rank=rank, pid=one.pid, moment=0)
            for rank, one in self.identities.items()
            if rank not in self.exits
        }
        for rank, gone in (unseen | past_exits).items():
            mine = self.exits.get(rank)
            if rank not in here and (mine is None or mine.status is None):
                self.exits[rank] = gone
                if self.judged_before is None:
                    self.note_failure(gone.status)

    def known_exits(self) -> KnownExits:
        """The ranks and exits so far, to be stored for the next start of the agent."""
        failing = None if self.failing_at is None else self.job
        return known_exits_of(self.identities, self.exits, failing)

    def exit_words(self) -> dict[int, str]:
        """How ranks of the attempt ended so far, in words by rank. Exits of unknown status are left out."""
        exits = (one for one in self.exits.values() if one.status is not None)
        return {one.rank: full_words(one.status) for one in exits}

    def add_children(self, rank: int, children: Iterable[RankChild]) -> None:
        """Remember the child processes of a rank, at most `KEPT` for the whole job."""
        self.children.update((child.pid, rank) for child in children)
        if len(self.children) > KEPT:
            self.children = dict(list(self.children.items())[-KEPT:])

    def note_failure(self, status: int | None) -> None:
        """Note the first exit that may be a failure; after some seconds the evidence is collected.

        `status`: its wait(2) status word, None if unknown.
        """
        if status != 0 and self.failing_at is None:
            self.failing_at, self.collecting = time.monotonic(), False

    @property
    def over(self) -> bool:
        """Whether all ranks of the attempt are gone."""
        return self.over_at is not None

    @property
    def normal(self) -> bool:
        """Whether every rank is known to have exited with code 0."""
        done = [one.status for one in self.exits.values()]
        return len(done) == len(self.identities) and not any(status != 0 for status in done)

    def due(self, now: float) -> bool:
        """Whether it is time (`now`, monotonic) to collect the evidence: some seconds after the
        first failure or the last exit, and not under way yet.
        """
        if self.collecting:
            return False
        if self.over_at is not None:
            alone = self.launcher is not None or self.job.launcher_pid is None
            return now - self.over_at >= (SETTLED if alone else GRACE)
        return self.failing_at is not None and now - self.failing_at >= GRACE

    def as_exit(self) -> AttemptExit:
        """The exits so far in their order, without further evidence.

        Once no rank is left, ranks without a known exit are added, last.
        """
        gone = dict(self.exits)
        if self.over:
            for rank, one in self.identities.items():
                gone.setdefault(rank, RankExit(rank=rank, pid=one.pid))
        order = sorted(gone.values(), key=lambda one: (one.moment is None, one.moment, one.rank))
        return AttemptExit(
            job=self.job,
            identities=tuple(self.identities[rank] for rank in sorted(self.identities)),
            exits=tuple(order),
            living=tuple(rank for rank in sorted(self.identities) if rank not in gone),
            launcher_pid=self.job.launcher_pid,
            launcher_gone=self.launcher is not None,
            launcher_moment=self.launcher.moment if self.launcher else None,
            launcher_status=self.launcher.status if self.launcher else None,
            children=dict(self.children),
        )
