"""IncidentManager of abnormal ends: attempts of one launch that fail the same way are one story, told with a growing timeline.

Belongs to the main loop's thread.
"""

import time
from collections.abc import Callable

import msgspec

from mldebug.core.model import Job
from mldebug.diagnosis.exits.judge import judge_exit
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.diagnosis.exits.outcome import ExitOutcome
from mldebug.incidents.incident import Incident
from mldebug.incidents.report.build import State
from mldebug.stall.rules import StallSettings
from mldebug.stall.watch import StallWatch
from mldebug_agents.incidents.exits.exit_tracker import ELASTIC
from mldebug_agents.incidents.manager import IncidentManager
from mldebug_agents.state.run_row import RunRow
from mldebug_agents.watch.runs import Run

PROVED = 60.0  # seconds after which an attempt that tells no steps counts as going on
MAX_STORIES = 256  # of launches that still live


class FailedAttempt(msgspec.Struct, kw_only=True):
    """One launch that has lost an attempt."""

    run: Run  # of the attempt that failed last
    incident: Incident
    signs: tuple[str, ...]
    lives: bool = False  # some rank of that attempt
    closed: bool = False  # written as recovered or ended


class FailedAttempts:
    """Makes incidents of failed attempts. `capture` asks for a capture of ranks that live on."""

    def __init__(
        self,
        incidents: IncidentManager,
        capture: Callable[[Run], None],
        forget: Callable[[str], None],
    ) -> None:
        self._incidents = incidents
        self._capture = capture
        self._forget = forget
        self._stories: dict[str, FailedAttempt] = {}
        self._explained: set[str] = set()  # jobs whose stall is the story of their end
        self._came: dict[str, tuple[float, int | None]] = {}  # job -> when, and at which step

    def recall(self, job_id: str, row: RunRow) -> bool:
        """Go on with the story of a launch that lives on although its attempt has gone; an earlier agent began it."""
        told = row.incident
        if told is None or told.exit is None or told.kind != "abnormal_end":
            return False
        job = msgspec.structs.replace(told.exit.job, id=job_id)
        story = FailedAttempt(
            run=Run(job, StallWatch(StallSettings(), row.memory)),
            incident=told,
            signs=judge_exit(told.exit).signs,
            closed=told.state != "open",
        )
        known = self._stories.setdefault(_launch(job), story)
        if known is story:
            self._incidents.shelve(story.run, told)
        else:  # the state dir came back late, and the launch has failed anew
            self._end(story, f"told on as incident {known.incident.id}")
        return True

    def write_again(self) -> None:
        """All reports of stories that are not over: the state dir was lost."""
        for story in self._stories.values():
            if not story.closed and story.run.incident is None:
                self._incidents.write_again(story.incident)

    def explained(self, run: Run) -> None:
        """The job ends in the middle of a stall: that incident tells it all."""
        self._explained.add(run.job.id)

    # --- what `ExitTracker` reports ----------------------------------------------------------------------

    def exited(self, run: Run, at: float, words: str) -> None:
        """An open incident lists who ended."""
        self._incidents.note(run, at, words)

    def failed(self, run: Run, attempt: AttemptExit, outcome: ExitOutcome, *, final: bool) -> None:
        """Open an incident, or go on with the one that is open."""
        if run.job.id in self._explained or (run.incident and run.incident.kind == "stall"):
            return
        key = self._key(run.job)
        story = self._stories.get(key)
        same = story is not None and bool(set(story.signs) & set(outcome.signs))
        before = story.incident if story is not None and (same or story.run is run) else None
        # one that loses rank after rank, perhaps since before our restart
        before = run.incident or before
        if story is not None and before is None:
            self._end(story, "the next attempt failed in another way")
        self._incidents.failed(run, attempt, outcome, before)
        if run.incident is None:
            return
        if story is not None and story.run.job.id != run.job.id:
            self._forget(story.run.job.id)  # or a later agent would find the incident twice
        signs = outcome.signs or (story.signs if story else ())
        lives = bool(attempt.living)
        self._stories[key] = FailedAttempt(run=run, incident=run.incident, signs=signs, lives=lives)
        if attempt.living and not run.incident.captures:
            self._capture(run)
        if final:
            self._close(self._stories[key], "ended", "incident closed: the job is over")

    def goes_on(self, run: Run) -> None:
        """A later attempt that steps, or lives for long, ends the story well."""
        story = self._stories.get(self._key(run.job))
        if story is None or story.run is run or story.closed:
            return
        step = run.seen.step if run.seen else None
        since, first = self._came.setdefault(run.job.id, (time.monotonic(), step))
        stepped = step is not None and first is not None and step > first
        if stepped or time.monotonic() - since >= PROVED:
            self._close(story, "recovered", f"attempt {run.job.attempt} goes on")
            self._incidents.shelve(story.run, story.incident)

    def launcher_ended(self, pid: int) -> None:
        """Nobody starts another attempt."""
        for key, story in list(self._stories.items()):
            if story.run.job.launcher_pid == pid:
                self._end(self._stories.pop(key), "the launcher has ended")

    def done(self, run: Run) -> None:
        """Forget what was kept for a job that is over."""
        self._explained.discard(run.job.id)
        self._came.pop(run.job.id, None)
        key = self._key(run.job)
        story = self._stories.get(key)
        mine = story is not None and story.run is run
        if story is None or not mine or story.closed:
            self._forget(run.job.id)
        if story is not None and mine:
            story.lives = False
        if story is not None and story.closed and key == run.job.id:
            del self._stories[key]  # nobody starts another attempt
        for key in list(self._stories)[:-MAX_STORIES]:
            self._end(self._stories.pop(key), "not followed any longer")

    def _key(self, job: Job) -> str:
        """The launch; the job alone where another job of that launch still lives: they are two jobs of one script."""
        launch = _launch(job)
        story = self._stories.get(launch)
        beside = story is not None and story.lives and not _same_or_next(story.run.job, job)
        return job.id if beside or job.id in self._stories else launch

    def _end(self, story: FailedAttempt, why: str) -> None:
        self._close(story, "ended", why)
        self._forget(story.run.job.id)

    def _close(self, story: FailedAttempt, state: State, why: str) -> None:
        """Write how it ended. The story stays known: the next attempt may fail in the same way."""
        if not story.closed:
            story.closed = True
            story.incident = self._incidents.close_story(story.run, story.incident, state, why)


def _same_or_next(before: Job, job: Job) -> bool:
    """An elastic launcher has no two attempts at a time: where one seems to live still, we have not seen its end yet."""
    return before.id == job.id or (job.launcher in ELASTIC and before.attempt != job.attempt)


def _launch(job: Job) -> str:
    """What all attempts of one launch have in common. A launcher has one; a script may start many, side by side."""
    if job.launcher_pid is None:
        return job.id
    first = next(iter(job.ranks), None)
    launch = f"{job.launcher}/{first.run_id if first else ''}/{job.launcher_pid}/{job.uid}"
    if first is None or job.launcher in ELASTIC:
        return launch
    return f"{launch}/{first.master}/{first.script}"
