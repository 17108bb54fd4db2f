"""From the first exit to the incident: who has ended, when enough is known to judge, and which attempts are one story.

Belongs to the main loop's thread. Whatever may take long (logs, files, the kernel's log) is asked in a worker, after a
few seconds of grace in which the launcher prints its summary and the other ranks follow.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

import msgspec

from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.model import AttemptExit, KnownExits, RankExit, words_of_status
from mldebug.diagnosis.exits.outcome import ExitOutcome
from mldebug_agents.incidents.exits.attempt import WatchedAttempt
from mldebug_agents.incidents.exits.exit_evidence import ExitEvidence
from mldebug_agents.incidents.exits.known_exits import joined_exits, with_exits
from mldebug_agents.incidents.exits.pidfds import ExitWatch, ProcessExit
from mldebug_agents.jobs.ranks.discovery import RankChild
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.runs import Run, no_training

log = logging.getLogger("mldebug")

TOLD = 8  # exits of one job that an open incident lists one by one
ELASTIC = ("torchrun", "accelerate", "deepspeed")  # launchers that may start another attempt
EAGER = 30.0  # seconds after a failure in which the next attempt is looked for more often

Work = Callable[[], AttemptExit | None]


class ExitListener(Protocol):
    """Who makes incidents of what we find out."""

    def exited(self, run: Run, at: float, words: str) -> None:
        """A rank has ended."""

    def failed(self, run: Run, attempt: AttemptExit, outcome: ExitOutcome, *, final: bool) -> None:
        """An attempt ended badly, or has lost a rank; `final`: no other attempt is open, or can be started."""

    def goes_on(self, run: Run) -> None:
        """A look has seen the job alive."""

    def launcher_ended(self, pid: int) -> None:
        """All attempts that came from there are judged, and no further one will come."""

    def done(self, run: Run) -> None:
        """Everything is said about a job that is over."""


class ExitTracker:
    """Follows all jobs of the node. `order` hands work to the worker; `tell` is given what is known of every end."""

    def __init__(
        self,
        witness: ExitEvidence,
        exits: ExitWatch,
        order: Callable[[Work], bool],
        teller: ExitListener,
        keep: Callable[[str, KnownExits], None],
    ) -> None:
        """`keep` stores, by the job's id, what an agent after us should know."""
        self._keep = keep
        self._witness = witness
        self._exits = exits
        self._order = order
        self._teller = teller
        self._jobs: dict[str, WatchedAttempt] = {}
        self._ranks: dict[tuple[int, int], tuple[str, int]] = {}  # (pid, start) -> (job, rank)
        self._launchers: dict[int, ProcessExit | None] = {}  # by pid

    # --- what the node tells us --------------------------------------------------------------------

    def follow(self, run: Run, children: Mapping[int, Iterable[RankChild]]) -> None:
        """A look has seen the job; `children` by the pid of their rank."""
        job = run.job
        one = self._jobs.setdefault(job.id, WatchedAttempt(run))
        one.run, one.job = run, job
        for rank in job.ranks:
            one.meet_children(rank.rank, children.get(rank.pid, ()))
            if self._is_new(one, rank.pid, rank.start_ticks):
                self._ranks[rank.pid, rank.start_ticks] = (job.id, rank.rank)
                one.identities[rank.rank] = rank
                self._exits.watch(rank.pid, rank.start_ticks)
        self._follow_launcher(one)
        self._note_losses(one)
        now = time.monotonic()
        if one.wants_notes(now) and self._order(lambda: self._witness.meet(job)):
            one.noted_at = now
        self._teller.goes_on(run)

    def _is_new(self, one: WatchedAttempt, pid: int, start: int) -> bool:
        """Is this process not yet watched for this job? One that was taken for another job's, of one rank, is that no more."""
        job_id, rank = self._ranks.get((pid, start), ("", -1))
        other = self._jobs.get(job_id)
        if other is not None and other is not one:
            other.identities.pop(rank, None)
            if not other.identities:
                self._forget(other)
        return other is not one

    def recall(self, run: Run, ends: KnownExits | None) -> None:
        """What an earlier agent saw of the ends of a job that still lives."""
        if ends is not None:
            self._jobs.setdefault(run.job.id, WatchedAttempt(run)).recall(ends)

    def revive(self, run: Run, ends: KnownExits) -> None:
        """A job that has lost a rank under an earlier agent, and was gone before anybody judged it."""
        self.recall(run, ends)
        self.over(run)

    def expect(self, launcher_pid: int) -> None:
        """A launcher between two attempts: its end has to be seen."""
        if launcher_pid not in self._launchers:
            self._launchers[launcher_pid] = None
            self._exits.watch(launcher_pid)

    def complete(self, look: JobLook) -> JobLook:
        """A look, with what we know of who is lost."""
        one = self._jobs.get(look.job.id)
        if one is None or not one.exits:
            return look
        job, seen = with_exits(look.job, look.look, one.exits)
        return msgspec.structs.replace(look, job=job, look=seen)

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

    def exits(self, job_id: str) -> dict[int, str]:
        """How the ranks of a job ended, so far, in words by rank; those that nobody saw to end are absent."""
        one = self._jobs.get(job_id)
        return one.exit_words() if one else {}

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
            one.asked = self._order(partial(self._ask, one.as_exit()))

    def told(self, attempt: AttemptExit) -> None:
        """The worker has asked around: judge."""
        one = self._jobs.get(attempt.job.id)
        if one is None:
            return
        if one.told_before is not None:
            attempt = joined_exits(one.told_before, attempt)
        outcome = judge_exit(attempt)
        gone = self._launchers.get(one.job.launcher_pid or 0)
        if outcome.kind == "abnormal" and _counts(one.run):
            self._teller.failed(
                one.run, attempt, outcome, final=one.over and not self._more(one, gone)
            )
        else:
            log.info("%s: %s", one.job.name, outcome.sentence)
            if not one.over:  # who else ends may change it
                one.failing_at, one.asked = None, False
                self._keep(one.job.id, one.known())
        if one.over:
            self._forget(one)

    @property
    def eager(self) -> bool:
        """Is something going on that wants more looks than usual?"""
        now = time.monotonic()
        return any(one.failing_at and now - one.failing_at < EAGER for one in self._jobs.values())

    # --- inside ------------------------------------------------------------------------------------

    def _follow_launcher(self, one: WatchedAttempt) -> None:
        pid = one.job.launcher_pid
        if pid is None:
            return
        if self._launchers.get(pid) is not None or pid not in self._launchers:
            self._launchers[pid] = None  # new, or another one with the number of one that is gone
            self._exits.watch(pid)
        one.launcher = self._launchers[pid]

    def _note_losses(self, one: WatchedAttempt) -> None:
        """What discovery knows of ranks that ended without our seeing it."""
        for lost in one.job.lost:
            known = one.identities.get(lost.rank)
            if known is not None and lost.rank not in one.exits:
                source = "its zombie" if lost.exit_status is not None else "exit unknown"
                one.exits[lost.rank] = RankExit(
                    rank=lost.rank, pid=known.pid, status=lost.exit_status, source=source
                )
                one.note_failure(lost.exit_status)
                self._keep(one.job.id, one.known())

    def _note(self, one: WatchedAttempt, rank: int, gone: ProcessExit) -> None:
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
        self._keep(one.job.id, one.known())

    def _more(self, one: WatchedAttempt, gone: ProcessExit | None) -> bool:
        """Is another attempt of the same launch open, or can one still be started?"""
        launcher = one.job.launcher_pid
        if launcher is None:
            return False
        if gone is None:
            return one.job.launcher in ELASTIC
        return any(o.job.launcher_pid == launcher for o in self._jobs.values() if o is not one)

    def _ask(self, attempt: AttemptExit) -> AttemptExit:
        return self._witness.ask(attempt)

    def _forget(self, one: WatchedAttempt) -> None:
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
    """A lone process that is no training may end as it likes."""
    return run.seen is not None and not no_training(run.seen)
