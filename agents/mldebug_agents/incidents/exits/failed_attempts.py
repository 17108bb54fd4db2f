"""Incidents of failed attempts. Attempts of one launch that fail in the same way share one
incident, whose timeline grows.

So do the tasks of one job array, although each is a launch of its own: what was submitted once is
reported once. Used by the main loop's thread only.
"""

import time
from collections.abc import Callable, Hashable

import msgspec

from mldebug.core.model import Job
from mldebug.core.report_model import IncidentState
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.diagnosis.exits.outcome import ExitOutcome
from mldebug.incidents.incident import Incident
from mldebug.stall.decision import StallWatch
from mldebug.stall.rules import StallSettings
from mldebug_agents.incidents.exits.array_failures import ArrayFailure, ArrayFailures
from mldebug_agents.incidents.exits.exit_tracker import ELASTIC
from mldebug_agents.incidents.exits.similar_runs import LATELY, SimilarRuns, sign_of
from mldebug_agents.incidents.manager import IncidentManager
from mldebug_agents.state.key_value_store import KeyValueStore
from mldebug_agents.state.run_row import RunRow
from mldebug_agents.watch.runs import Run

PROVED = 60.0  # seconds after which an attempt that tells no steps counts as going on
MAX_LAUNCHES = 256  # of launches that still live
MAX_ARRAYS = 256  # job arrays whose last failure is remembered


class FailedAttempt(msgspec.Struct, kw_only=True):
    """The last failed attempt (start) of a launch, and the incident that it shares with earlier
    attempts that failed with the same error but for numbers in its text (`sign`).
    """

    run: Run  # of the attempt that failed last
    incident: Incident
    signs: tuple[str, ...]
    sign: str = ""  # of `sign_of`
    lives: bool = False  # some rank of that attempt
    closed: bool = False  # written as recovered or ended
    failed_at: float = 0.0  # monotonic


class FailedAttempts:
    """Opens, continues and closes incidents of failed attempts.

    `capture`: orders a capture of the ranks that still live; `forget`: deletes what is stored of a
    job, by id; `memory`: small values that survive a restart.
    """

    def __init__(
        self,
        incidents: IncidentManager,
        capture: Callable[[Run], None],
        forget: Callable[[str], None],
        memory: KeyValueStore,
    ) -> None:
        self._incidents = incidents
        self._capture = capture
        self._forget = forget
        self._by_launch: dict[str, FailedAttempt] = {}
        self._by_array: dict[Hashable, FailedAttempt] = {}
        self._arrays = ArrayFailures(memory)
        self._similar = SimilarRuns()
        self._explained: set[str] = set()  # jobs whose exit belongs to the incident of their stall
        self._came: dict[str, tuple[float, int | None]] = {}  # job -> when, and at which step

    def recall(self, job_id: str, row: RunRow) -> bool:
        """Take over the failure incident that an earlier agent stored for a launch that still lives.

        False where the row holds none.
        """
        incident = row.incident
        if incident is None or incident.exit is None or incident.kind != "abnormal_end":
            return False
        job = msgspec.structs.replace(incident.exit.job, id=job_id)
        failure = FailedAttempt(
            run=Run(job, StallWatch(StallSettings(), row.memory)),
            incident=incident,
            signs=judge_exit(incident.exit).signs,
            closed=incident.state != "open",
        )
        held = self._by_launch.setdefault(_launch(job), failure)
        if held is failure:
            self._incidents.store_open(failure.run, incident)
        else:  # the state dir came back late, and the launch has failed anew
            self._end(failure, f"told on as incident {held.incident.id}")
        return True

    def write_again(self) -> None:
        """Write the reports of open failure incidents again, after the state dir was lost.

        Those of living runs are written by their owner.
        """
        for failure in self._by_launch.values():
            if not failure.closed and failure.run.incident is None:
                self._incidents.write_again(failure.incident)

    def explained(self, run: Run) -> None:
        """Note that this job ended during a stall, whose incident explains the exits: no incident is opened for them."""
        self._explained.add(run.job.id)

    # --- what `ExitTracker` reports -------------------------------------------------------------------

    def exited(self, run: Run, at: float, words: str) -> None:
        """Add to the timeline of the run's open incident that ranks exited.

        `at`: unix time; `words`: which ranks, and how.
        """
        self._incidents.note(run, at, words)

    def failed(self, run: Run, attempt: AttemptExit, outcome: ExitOutcome, *, final: bool) -> None:
        """Open an incident for a failed attempt, or continue that of an earlier attempt of the
        launch, or task of the array, that failed alike.

        Nothing happens where a stall explains it. `final`: no further attempt will come, so the
        incident is closed.
        """
        if run.job.id in self._explained or (run.incident and run.incident.kind == "stall"):
            return
        key = self._key(run.job)
        failure = self._by_launch.get(key)
        same = failure is not None and _alike(failure, run.job, outcome)
        before = failure.incident if failure is not None and (same or failure.run is run) else None
        # one that loses rank after rank, perhaps since before our restart
        before = run.incident or before
        if failure is not None and before is None:
            self._end(failure, "the next attempt failed in another way")
        sign, now = sign_of(attempt, outcome), time.monotonic()
        before = before or self._of_array(run.job, sign, now)
        self._similar.note(run.job, _launch(run.job), now, sign)
        alike = self._similar.alike(run.job, sign, now)
        self._incidents.failed(run, attempt, outcome, before, alike)
        if run.incident is None:
            return
        if failure is not None and failure.run.job.id != run.job.id:
            self._forget(failure.run.job.id)  # or a later agent would find the incident twice
        signs = outcome.signs or (failure.signs if failure else ())
        lives = bool(attempt.living)
        failure = FailedAttempt(
            run=run, incident=run.incident, signs=signs, sign=sign, lives=lives, failed_at=now
        )
        self._by_launch[key] = failure
        self._remember(failure)
        if attempt.living and not run.incident.captures:
            self._capture(run)
        if final:
            self._close(failure, "ended", "incident closed: the job is over")

    def goes_on(self, run: Run) -> None:
        """Called at each look at a living run: close the launch's incident as recovered once a
        later attempt makes steps or has lived for `PROVED` seconds.
        """
        self._similar.note(run.job, _launch(run.job), time.monotonic())
        failure = self._by_launch.get(self._key(run.job))
        if failure is None or failure.run is run or failure.closed:
            return
        step = run.last_look.step if run.last_look else None
        since, first = self._came.setdefault(run.job.id, (time.monotonic(), step))
        stepped = step is not None and first is not None and step > first
        if stepped or time.monotonic() - since >= PROVED:
            self._close(failure, "recovered", f"attempt {run.job.attempt} goes on")
            self._incidents.store_open(failure.run, failure.incident)

    def launcher_ended(self, pid: int) -> None:
        """End the open incidents of the launcher with this pid, because no further attempt can come."""
        for key, failure in list(self._by_launch.items()):
            if failure.run.job.launcher_pid == pid:
                self._end(self._by_launch.pop(key), "the launcher has ended")

    def done(self, run: Run) -> None:
        """Called when a job is over: forget what is no longer needed.

        An open incident is kept as long as another attempt may follow.
        """
        self._explained.discard(run.job.id)
        self._came.pop(run.job.id, None)
        key = self._key(run.job)
        failure = self._by_launch.get(key)
        mine = failure is not None and failure.run is run
        if failure is None or not mine or failure.closed:
            self._forget(run.job.id)
        if failure is not None and mine:
            failure.lives = False
            self._remember(failure)
        if failure is not None and failure.closed and key == run.job.id:
            del self._by_launch[key]  # nobody starts another attempt
        for key in list(self._by_launch)[:-MAX_LAUNCHES]:
            self._end(self._by_launch.pop(key), "not followed any longer")

    def _remember(self, failure: FailedAttempt) -> None:
        array = _array(failure.run.job)
        if array is None:
            return
        self._by_array.pop(array, None)
        self._by_array[array] = failure
        if not failure.lives:
            incident = failure.run.incident or failure.incident
            runs = self._similar.of(failure.run.job, time.monotonic())
            self._arrays.remember(array, ArrayFailure(failure.sign, time.time(), incident, runs))
        for oldest in list(self._by_array)[:-MAX_ARRAYS]:
            del self._by_array[oldest]

    def _of_array(self, job: Job, sign: str, now: float) -> Incident | None:
        """The incident of an earlier task of the same job array that failed with this sign, to be continued.

        None where there is none, where ranks of that task still live, or where it failed more than `LATELY` ago.
        """
        array = _array(job)
        failure = self._by_array.get(array)
        if failure is None and array is not None:
            return self._of_earlier_agent(job, sign, now)
        if failure is None or failure.lives or failure.run.job.id == job.id:
            return None
        if now - failure.failed_at > LATELY or failure.sign != sign:
            return None
        for key in [key for key, one in self._by_launch.items() if one is failure]:
            del self._by_launch[key]
        incident = failure.run.incident or failure.incident
        if failure.run.incident is not None:
            failure.run.forget_incident()  # it has one writer
        self._forget(failure.run.job.id)
        return incident

    def _of_earlier_agent(self, job: Job, sign: str, now: float) -> Incident | None:
        """As `_of_array`, of what was stored before this agent started."""
        stored = self._arrays.recent(_array(job), sign, time.time())
        if stored is None:
            return None
        incident = stored.incident
        since = max(0.0, time.time() - stored.failed_at)
        self._similar.add_earlier(job, stored.runs, now - since)
        for key, one in list(self._by_launch.items()):
            if one.incident.id == incident.id:  # its launcher lives: it has one writer
                del self._by_launch[key]
                self._forget(one.run.job.id)
        return incident

    def _key(self, job: Job) -> str:
        """The launch; the job alone where another job of that launch still lives: they are two jobs of one script."""
        launch = _launch(job)
        failure = self._by_launch.get(launch)
        beside = failure is not None and failure.lives and not _same_or_next(failure.run.job, job)
        return job.id if beside or job.id in self._by_launch else launch

    def _end(self, failure: FailedAttempt, why: str) -> None:
        self._close(failure, "ended", why)
        self._forget(failure.run.job.id)

    def _close(self, failure: FailedAttempt, state: IncidentState, why: str) -> None:
        """Close the incident with its report. The failure is still remembered: the next attempt may fail in the same way."""
        if not failure.closed:
            failure.closed = True
            failure.incident = self._incidents.close_failed(
                failure.run, failure.incident, state, why
            )
            if self._by_array.get(_array(failure.run.job)) is failure:
                self._remember(failure)


def _alike(failure: FailedAttempt, job: Job, outcome: ExitOutcome) -> bool:
    """Whether this attempt failed as the one before; also where nobody saw how, as an elastic launcher starts the same again."""
    if not outcome.signs or not failure.signs:
        return job.launcher in ELASTIC
    return bool(set(failure.signs) & set(outcome.signs))


def _same_or_next(before: Job, job: Job) -> bool:
    """An elastic launcher has no two attempts at a time: where one still seems to live, its exit is only not known yet."""
    return before.id == job.id or (job.launcher in ELASTIC and before.attempt != job.attempt)


def _array(job: Job) -> Hashable:
    """What all tasks of a job array have in common, which nobody else can claim; None for a job that is of none."""
    first = next(iter(job.ranks), None)
    if first is None or not first.array:
        return None
    return first.array, job.uid, first.owner, first.container, first.script


def _launch(job: Job) -> str:
    """What all attempts of one launch have in common. A launcher has one; a script may start many, side by side."""
    if job.launcher_pid is None:
        return job.id
    first = next(iter(job.ranks), None)
    launch = f"{job.launcher}/{first.run_id if first else ''}/{job.launcher_pid}/{job.uid}"
    if first is None or job.launcher in ELASTIC:
        return launch
    return f"{launch}/{first.master}/{first.script}"
