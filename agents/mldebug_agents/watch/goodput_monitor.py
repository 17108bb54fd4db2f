"""Accounts for the GPU time of all runs at each look, and keeps the accounts of jobs over restarts of the agent.

Belongs to the main loop's thread.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext

import msgspec

from mldebug.core.model import Job, RankIdentity
from mldebug.core.report_model import GoodputView
from mldebug.diagnosis.exits.model import words_of_status
from mldebug.goodput.account.gpu_time import AccountLook, ExitOutcomeName
from mldebug.goodput.account.job_account import (
    JobAccount,
    JobAccounts,
    JobIdentity,
    JobKey,
    command_of,
)
from mldebug.goodput.account.job_goodput import JobGoodput, job_goodput
from mldebug.goodput.account.run_summary import goodput_view
from mldebug.goodput.account.segments import GpuUse
from mldebug.goodput.sentences import rank_words
from mldebug.status.snapshot import Snapshot
from mldebug.storage.checkpoints.model import Completeness
from mldebug.storage.checkpoints.state import SeriesState
from mldebug_agents.state.key_value_store import KeyValueStore, hashed_name
from mldebug_agents.system.service.clock import JUMP
from mldebug_agents.watch.job_watch import JobLook
from mldebug_agents.watch.runs import Run

log = logging.getLogger("mldebug")

MEMO = "goodput:"
STORE_EVERY = 10.0  # seconds
PHASES = {
    "evaluate": GpuUse.EVALUATION,
    "checkpoint_save": GpuUse.CHECKPOINT,
    "data_preparation": GpuUse.DATA_PREPARATION,
}
"""What a phase of the hook counts as; the others are part of the step or of the start-up."""

DATA_WAIT = "data_wait"
LEFT_WELL = words_of_status(0)

Exits = Callable[[str], Mapping[int, str]]
Catching = Callable[[Job], AbstractContextManager[object]]
AttemptStage = tuple[
    str, int, int | None, int, bool
]  # run, attempt, first step, 1 + log2 of the paces known, over


class GoodputMonitor:
    """Keeps the accounts of GPU time of this node's jobs. `wall`: unix time by the clock that also dates incidents;
    `steady`: monotonic seconds.
    """

    def __init__(
        self,
        store: KeyValueStore,
        wall: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.accounts = JobAccounts()
        self._store = store
        self._offset = wall() - steady()  # a clock that is set anew makes no time
        self._wall = wall
        self._steady = steady
        self._set_by = 0.0  # seconds by which the wall clock was set since then
        self._looked: dict[str, float] = {}  # run -> the look that was accounted for
        self._evaluations: dict[str, int] = {}
        self._series: dict[str, tuple[SeriesState, ...]] = {}
        self._shown: dict[JobKey, tuple[object, JobGoodput]] = {}
        self._outcomes: dict[str, ExitOutcomeName] = {}
        self._restored = False
        self._store_due = 0.0
        self._stored_stages: tuple[AttemptStage, ...] = ()

    def tick(self, runs: Mapping[str, Run], exits: Exits, catching: Catching = nullcontext) -> None:
        """Account for each run that was looked at since the last call. `exits`: how ranks of a run have exited, in words by rank.
        `catching`: a context for work on one job.
        """
        self._restore()
        if not self._restored:
            return  # whoever began anew would count a start twice
        set_by = self._wall() - self._steady() - self._offset
        if abs(set_by - self._set_by) > JUMP:
            self._set_by = set_by
        for id, run in runs.items():
            look = run.last_look
            if look is None or look.look.at == self._looked.get(id) or not run.job.ranks:
                continue
            self._looked[id] = look.look.at
            with catching(run.job):
                self.accounts.add(self._identity(run), self._account_look(run))
        self._look_for_ended(runs, exits)
        now, stages = self._steady(), self._stages()
        if now >= self._store_due or stages != self._stored_stages:
            self._store_due, self._stored_stages = now + STORE_EVERY, stages
            self._keep()

    def show(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with where the GPU hours of each job went."""
        self._series = {run.id: run.checkpoint_series for run in snapshot.runs}
        jobs = sorted(self.accounts.jobs.values(), key=lambda job: -job.at)
        shown = tuple(map(self._job, jobs))
        sentences = {run: job.sentence for job in shown for run in job.runs}
        return msgspec.structs.replace(
            snapshot,
            runs=tuple(
                msgspec.structs.replace(
                    run, gpu_seconds=self._settled(run.id), goodput=sentences.get(run.id, "")
                )
                for run in snapshot.runs
            ),
            goodput=shown,
        )

    def view(self, job: Job) -> GoodputView | None:
        """Where the GPU time of this attempt of a run went, and that of its whole job; None where it was not accounted for."""
        mine = {_process(rank) for rank in job.ranks}
        for account in self.accounts.jobs.values():
            known = next((one for one in account.open if mine & set(one.processes)), None)
            wanted = (known.run, known.attempt) if known is not None else (job.id, job.attempt)
            shown = self._job(account)
            found = [one for one in shown.newest if (one.run, one.attempt) == wanted]
            if found:
                return goodput_view(found[-1], shown)
        return None

    # --- inside ------------------------------------------------------------------------------------

    def _job(self, job: JobAccount) -> JobGoodput:
        state = job.at, len(job.open), sum(one.over for one in job.open)
        known = self._shown.get(job.key)
        if known is None or known[0] != state:
            known = self._shown[job.key] = state, job_goodput(job)
        return known[1]

    def _settled(self, run: str) -> dict[str, float]:
        """Of a run, zeros included: a counter exists from the beginning."""
        found = next((job.settled(run) for job in self.accounts.jobs.values() if run in job.commands), None)  # fmt: skip
        return {} if found is None else {use: round(found.get(use, 0.0), 3) for use in GpuUse}

    def _identity(self, run: Run) -> JobIdentity:
        who = identity(run)
        started = who.started_at and who.started_at - self._set_by  # 0: not known
        return msgspec.structs.replace(who, started_at=started)

    def _account_look(self, run: Run) -> AccountLook:
        look = run.last_look
        if look is None:
            raise ValueError("a run that was not looked at")
        states = look.beats
        waiting = sum(one.phase == DATA_WAIT for one in states.values())
        data = waiting / len(states) if states else _loading(run)
        loss = run.slowness.loss if run.slowness and run.slowness.ranks else 0.0
        checkpoints = self._series.get(run.job.id, ())
        since = _stalled_since(run)
        return AccountLook(
            at=self._offset + _read_at(look),
            gpus=len(run.job.ranks) + len(run.job.lost),
            started=look.look.started,
            step=look.step,
            records=(
                *look.earlier_steps,
                *(one.step for one in look.points if one.step is not None),
            ),
            finished=look.step is not None and look.step == look.total_steps,
            phase=self._phase(run),
            data=data,
            straggler=loss,
            slow=_slow(run),
            stalled_since=None if since is None else since - self._set_by,
            checkpoints=tuple(_times(checkpoints)),
            checkpoint_period=next((one.period for one in checkpoints if one.period), None),
            training=not run.unjudged,
        )

    def _phase(self, run: Run) -> GpuUse | None:
        """What a rank reports to do, or what the log or the checkpoints on disk show that the job does."""
        look = run.last_look
        if look is None:
            return None
        phases = {one.phase for one in look.beats.values()}
        found = next((use for phase, use in PHASES.items() if phase in phases), None)
        first = 0 if self._knows_pace(run.job.id) else look.evaluations
        before = self._evaluations.get(run.job.id, first)
        self._evaluations[run.job.id] = look.evaluations
        if found is None and look.evaluations > before:
            return GpuUse.EVALUATION
        if found is None and any(map(_is_written, self._series.get(run.job.id, ()))):
            return GpuUse.CHECKPOINT
        return found

    def _knows_pace(self, run: str) -> bool:
        """Whether an earlier agent has found how long the run's steps take: then what it evaluates at our first look can be told from them."""
        return any(one.run == run and one.paces for job in self.accounts.jobs.values() for one in job.open)  # fmt: skip

    def _look_for_ended(self, runs: Mapping[str, Run], exits: Exits) -> None:
        """Note the runs without a living rank, of which dead ones may be left; what is known of their ends is known while they go."""
        living = {id for id, run in runs.items() if run.job.ranks}
        for id, run in runs.items():
            self._outcomes[id] = _outcome(exits(id), run)
        for id in self._looked.keys() - living:
            words = exits(id)
            self._outcomes[id] = _outcome(words) if words else self._outcomes.get(id, "unknown")
            del self._looked[id]
            self._evaluations.pop(id, None)
        self.accounts.ended(living.__contains__, lambda id: self._outcomes.get(id, "unknown"))
        self._outcomes = {id: self._outcomes[id] for id in runs}

    def _stages(self) -> tuple[AttemptStage, ...]:
        """How far each attempt is: an agent that is killed could not tell afterwards when it began, made its first step, or ended, nor how long
        its steps take: the more of them are known, the surer that is.
        """
        attempts = (one for job in self.accounts.jobs.values() for one in job.open)
        return tuple(
            (one.run, one.attempt, one.first_step, len(one.paces).bit_length(), one.over)
            for one in attempts
        )

    def _keep(self) -> None:
        for key in self.accounts.tidy(self._offset + self._steady()):
            self._store.remember(hashed_name(MEMO, repr(key)), b"")
            self._shown.pop(key, None)
        for key, job in self.accounts.jobs.items():
            self._store.remember(hashed_name(MEMO, repr(key)), msgspec.json.encode(job))

    def _restore(self) -> None:
        if self._restored or not self._store.opened:
            return
        self._restored = True
        found = []
        for name in self._store.memos(MEMO):
            try:
                found.append(msgspec.json.decode(self._store.memo(name), type=JobAccount))
            except msgspec.MsgspecError:
                log.warning("what was stored of a job's GPU time cannot be read, and is forgotten")
                self._store.remember(name, b"")
        self.accounts.restore(found)


def identity(run: Run) -> JobIdentity:
    """Which job a run belongs to: the one with its name, user and script."""
    job = run.job
    first = next(iter(job.ranks), None)
    return JobIdentity(
        run=job.id,
        attempt=job.attempt,
        name=job.name,
        user=job.user,
        uid=job.uid,
        script=first.script if first else "",
        processes=tuple(map(_process, job.ranks)),
        command=command_of(first.argv if first else ()),
        started_at=min((rank.started_at for rank in job.ranks), default=job.started_at),
    )


def _process(rank: RankIdentity) -> str:
    return f"{rank.pid}/{rank.start_ticks}"


def _slow(run: Run) -> tuple[tuple[int, str], ...]:
    found = run.slowness
    return tuple((one.rank, rank_words(one)) for one in found.ranks) if found else ()


def _read_at(look: JobLook) -> float:
    """When the step was read. A look begins before it has read the log: steps made up to then would be dated too early, at each look by
    as much as that one was busy.
    """
    return look.look.at if look.step_read_at is None else look.step_read_at


def _outcome(words: Mapping[int, str], run: Run | None = None) -> ExitOutcomeName:
    """How a run ends, by the exits of its ranks as far as they are known, and by its open incident."""
    if any(one != LEFT_WELL for one in words.values()):
        return "failed"
    if run is not None and run.incident is not None and run.incident.kind != "slowdown":
        return "failed"
    return "well" if words else "unknown"


def _loading(run: Run) -> float:
    """The share of all ranks' time that waits for data, by the last samples of their stacks."""
    shares = run.slowness.shares if run.slowness else ()
    return sum(one.loading for one in shares) / len(shares) if shares else 0.0


def _stalled_since(run: Run) -> float | None:
    incident = run.incident
    if incident is None or incident.kind == "slowdown":
        return None
    if incident.kind == "abnormal_end":  # it may go on into the next attempt
        return incident.detected_at if run.job.lost else None
    since = incident.stalled_since
    return incident.detected_at if since is None else since


def _is_written(series: SeriesState) -> bool:
    return series.newest is not None and series.newest.state is Completeness.WRITING


def _times(series: tuple[SeriesState, ...]) -> Iterator[tuple[float, float]]:
    """When each complete checkpoint was begun and complete."""
    for one in series:
        for checkpoint in one.listed:
            if checkpoint.state is Completeness.COMPLETE:
                began = checkpoint.began
                yield (checkpoint.ended if began is None else began), checkpoint.ended
