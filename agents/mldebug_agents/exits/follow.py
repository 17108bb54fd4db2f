"""From the first exit to the incident: who has ended, when enough is known to judge, and which attempts are one story.

Belongs to the main loop's thread. Whatever may take long (logs, files, the kernel's log) is asked in a worker, after a
few seconds of grace in which the launcher prints its summary and the other ranks follow.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

from mldebug.endings.facts import Ending, RankExit, words_of_status
from mldebug.endings.judge import judge_ending
from mldebug.endings.outcomes import Outcome
from mldebug.model import Job, RankIdentity
from mldebug_agents.exits.pidfds import ExitWatch, ProcessExit
from mldebug_agents.exits.witness import Witness
from mldebug_agents.runs import Run, may_stall
from mldebug_agents.sources.ranks import Child

log = logging.getLogger("mldebug")

GRACE = 5.0  # seconds after the first failing exit, or after the last, until it is judged
SETTLED = 0.5  # where the launcher is gone, too
REFRESH = 30.0  # seconds between two looks at where a job's output goes
KEPT = 4096  # children of ranks that are remembered per job
TOLD = 8  # exits of one job that an open incident lists one by one
ELASTIC = ("torchrun", "accelerate", "deepspeed")  # launchers that may start another attempt
EAGER = 30.0  # seconds after a failure in which the next attempt is looked for more often

Work = Callable[[], Ending | None]


class Teller(Protocol):
    """Who makes incidents of what we find out."""

    def exited(self, run: Run, at: float, words: str) -> None:
        """A rank has ended."""

    def failed(self, run: Run, ending: Ending, outcome: Outcome, *, final: bool) -> None:
        """An attempt ended badly, or has lost a rank; `final`: no other attempt is open, or can be started."""

    def goes_on(self, run: Run) -> None:
        """A look has seen the job alive."""

    def launcher_ended(self, pid: int) -> None:
        """All attempts that came from there are judged, and no further one will come."""

    def done(self, run: Run) -> None:
        """Everything is said about a job that is over."""


class Following:
    """One attempt under watch."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.job: Job = run.job
        self.identities: dict[int, RankIdentity] = {}
        self.exits: dict[int, RankExit] = {}
        self.children: dict[int, int] = {}
        self.launcher: ProcessExit | None = None
        self.failing_at: float | None = None
        self.over_at: float | None = None
        self.asked = False
        self.noted_at = -REFRESH

    def meet_children(self, rank: int, children: Iterable[Child]) -> None:
        """Remember who belongs to a rank."""
        self.children.update((child.pid, rank) for child in children)
        if len(self.children) > KEPT:
            self.children = dict(list(self.children.items())[-KEPT:])

    def note_failure(self, status: int | None) -> None:
        """From the first exit that may be a failure, the time of grace runs."""
        if status != 0 and self.failing_at is None:
            self.failing_at, self.asked = time.monotonic(), False

    @property
    def over(self) -> bool:
        """Are all its ranks gone?"""
        return self.over_at is not None

    @property
    def normal(self) -> bool:
        """Has every rank left with exit code 0, as far as we saw?"""
        done = [one.status for one in self.exits.values()]
        return len(done) == len(self.identities) and not any(status != 0 for status in done)

    def due(self, now: float) -> bool:
        """Is it time to ask what happened?"""
        if self.asked:
            return False
        if self.over_at is not None:
            alone = self.launcher is not None or self.job.launcher_pid is None
            return now - self.over_at >= (SETTLED if alone else GRACE)
        return self.failing_at is not None and now - self.failing_at >= GRACE

    def ending(self) -> Ending:
        """What is known without asking anybody. Exits that nobody saw are unknown, and come last."""
        gone = dict(self.exits)
        if self.over:
            for rank, one in self.identities.items():
                gone.setdefault(rank, RankExit(rank=rank, pid=one.pid))
        order = sorted(gone.values(), key=lambda one: (one.moment is None, one.moment, one.rank))
        return Ending(
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


class Endings:
    """Follows all jobs of the node. `order` hands work to the worker; `tell` is given what is known of every end."""

    def __init__(
        self, witness: Witness, exits: ExitWatch, order: Callable[[Work], bool], teller: Teller
    ) -> None:
        self._witness = witness
        self._exits = exits
        self._order = order
        self._teller = teller
        self._jobs: dict[str, Following] = {}
        self._ranks: dict[tuple[int, int], tuple[str, int]] = {}  # (pid, start) -> (job, rank)
        self._launchers: dict[int, ProcessExit | None] = {}  # by pid

    # --- what the node tells us --------------------------------------------------------------------

    def follow(self, run: Run, children: Mapping[int, Iterable[Child]]) -> None:
        """A look has seen the job; `children` by the pid of their rank."""
        job = run.job
        one = self._jobs.setdefault(job.id, Following(run))
        one.run, one.job = run, job
        for rank in job.ranks:
            one.meet_children(rank.rank, children.get(rank.pid, ()))
            if (rank.pid, rank.start_ticks) not in self._ranks:
                self._ranks[rank.pid, rank.start_ticks] = (job.id, rank.rank)
                one.identities[rank.rank] = rank
                self._exits.watch(rank.pid, rank.start_ticks)
        self._follow_launcher(one)
        self._note_losses(one)
        now = time.monotonic()
        if now - one.noted_at >= REFRESH and self._order(lambda: self._witness.meet(job)):
            one.noted_at = now
        self._teller.goes_on(run)

    def exited(self, gone: ProcessExit) -> None:
        """A process has ended."""
        job_id, rank = self._ranks.get((gone.pid, gone.start_ticks), ("", -1))
        following = self._jobs.get(job_id)
        if following is not None:
            self._note(following, rank, gone)
        elif gone.pid in self._launchers:
            self._launchers[gone.pid] = gone
            for one in self._jobs.values():
                if one.job.launcher_pid == gone.pid:
                    one.launcher = gone
            self._forget_launchers()

    def over(self, run: Run) -> None:
        """All ranks of a job are gone: it will be judged, soon."""
        one = self._jobs.get(run.job.id)
        if one is None:
            self._teller.done(run)
        else:
            one.over_at, one.asked = time.monotonic(), False

    def turn(self) -> None:
        """Ask about those attempts for which it is time."""
        now = time.monotonic()
        for one in list(self._jobs.values()):
            if not one.due(now):
                continue
            if one.over and one.normal:
                log.info("%s: ended: all ranks left with exit 0", one.job.name)
                self._forget(one)
                continue
            one.asked = self._order(partial(self._ask, one.ending()))

    def told(self, ending: Ending) -> None:
        """The worker has asked around: judge."""
        one = self._jobs.get(ending.job.id)
        if one is None:
            return
        outcome = judge_ending(ending)
        gone = self._launchers.get(one.job.launcher_pid or 0)
        if outcome.kind == "abnormal" and _counts(one.run):
            others = [other.job.launcher_pid for other in self._jobs.values() if other is not one]
            more = one.job.launcher_pid in others and gone is not None
            more = more or (one.job.launcher in ELASTIC and gone is None)
            self._teller.failed(one.run, ending, outcome, final=one.over and not more)
        else:
            log.info("%s: %s", one.job.name, outcome.sentence)
            if not one.over:  # who else ends may change it
                one.failing_at, one.asked = None, False
        if one.over:
            self._forget(one)

    @property
    def eager(self) -> bool:
        """Is something going on that wants more looks than usual?"""
        now = time.monotonic()
        return any(one.failing_at and now - one.failing_at < EAGER for one in self._jobs.values())

    # --- inside ------------------------------------------------------------------------------------

    def _follow_launcher(self, one: Following) -> None:
        pid = one.job.launcher_pid
        if pid is None:
            return
        if self._launchers.get(pid) is not None or pid not in self._launchers:
            self._launchers[pid] = None  # new, or another one with the number of one that is gone
            self._exits.watch(pid)
        one.launcher = self._launchers[pid]

    def _note_losses(self, one: Following) -> None:
        """What discovery knows of ranks that ended without our seeing it."""
        for lost in one.job.lost:
            known = one.identities.get(lost.rank)
            if known is not None and lost.rank not in one.exits:
                source = "its zombie" if lost.exit_status is not None else "exit unknown"
                one.exits[lost.rank] = RankExit(
                    rank=lost.rank, pid=known.pid, status=lost.exit_status, source=source
                )
                one.note_failure(lost.exit_status)

    def _note(self, one: Following, rank: int, gone: ProcessExit) -> None:
        known = gone.status is not None
        one.exits[rank] = RankExit(
            rank=rank,
            pid=gone.pid,
            at=gone.at,
            moment=gone.moment,
            status=gone.status,
            source="exit status of the process" if known else "exit unknown",
        )
        words = f"rank {rank} ended: {words_of_status(gone.status)}"
        log.info("%s: %s", one.job.name, words)
        if len(one.exits) <= TOLD:
            self._teller.exited(one.run, gone.at, words)
        one.note_failure(gone.status)

    def _ask(self, ending: Ending) -> Ending:
        return self._witness.ask(ending)

    def _forget(self, one: Following) -> None:
        self._jobs.pop(one.job.id, None)
        self._ranks = {key: mine for key, mine in self._ranks.items() if mine[0] != one.job.id}
        self._order(lambda: self._witness.forget(one.job.id))
        self._teller.done(one.run)
        self._forget_launchers()

    def _forget_launchers(self) -> None:
        """Those that are gone, once all their attempts are judged."""
        needed = {one.job.launcher_pid for one in self._jobs.values()}
        for pid in [pid for pid, gone in self._launchers.items() if gone and pid not in needed]:
            del self._launchers[pid]
            self._teller.launcher_ended(pid)


def _counts(run: Run) -> bool:
    """A lone process that never told a step may end as it likes."""
    return run.seen is not None and may_stall(run.seen)
