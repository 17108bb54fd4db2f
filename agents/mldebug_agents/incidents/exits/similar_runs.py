"""Runs of one script by one user: tasks of a job array, a loop that restarts it, trials of a sweep.
Counts how many of them failed alike.

Used by the main loop's thread only.
"""

import re
from collections.abc import Hashable, Iterable
from typing import NamedTuple

import msgspec

from mldebug.core.model import Job
from mldebug.diagnosis.exits.model import AttemptExit
from mldebug.diagnosis.exits.no_space.full_filesystem import lacked_space
from mldebug.diagnosis.exits.outcome import ExitOutcome

LATELY = 3600.0  # seconds for which a run counts since it was last seen
MAX_RUNS = 512
MAX_STORED = 128  # runs of one script that survive a restart
NO_SPACE = "no space left"
_VARIES = re.compile(r"0x[0-9a-f]+|\d+")


class AlikeRuns(NamedTuple):
    """How many runs of one script there were lately (`runs`), and how many of them failed in the same way (`failed`)."""

    failed: int = 0
    runs: int = 0


class EarlierRun(msgspec.Struct, frozen=True, array_like=True):
    """A run of a script in the form that survives a restart: its launch, how many seconds ago it
    was last noted, and how it failed ("" if it did not).
    """

    launch: str
    seconds_ago: float
    sign: str = ""


class _RecentRun(NamedTuple):
    at: float
    sign: str  # how it failed; "" where it did not


class SimilarRuns:
    """The runs of the last hour, by their user and script. Times are seconds of any one clock."""

    def __init__(self) -> None:
        self._runs: dict[tuple[Hashable, str], _RecentRun] = {}

    def note(self, job: Job, launch: str, now: float, sign: str = "") -> None:
        """Note that a run lives (`sign` "") or how it failed.

        All attempts of one `launch` are one run, of which the last failure is kept. `now`: seconds of the one clock that
        all calls use.
        """
        key = (_script(job), launch)
        known = self._runs.pop(key, None)
        self._runs[key] = _RecentRun(now, sign or (known.sign if known else ""))
        if len(self._runs) > MAX_RUNS:
            self._runs = dict(list(self._runs.items())[-MAX_RUNS:])

    def alike(self, job: Job, sign: str, now: float) -> AlikeRuns:
        """How many runs of this job's script were noted lately, and how many of them failed with this sign. `now`: seconds
        of the one clock that all calls use.
        """
        mine = [
            run
            for (script, _), run in self._runs.items()
            if script == _script(job) and now - run.at <= LATELY
        ]
        return AlikeRuns(sum(run.sign == sign for run in mine), len(mine))

    def of(self, job: Job, now: float) -> tuple[EarlierRun, ...]:
        """The recent runs of this job's script, the newest last, at most `MAX_STORED`. `now`: seconds of the one clock that
        all calls use.
        """
        mine = [
            EarlierRun(launch, now - run.at, run.sign)
            for (script, launch), run in self._runs.items()
            if script == _script(job) and now - run.at <= LATELY
        ]
        return tuple(mine[-MAX_STORED:])

    def add_earlier(self, job: Job, runs: Iterable[EarlierRun], now: float) -> None:
        """Count runs of the job's script that an earlier agent noted, too.

        Their `seconds_ago` is counted back from `now`.
        """
        script = _script(job)
        for run in runs:
            known = _RecentRun(now - run.seconds_ago, run.sign)
            self._runs.setdefault((script, run.launch), known)


def sign_of(attempt: AttemptExit, outcome: ExitOutcome) -> str:
    """The way in which an attempt failed, as text without what differs from run to run (numbers, and so ranks).

    Equal texts mean that two failed alike. Those that found no space do, whichever file each of them was writing, and with whatever exception.
    """
    if lacked_space(outcome, attempt):
        return NO_SPACE
    finding = outcome.finding
    named = [one.rank for one in finding.culprits] if finding else []
    errors = [attempt.errors[rank] for rank in named if rank in attempt.errors]
    error = next(iter(errors), attempt.shared_error)
    if error is not None:
        return _VARIES.sub("0", error.error)[:200]
    return _VARIES.sub("0", " ".join((*outcome.signs[:1], str(finding.verdict if finding else ""))))


def _script(job: Job) -> Hashable:
    script = next((rank.script for rank in job.ranks if rank.script), "")
    return job.uid, script or job.name
