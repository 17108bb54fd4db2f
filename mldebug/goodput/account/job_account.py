"""The GPU time of whole jobs: all attempts and runs of one script by one user under one name, array tasks included. Pure."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from mldebug.goodput.account.gpu_time import AccountLook, AttemptAccount, ExitOutcomeName
from mldebug.goodput.account.segments import UseHistory, add_all

RESTART = 3600.0  # seconds after the end of a run within which the same command is its restart
LATE = 120.0  # seconds for which a run may have lived before the agent came and be counted from its start
MAX_ATTEMPTS = 32  # of a job that are kept one by one
MAX_JOBS = 32  # of a node; those that live are kept however many they are
KEPT = 30 * 86_400.0  # seconds for which a job that is over is kept
_OTHER = (
    "resume",
    "load",
    "ckpt",
    "checkpoint",
    "init",
    "restore",
)  # words of options of a restart

JobKey = tuple[int, str, str]  # uid, name, script


class JobIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Which job an attempt belongs to. `command`: its arguments without those that differ when it is resumed."""

    run: str
    attempt: int
    name: str
    user: str
    uid: int
    script: str
    command: str
    processes: tuple[str, ...] = ()  # pid and start of its ranks
    started_at: float  # unix

    @property
    def key(self) -> JobKey:
        """What all runs of one job share: user id, name and script."""
        return self.uid, self.name, self.script


class AttemptTotal(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt that is over and whose seconds are certain."""

    run: str
    attempt: int
    began: float
    ended: float
    seconds: dict[str, float]
    again: int = 0  # steps that were done again
    outcome: ExitOutcomeName = "unknown"
    slow: dict[int, str] = {}  # ranks that were waited for, with a phrase to follow "rank 3 "


class JobAccount(msgspec.Struct, kw_only=True):
    """Where the time of one job on this node went, in seconds by kind of use. Stored in the state dir field by field: a renamed field would lose
    what is stored.
    """

    name: str
    user: str
    uid: int
    script: str
    began: float
    at: float
    restarts: int = 0
    checkpoints: int = 0  # complete ones that came while it was watched
    checkpoint_at: float = 0.0  # when the last one was complete
    checkpoint_period: float | None = None  # seconds between two of them
    count: int = 0  # attempts so far
    open: list[AttemptAccount] = []  # with processes, or without since a short time
    commands: dict[str, str] = {}  # run -> its command, of these
    over: list[AttemptTotal] = []
    earlier: dict[str, float] = {}  # of attempts that are not kept one by one
    earlier_again: int = 0  # steps that these did again
    history: UseHistory = msgspec.field(default_factory=UseHistory)

    @property
    def key(self) -> JobKey:
        """What all runs of the job share: user id, name and script."""
        return self.uid, self.name, self.script

    @property
    def seconds(self) -> dict[str, float]:
        """GPU seconds by use, of all attempts together."""
        return add_all(
            [
                self.earlier,
                *(one.seconds for one in self.over),
                *(one.seconds for one in self.open),
            ]
        )

    @property
    def steps_again(self) -> int:
        """Steps that attempts did again after restarts, of all attempts together."""
        over, living = (one.again for one in self.over), (one.again for one in self.open)
        return self.earlier_again + sum(over) + sum(living)

    def settled(self, run: str) -> dict[str, float]:
        """GPU seconds of one run by use that are certain; none of these sums ever falls."""
        done = [one.seconds for one in self.over if one.run == run]
        return add_all([*done, *(one.settled for one in self.open if one.run == run)])

    def attempt(self, run: str, number: int) -> AttemptAccount | None:
        """The account of this attempt, as long as it may change."""
        return next((one for one in self.open if (one.run, one.attempt) == (run, number)), None)

    def account_of(self, who: JobIdentity) -> AttemptAccount | None:
        """The account of this attempt, also where its processes were known under another id."""
        known = self.attempt(who.run, who.attempt)
        if known is None:
            mine = set(who.processes)
            known = next((one for one in self.open if mine & set(one.processes)), None)
            if known is not None:
                self.commands[who.run] = who.command
        return known

    def begin(self, who: JobIdentity, look: AccountLook) -> AttemptAccount:
        """Open the account of a new attempt. It continues an earlier attempt of the same run, or a run that failed
        recently. Where it may continue a run that ended in another way, its first step will show whether it does (see
        `decide`).
        """
        late = look.at - who.started_at > LATE or not who.started_at
        began = look.at if late else who.started_at
        one = AttemptAccount(
            run=who.run, attempt=who.attempt, began=began, at=began, gpus=look.gpus
        )
        before = self._continued(who)
        if before is not None and (before.run == who.run or before.failed):
            self._join(before, one, who.started_at or look.at)
        elif before is not None:
            one.await_step(before)
        self.open.append(one)
        self.commands[who.run] = who.command
        self.count += 1
        return one

    def decide(self, one: AttemptAccount, look: AccountLook) -> None:
        """At the first step of an attempt, decide whether it resumes the run before it: it does if its first step is later
        than the first step of that run. Does nothing for an attempt for which that is known.
        """
        if one.after is None or not look.started or look.step is None:
            return
        before = self.attempt(*one.after)
        one.await_step(None)
        if before is None or not before.over:
            return
        if before.first_step is not None and look.step > before.first_step:
            self._join(before, one, one.began)
        else:
            self._close(before, restarted=False)

    def _continued(self, who: JobIdentity) -> AttemptAccount | None:
        """The last attempt of the same run, or of a run of the same command that has ended lately and was not done."""
        ended = [one for one in self.open if one.run == who.run and one.attempt < who.attempt]
        ended += [one for one in self.open if one.run != who.run and self._may_go_on(one, who)]
        return max(ended, key=lambda one: one.at, default=None)

    def _may_go_on(self, one: AttemptAccount, who: JobIdentity) -> bool:
        taken = any(other.after == (one.run, one.attempt) for other in self.open)
        alike = self.commands.get(one.run) == who.command
        return one.over and not one.finished and alike and not taken

    def _join(self, before: AttemptAccount, after: AttemptAccount, started: float) -> None:
        """Make an attempt the next one after another. The gap between them belongs to it."""
        self.restarts += 1
        gap = min(max(0.0, started - before.at), RESTART)
        after.resume(before, started)
        if gap:
            after.add_gap(before.at, before.at + gap, before.gpus, self.history)
        self._close(before, restarted=True)

    def note_checkpoints(self, look: AccountLook) -> None:
        """Count the checkpoints in this reading that were completed since the last call, and since the job was first seen."""
        new = [
            ended for _, ended in look.checkpoints if ended > max(self.began, self.checkpoint_at)
        ]
        if new:
            self.checkpoints += len(new)
            self.checkpoint_at = max(new)
        self.checkpoint_period = look.checkpoint_period or self.checkpoint_period

    def close_old(self, now: float) -> None:
        """Close the attempts that ended so long ago that no other attempt continues them. `now`: unix time."""
        for one in [one for one in self.open if one.over and now - one.at > RESTART]:
            self._close(one, restarted=False)

    def _close(self, one: AttemptAccount, *, restarted: bool) -> None:
        one.give_up(self.history, restarted=restarted)
        self.open.remove(one)
        present = {other.run for other in self.open}
        self.commands = {run: command for run, command in self.commands.items() if run in present}
        self.over.append(
            AttemptTotal(
                run=one.run,
                attempt=one.attempt,
                began=one.began,
                ended=one.at,
                seconds=one.settled,
                again=one.again,
                outcome=one.outcome,
                slow=one.slow,
            )
        )
        if len(self.over) > MAX_ATTEMPTS:
            self._make_room()

    def _make_room(self) -> None:
        """Put the oldest attempt into the next one of its run, so that what is certain of a run never falls; else into
        `earlier`.
        """
        oldest = self.over.pop(0)
        for place, one in enumerate(self.over):
            if one.run == oldest.run:
                both = add_all([oldest.seconds, one.seconds])
                again = oldest.again + one.again
                self.over[place] = msgspec.structs.replace(one, began=oldest.began, seconds=both, again=again)  # fmt: skip
                return
        self.earlier = add_all([self.earlier, oldest.seconds])
        self.earlier_again += oldest.again


class JobAccounts:
    """The accounts of GPU time of all jobs of a node: of the living ones, and of the last ones that ended."""

    def __init__(self) -> None:
        self.jobs: dict[JobKey, JobAccount] = {}

    def restore(self, stored: Iterable[JobAccount]) -> None:
        """Add the accounts that an earlier agent stored. Accounts that this agent has already are kept."""
        for one in stored:
            self.jobs.setdefault(one.key, one)

    def add(self, who: JobIdentity, look: AccountLook) -> None:
        """Account for the time up to one reading of an attempt. `who`: the job and the attempt; an account is opened where
        there is none.
        """
        job = self.jobs.get(who.key)
        if job is None:
            job = self.jobs[who.key] = JobAccount(
                name=who.name, user=who.user, uid=who.uid, script=who.script, began=look.at, at=look.at
            )  # fmt: skip
        one = job.account_of(who) or job.begin(who, look)
        one.name(who.run, who.attempt, who.processes)
        job.decide(one, look)
        job.began = min(job.began, one.began)
        one.add(look, job.history)
        job.note_checkpoints(look)
        job.at = max(job.at, one.at)

    def ended(
        self, present: Callable[[str], bool], outcome: Callable[[str], ExitOutcomeName]
    ) -> None:
        """Note which runs have no process any more. `present`: whether the run with an id still has processes; `outcome`:
        how the run with an id ended.
        """
        for one in (one for job in self.jobs.values() for one in job.open):
            if not one.over and not present(one.run):
                one.end(outcome(one.run))

    def tidy(self, now: float) -> tuple[JobKey, ...]:
        """Close attempts that ended long ago, and forget jobs that ended very long ago or are too many. Returns the keys of
        the jobs that were forgotten. `now`: unix time.
        """
        for job in self.jobs.values():
            job.close_old(now)
        idle = [job for job in self.jobs.values() if all(one.over for one in job.open)]
        idle.sort(key=lambda job: job.at)
        gone = [job.key for job in idle if not job.open and now - job.at > KEPT]
        gone += self._too_many([job.key for job in idle if job.key not in gone], len(gone))
        for key in gone:
            del self.jobs[key]
        return tuple(gone)

    def _too_many(self, idle: Sequence[JobKey], gone: int) -> list[JobKey]:
        """The jobs without a process that are too many, the oldest first, taken from the users who have most of them."""
        queues: dict[int, deque[JobKey]] = {}
        for key in idle:
            queues.setdefault(key[0], deque()).append(key)
        excess = len(self.jobs) - gone - MAX_JOBS
        return [max(queues.values(), key=len).popleft() for _ in range(min(len(idle), excess))]


def command_of(argv: Sequence[str]) -> str:
    """A command's arguments as one text, without options that name what is resumed, and their values."""
    kept: list[str] = []
    skipped = False
    for word in argv:
        is_option = word.startswith("-")
        if skipped and not is_option:
            skipped = False
            continue
        skipped = is_option and any(part in word.lower() for part in _OTHER)
        if not skipped:
            kept.append(word)
        skipped = skipped and "=" not in word
    return " ".join(kept)[:2000]
