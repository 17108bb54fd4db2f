"""Judges incidents in the main loop within a limited CPU time, of which each owner of jobs has a share.

A job decides how large its stacks and Flight Recorders are; judging them must not keep the agent from another user's job.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from mldebug.core.model import Gap, Job, Judgement
from mldebug.incidents import judge as incident_judge
from mldebug.incidents.incident import Incident
from mldebug.jobs.owners import Owner, owner_of

SHARE = 3.0  # CPU seconds that the incidents of one owner may take at once
REFILL = SHARE / 60  # CPU seconds that come back in a second
PER_RANK = 1 / 2000  # more of them for each captured rank: a coordinator judges those of all nodes
MOST = 20.0  # CPU seconds; systemd ends an agent that is silent for 30
LEAST = 0.05  # for who has used up his share: enough for what ordinary jobs leave behind
AGAIN = 0.05  # seconds after which a work that goes on is stopped again
WHAT = "the judgement of the evidence"


class _OutOfTime(BaseException):
    """The CPU time of a judgement is used up. No `except Exception` on the way may catch it."""


class JudgingShares:
    """The CPU time that judging the incidents of each owner has taken lately. For one thread only.

    `clock`: monotonic seconds.
    """

    def __init__(
        self,
        work: Callable[[Incident], Judgement] = incident_judge.judge,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._work, self._clock = work, clock
        self._used: dict[Owner, tuple[float, float]] = {}  # when it was counted, CPU seconds

    def judge(self, incident: Incident, known: Judgement | None = None) -> Judgement:
        """The judgement of an incident; where its owner's time does not suffice, `known` (what was concluded from less evidence
        before) or else `unknown`, with that reason.
        """
        job = job_of(incident)
        who, before = owner_of(job), time.thread_time()
        captured = sum(len(one.ranks) for one in (*incident.captures, *incident.node_captures))
        limit = self._left(who, captured)
        try:
            with cpu_limit(limit):
                return self._work(incident)
        except _OutOfTime:
            way_out = (
                f"mldebug diagnose STATE_DIR/reports/{incident.id}  # takes what time it needs"
            )
            reason = f"it was given up after {limit:.2g} s of CPU time: each user has a share"
            gap = Gap(what=WHAT, reason=reason, way_out=way_out)
            return incident_judge.judge_unread(incident, gap, known)
        finally:
            self._use(who, time.thread_time() - before)

    def _left(self, who: Owner, ranks: int) -> float:
        self._used = {one: (self._clock(), used) for one in self._used if (used := self._owed_time(one)) > 0}  # fmt: skip
        share = SHARE + ranks * PER_RANK
        return max(LEAST, min(MOST, share - self._owed_time(who)))

    def _owed_time(self, who: Owner) -> float:
        at, used = self._used.get(who, (0.0, 0.0))
        return max(0.0, used - (self._clock() - at) * REFILL)

    def _use(self, who: Owner, seconds: float) -> None:
        self._used[who] = self._clock(), self._owed_time(who) + seconds


def job_of(incident: Incident) -> Job:
    """The job of an incident, by what it has of it: its captures, the exit, or what was known when it was opened."""
    captures = (*incident.node_captures, *incident.captures)
    if captures:
        return captures[0].job
    job = incident.exit.job if incident.exit is not None else incident.job
    return job or Job(id=incident.job_id, name=incident.job_id, launcher="unknown")


@contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """A context whose work ends with `_OutOfTime` once it has taken so much CPU time of this thread.

    Only in the main thread, where Python handles signals; in another one there is no limit. The work has to be pure: it may
    end anywhere.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    until = time.thread_time() + seconds
    under_way = True

    def ring(_number: int, _frame: FrameType | None) -> None:
        if not under_way:
            return
        if (left := until - time.thread_time()) > 0:  # others have had the core
            signal.setitimer(signal.ITIMER_REAL, max(0.01, left))
        else:
            signal.setitimer(
                signal.ITIMER_REAL, AGAIN
            )  # what is raised in a finalizer, or a callback of the collector, is lost
            raise _OutOfTime

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        under_way = False
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


_SHARES = JudgingShares()


def judge(incident: Incident, known: Judgement | None = None) -> Judgement:
    """The judgement of an incident, as `mldebug.incidents.judge.judge` gives it, within its owner's share of CPU time.
    `known`: see `JudgingShares.judge`.
    """
    return _SHARES.judge(incident, known)
