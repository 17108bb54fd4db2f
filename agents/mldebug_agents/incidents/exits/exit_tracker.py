"""From the first exit of a rank to the judgement of its attempt (one start of the job): which ranks
have ended, and when enough is known to judge.

Used by the main loop's thread only. What may take long (logs, files) is collected in a worker
thread, some seconds after the exit, because the launcher prints its summary and the other ranks
follow in that time.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from mldebug.core.model import Job
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.model import AttemptExit, KnownExits, RankExit, words_of_status
from mldebug.diagnosis.exits.outcome import ExitOutcome
from mldebug.jobs.owners import Owner, owner_of
from mldebug_agents.incidents.exits.attempt import WatchedAttempt
from mldebug_agents.incidents.exits.exit_evidence import ExitEvidence
from mldebug_agents.incidents.exits.known_exits import joined_exits, with_exits
from mldebug_agents.incidents.exits.pidfds import ExitWatch, ProcessExit
from mldebug_agents.jobs.ranks.discovery import RankChild
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.runs import Run, no_training

log = logging.getLogger("mldebug")

MAX_LISTED = 8  # exits of one job that an open incident lists one by one
ELASTIC = ("torchrun", "accelerate", "deepspeed")  # launchers that may start another attempt
EAGER = 30.0  # seconds after a failure in which the next attempt is looked for more often

Work = Callable[[], AttemptExit | None]


class OwnedWork(NamedTuple):
    """A piece of work for the worker thread, and the owner of the job, between whom the worker divides its time."""

    work: Work
    owner: Owner

    def __call__(self) -> AttemptExit | None:
        """In the worker: do it."""
        return self.work()


class ExitListener(Protocol):
    """Gets the exits that the tracker finds, and makes incidents of them."""

    def exited(self, run: Run, at: float, words: str) -> None:
        """Called when ranks have exited. `at`: unix time; `words`: which ranks, and how."""

    def failed(self, run: Run, attempt: AttemptExit, outcome: ExitOutcome, *, final: bool) -> None:
        """Called when an attempt was judged a failure, perhaps while some of its ranks live.

        `final`: no other attempt of the launch is open or can follow.
        """

    def goes_on(self, run: Run) -> None:
        """Called at each look that finds ranks of the job."""

    def launcher_ended(self, pid: int) -> None:
        """Called when a launcher has ended, and all attempts that it started are judged."""

    def done(self, run: Run) -> None:
        """Called when no rank of the run is left and the reason of its end has been found: what is kept of it may go."""


class ExitTracker:
    """Tracks the exits of all jobs of this node.

    `order` hands work to the worker, and returns False where its queue is full; `listener` gets
    every exit.
    """

    def __init__(
        self,
        evidence: ExitEvidence,
        exits: ExitWatch,
        order: Callable[[OwnedWork], bool],
        listener: ExitListener,
        keep: Callable[[str, KnownExits], None],
    ) -> None:
        """`keep` stores the known exits by the job's id, for the next start of the agent."""
        self._keep = keep
        self._evidence = evidence
        self._exits = exits
        self._order = order
        self._listener = listener
        self._jobs: dict[str, WatchedAttempt] = {}
        self._ranks: dict[tuple[int, int], tuple[str, int]] = {}  # (pid, start) -> (job, rank)
        self._launchers: dict[int, ProcessExit | None] = {}  # by pid

    # --- what the main loop reports ------------------------------------------------------------------

    def follow(self, run: Run, children: Mapping[int, Iterable[RankChild]]) -> None:
        """Watch the ranks of a living job that were found since the last call, and remember its child processes.

        `children`: by the pid of their rank.
        """
        job = run.job
        one = self._jobs.setdefault(job.id, WatchedAttempt(run))
        one.follow(run)
        for rank in job.ranks:
            one.add_children(rank.rank, children.get(rank.pid, ()))
            if self._is_new(one, rank.pid, rank.start_ticks):
                self._ranks[rank.pid, rank.start_ticks] = (job.id, rank.rank)
                one.add_rank(rank)
                self._exits.watch(rank.pid, rank.start_ticks, owner_of(job))
        self._follow_launcher(one)
        self._note_losses(one)
        now = time.monotonic()
        if one.wants_notes(now) and self._hand_over(job, lambda: self._evidence.add_job(job)):
            one.noted(now)
        self._listener.goes_on(run)

    def _is_new(self, one: WatchedAttempt, pid: int, start: int) -> bool:
        """Whether this process is not yet watched for this job. It is taken from another job that it was taken for before."""
        job_id, rank = self._ranks.get((pid, start), ("", -1))
        other = self._jobs.get(job_id)
        if other is not None and other is not one:
            other.identities.pop(rank, None)
            if not other.identities:
                self._forget(other)
        return other is not one

    def recall(self, run: Run, ends: KnownExits | None) -> None:
        """Add the exits that an earlier agent stored of a job that still lives; None: it stored none."""
        if ends is not None:
            self._jobs.setdefault(run.job.id, WatchedAttempt(run)).recall(ends)

    def revive(self, run: Run, ends: KnownExits) -> None:
        """Judge how a job ended that lost a rank while an earlier agent ran, and whose processes no longer exist. `ends`: the exits that the earlier
        agent stored, the only evidence of them.
        """
        self.recall(run, ends)
        self.over(run)

    def expect(self, launcher_pid: int) -> None:
        """Watch for the end of a launcher that has no rank at present."""
        if launcher_pid not in self._launchers:
            self._launchers[launcher_pid] = None
            self._exits.watch(launcher_pid)

    def complete(self, look: JobLook) -> JobLook:
        """Return the reading of a job (`look`) with the ranks added that are known to have exited."""
        one = self._jobs.get(look.job.id)
        if one is None or not one.exits:
            return look
        job, look_now = with_exits(look.job, look.look, one.exits)
        return msgspec.structs.replace(look, job=job, look=look_now)

    def exited(self, gone: ProcessExit) -> None:
        """Handle the end of a watched process: a rank or a launcher."""
        job_id, rank = self._ranks.get((gone.pid, gone.start_ticks), ("", -1))
        attempt = self._jobs.get(job_id)
        if attempt is not None:
            self._note(attempt, rank, gone)
        elif gone.pid in self._launchers:
            self._launchers[gone.pid] = gone
            for one in self._jobs.values():
                if one.job.launcher_pid == gone.pid:
                    one.follow_launcher(gone)
            self._forget_launchers()

    def exits(self, job_id: str) -> dict[int, str]:
        """How the ranks of a job ended so far, in words by rank. Exits of unknown status are left out."""
        one = self._jobs.get(job_id)
        return one.exit_words() if one else {}

    def over(self, run: Run) -> None:
        """Note that no rank of a job is left. Its end is judged some seconds later."""
        one = self._jobs.get(run.job.id)
        if one is None:
            self._listener.done(run)
        else:
            one.all_gone(time.monotonic())

    def tick(self) -> None:
        """Order the evidence of attempts that have been over, or have failed, for some seconds.

        An attempt whose ranks all exited with 0 is only logged.
        """
        now = time.monotonic()
        for one in list(self._jobs.values()):
            if not one.due(now):
                continue
            if one.over and one.normal:
                log.info("%s: ended: all ranks left with exit 0", one.job.name)
                self._forget(one)
                continue
            one.collect(self._hand_over(one.job, partial(self._collect, one.as_exit())))

    def on_attempt_exit(self, attempt: AttemptExit) -> None:
        """Judge an attempt from the evidence that the worker has collected, and tell the listener if it failed."""
        one = self._jobs.get(attempt.job.id)
        if one is None:
            return
        if one.judged_before is not None:
            attempt = joined_exits(one.judged_before, attempt)
        outcome = judge_exit(attempt)
        gone = self._launchers.get(one.job.launcher_pid or 0)
        if outcome.kind == "abnormal" and _counts(one.run):
            self._listener.failed(
                one.run, attempt, outcome, final=one.over and not self._more(one, gone)
            )
        else:
            log.info("%s: %s", one.job.name, outcome.sentence)
            if not one.over:
                one.wait_for_others()
                self._keep(one.job.id, one.known_exits())
        if one.over:
            self._forget(one)

    @property
    def eager(self) -> bool:
        """Whether an attempt failed less than `EAGER` seconds ago, so that looks should come more often."""
        now = time.monotonic()
        return any(one.failing_at and now - one.failing_at < EAGER for one in self._jobs.values())

    # --- inside ------------------------------------------------------------------------------------

    def _follow_launcher(self, one: WatchedAttempt) -> None:
        pid = one.job.launcher_pid
        if pid is None:
            return
        if self._launchers.get(pid) is not None or pid not in self._launchers:
            self._launchers[pid] = None  # new, or another one with the number of one that is gone
            self._exits.watch(pid, owner=owner_of(one.job))
        one.follow_launcher(self._launchers[pid])

    def _note_losses(self, one: WatchedAttempt) -> None:
        """Take the ranks that discovery found to have ended."""
        for lost in one.job.lost:
            known = one.identities.get(lost.rank)
            if known is not None and lost.rank not in one.exits:
                source = "its zombie" if lost.exit_status is not None else "exit unknown"
                one.exits[lost.rank] = RankExit(
                    rank=lost.rank, pid=known.pid, status=lost.exit_status, source=source
                )
                one.note_failure(lost.exit_status)
                self._keep(one.job.id, one.known_exits())

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
        if len(one.exits) <= MAX_LISTED:
            self._listener.exited(one.run, gone.at, words)
        one.note_failure(gone.status)
        self._keep(one.job.id, one.known_exits())

    def _more(self, one: WatchedAttempt, gone: ProcessExit | None) -> bool:
        """Whether another attempt of the same launch is open, or can still be started."""
        launcher = one.job.launcher_pid
        if launcher is None:
            return False
        if gone is None:
            return one.job.launcher in ELASTIC
        return any(o.job.launcher_pid == launcher for o in self._jobs.values() if o is not one)

    def _hand_over(self, job: Job, work: Work) -> bool:
        return self._order(OwnedWork(work, owner_of(job)))

    def _collect(self, attempt: AttemptExit) -> AttemptExit:
        return self._evidence.collect(attempt)

    def _forget(self, one: WatchedAttempt) -> None:
        self._jobs.pop(one.job.id, None)
        self._ranks = {key: mine for key, mine in self._ranks.items() if mine[0] != one.job.id}
        self._hand_over(one.job, lambda: self._evidence.forget(one.job.id))
        self._listener.done(one.run)
        self._forget_launchers()

    def _forget_launchers(self) -> None:
        """Those that are gone, once all their attempts are judged."""
        needed = {one.job.launcher_pid for one in self._jobs.values()}
        for pid in [pid for pid, gone in self._launchers.items() if gone and pid not in needed]:
            del self._launchers[pid]
            self._listener.launcher_ended(pid)


def _counts(run: Run) -> bool:
    """Whether an exit of this run makes an incident: not of a lone process that is no training."""
    return run.last_look is not None and not no_training(run.last_look)
