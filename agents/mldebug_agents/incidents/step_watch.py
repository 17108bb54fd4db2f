"""Whether a job makes steps while a person looks at it: by the hooks of its ranks, and by its logs.

No process is attached to: records in shared memory and the ends of log files are read, before and
after a capture.
"""

import time
from collections.abc import Callable

from mldebug.core.model import Job
from mldebug.stall.log_progress import LogProgress
from mldebug_agents.capture.tools import CaptureTools
from mldebug_agents.jobs.hook.records import HeartbeatReader
from mldebug_agents.jobs.logs.job_logs import HungMounts, JobLogs, LogSharing
from mldebug_agents.jobs.logs.locations import LogFinder

FRESH = 15.0  # seconds: a step so young may be followed by one soon
LONGEST = 10.0  # seconds that one is waited for
EVERY = 0.5


class StepWatch:
    """The steps of one job since this was made. `between()` returns the step then and now."""

    def __init__(
        self,
        tools: CaptureTools,
        job: Job,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        host, reader = tools.context.host, tools.context.reader
        self._job = job
        self._host = host
        self._clock = clock
        self._sleep = sleep
        self._beats = HeartbeatReader(host, reader)
        self._progress = LogProgress()
        self._logs = JobLogs(
            host, reader, HungMounts(host, reader), tools.log_parser, self._progress, LogSharing()
        )
        self._stepped_at = 0.0
        self._first = self._look()

    def between(self) -> tuple[int, int] | None:
        """The furthest step when the watch began, and now; None where either is not known.

        If the last step is young and none has followed yet, this waits for the next one, at most
        `LONGEST` seconds.
        """
        if self._first is None:
            return None
        until = self._clock() + LONGEST
        while (now := self._look()) is not None and now <= self._first:
            if self._age() > FRESH or self._clock() >= until:
                break
            self._sleep(EVERY)
        return None if now is None else (self._first, max(now, self._first))

    def _look(self) -> int | None:
        """The furthest step that a hook or a log tells now."""
        beats = self._beats.read(self._job.ranks).values()
        steps = [beat.step for beat in beats if beat.step is not None]
        self._stepped_at = max((beat.stepped_at for beat in beats), default=0.0)
        self._logs.look(self._job, LogFinder(self._host), self._clock())
        if self._progress.step is not None:
            steps.append(self._progress.step)
        return max(steps, default=None)

    def _age(self) -> float:
        """Seconds since the newest sign of a step."""
        return self._clock() - max(self._stepped_at, self._progress.moved_at or 0.0)
