"""From log records to progress signals: only a record of the training loop that reports something new is progress."""

import re
from collections import deque
from collections.abc import Mapping

import msgspec

from mldebug.jobs.heartbeat import Heartbeat
from mldebug.jobs.logs.figure_sources import FigureSources
from mldebug.jobs.logs.records import LogRecord, StepTimes
from mldebug.jobs.logs.scalars import MOST
from mldebug.stall.heartbeats import HOOK, HeartbeatSteps
from mldebug.stall.log_filters import ECHO, MainLoopFilter, NoveltyFilter
from mldebug.stall.signals import Progress, ProgressKind
from mldebug.stall.step_times import FlushDelay, StepTimer

MOST_LOGS = 16  # whose delays are known at once
POINTS = 1024  # records with figures between two looks
SILENT = 9.0  # seconds; tqdm's monitor draws a bar again that was not drawn for ten
CHECKS = 4  # counts of an evaluation, of which fewer say nothing of how far it is
NEARLY = 0.9  # of an evaluation, after which its bar may be cleared
_OF_TOTAL = re.compile(r"(\d{1,15})/(\d{1,15})$")


class LogProgress:
    """The progress of one run as its logs and the ranks' heartbeats show it. `mldebug.stall.log_filters` decides which log
    records count.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self.loss: float | None = None
        self.step_seconds: float | None = None
        self.scalars: dict[str, float] = {}  # the last of each name
        self._count: tuple[str, int | None] | None = None  # format and total of that step
        self._novelty = NoveltyFilter()
        self._main_loop = MainLoopFilter()
        self._moves = 0
        self._signalled = 0  # of these, already in signals()
        self._bytes = 0
        self._moved_at: float | None = None
        self._redrawn = False  # the newest record
        self._grown_at = 0.0
        self._delays: dict[object, FlushDelay] = {}  # by log
        self._timer = StepTimer()
        self._hook = HeartbeatSteps()
        self._has_restarted = False  # and no step was read since
        self.evaluations = 0  # records of how far an evaluation is; of those before we came the ones after the last step
        self._evaluated = ""  # how far the last one was
        self._points: deque[LogRecord] = deque(maxlen=POINTS)
        self._earlier_steps: tuple[int, ...] = ()
        self._sources = FigureSources()

    @property
    def total_steps(self) -> int | None:
        """The number of steps beside the run's step in its log; of one epoch where that is what is counted. None where none is."""
        return self._count[1] if self._count else None

    @property
    def moved_at(self) -> float | None:
        """When the last new record was read (monotonic seconds); where its file holds records back, and for one that was there
        before the agent, when it was written. None before the first.
        """
        return self._moved_at

    @property
    def step_format(self) -> str:
        """The name of the log format from which the run's step was read; "" where none was."""
        return self._count[0] if self._count else ""

    @property
    def counts_steps(self) -> bool:
        """Whether a log or a rank's hook has reported a step number."""
        return self.step is not None or self._hook.has_steps

    @property
    def made_a_step(self) -> bool:
        """Whether the logs show that a step was made. A bar at 0 without a loss is drawn before the first one."""
        return bool(self.step) or (self.step == 0 and self.loss is not None)

    @property
    def step_times(self) -> StepTimes | None:
        """The histogram of all step durations so far; None before the first."""
        return self._timer.times

    def take(
        self, records: tuple[LogRecord, ...], grew_bytes: int, now: float, log: object = ""
    ) -> None:
        """Add the records and the number of new bytes that one poll of one log found. `now`: monotonic seconds. `log`: identifies
        the log within the run.
        """
        if grew_bytes:
            self._bytes, self._grown_at = self._bytes + grew_bytes, now
        own, newest, before = [], None, self.step
        for record in records:
            if self._main_loop.owns(record, self.step):
                own.append(record)
                if self._learn(record):
                    self._moves, newest = self._moves + 1, record
                    self._add_point(record, log, now)
            else:
                self.step = self._main_loop.step_without(record, self.step)
        if newest is not None:
            self._redrawn = self._is_redrawn(before, now)
            late = self._delay_of(log).take(newest.written_at, now)
            self._moved_at = max(now - late, self._moved_at or 0.0)
        self._timer.take(tuple(own), log, now)

    def arrive(
        self,
        record: LogRecord | None,
        written_at: float,
        log: object = "",
        earlier: tuple[LogRecord, ...] = (),
    ) -> None:
        """Add the last record that stood in the log before the agent came; `written_at` (monotonic seconds) tells how long the
        run has been quiet.

        `earlier` are the records before it, so that they are not taken for new if they are repeated. With `record` None only
        these are added.
        """
        steps = []
        for old in earlier if record is None else (*earlier, record):
            if self._main_loop.owns(old, self.step):
                self._learn(old)
                steps += [old.step] if old.step is not None else []
                self.evaluations = 0 if old.step is not None else self.evaluations
        self._earlier_steps = tuple(steps)
        if record is not None and self._main_loop.owns(record, self.step):
            self._timer.begin(record, log, written_at)
        if record is not None:
            self._moved_at = max(written_at, self._moved_at or written_at)

    def signals(self) -> tuple[Progress, ...]:
        """The last state of each progress signal of the logs (records, step, bytes), for one `RunLook`; a signal that never came
        is left out. A step of 0 means that none was made: it is left out, too, once there is a loss. It is given while nothing but
        evaluations were read: their counts come quicker or slower than steps, and say nothing of when the first one is due.
        """
        found = []
        if self._moved_at is not None:
            events, self._signalled = max(1, self._moves - self._signalled), self._moves
            at, late = self._moved_at, self._redrawn
            counts = {ProgressKind.RECORD: self._moves}
            if self.step is not None and (self.step or not self.made_a_step):
                counts[ProgressKind.STEP] = self.step
            elif self._has_only_evaluated:
                counts[ProgressKind.STEP] = 0
            found += [
                Progress(kind=kind, value=value, at=at, events=events, redrawn=late)
                for kind, value in counts.items()
            ]
        if self._bytes:
            found.append(
                Progress(kind=ProgressKind.LOG_GROWTH, value=self._bytes, at=self._grown_at)
            )
        return tuple(found)

    @property
    def amid_evaluation(self) -> bool:
        """Whether an evaluation before the first step has begun to count and is not nearly through: what follows it is due, however long
        the first step may take.
        """
        found = _OF_TOTAL.search(self._evaluated) if self._moves > CHECKS else None
        return (
            found is not None
            and self._has_only_evaluated
            and int(found[1]) < NEARLY * int(found[2])
        )

    @property
    def _has_only_evaluated(self) -> bool:
        """Whether no step and no loss was read, and nothing but how far evaluations are."""
        nothing = self.step is None and self.loss is None
        return nothing and 0 < self._moves <= self.evaluations

    def take_heartbeats(self, heartbeats: Mapping[int, Heartbeat], now: float) -> None:
        """Add the steps in the ranks' heartbeats to the step times; a step that a log reports as well counts once. `now`:
        monotonic seconds.
        """
        records, at = self._hook.take(heartbeats, now)
        self._timer.take(records, HOOK, at)

    @property
    def hook_seconds(self) -> float | None:
        """Seconds of the last step as the ranks' hooks report it, or the mean of the steps since the previous reading; None
        before two steps.
        """
        return self._hook.seconds

    def take_points(self) -> tuple[LogRecord, ...]:
        """The new records with figures since the last call, at most `POINTS`, in the order of their log; one without a step has the
        run's. Where several logs or lines of a run tell the same, only those of one.
        """
        points = tuple(self._points)
        self._points.clear()
        return points

    def take_earlier_steps(self) -> tuple[int, ...]:
        """The steps of the records that stood in the log before the agent came, in their order: once, empty from then on."""
        steps, self._earlier_steps = self._earlier_steps, ()
        return steps

    def restart(self) -> None:
        """Note that new processes write the log: steps and lines that an earlier attempt has logged count as new again."""
        self._novelty, self._main_loop = NoveltyFilter(), MainLoopFilter()
        self._has_restarted = True
        self._sources.forget()

    def forget_progress(self) -> None:
        """Forget the step, loss, figures and remembered lines, because the logs so far may belong to another job. The step times
        stay.
        """
        self.step = self.loss = self.step_seconds = self._moved_at = self._count = None
        self.scalars = {}
        self._points.clear()
        self._earlier_steps = ()
        self._sources.forget()
        self._bytes = 0
        self._novelty, self._main_loop = NoveltyFilter(), MainLoopFilter()

    def _delay_of(self, log: object) -> FlushDelay:
        if log not in self._delays and len(self._delays) >= MOST_LOGS:
            self._delays.clear()  # those of files that are gone
        return self._delays.setdefault(log, FlushDelay())

    def _learn(self, record: LogRecord) -> bool:
        """Take a record of the loop's own; return whether it reports anything new."""
        if not self._novelty.is_news(record):
            return False
        self._main_loop.learn(record)
        self._remember(record)
        return True

    def _is_redrawn(self, before: int | None, now: float) -> bool:
        """Whether the steps since `before` took less than half of the silence that ends now, by the pace that the log tells: then a
        monitor thread may have drawn the bar, long after they were made.
        """
        silence = now - (self._moved_at if self._moved_at is not None else now)
        if silence < SILENT or before is None or self.step is None or self.step_seconds is None:
            return False
        return 0 <= (self.step - before) * self.step_seconds < silence / 2

    def _add_point(self, record: LogRecord, log: object, now: float) -> None:
        chosen = self._sources.choose(record, log, now)
        if chosen is None:
            return
        has_step = record.step is not None
        self._points.append(chosen if has_step else msgspec.structs.replace(chosen, step=self.step))

    def _remember(self, record: LogRecord) -> None:
        count = (record.format, record.total)
        if record.step is None and record.loss is None and record.place:
            self.evaluations += 1
            self._evaluated = record.place
        behind = count == self._count and _is_behind(record, self.step) and not self._has_restarted
        total = self._count[1] if self._count and self._count[0] == record.format else None
        leads = record.step is not None and not behind
        leads = leads and self._main_loop.leads(record, self.step, total)
        if leads:
            self.step, self._count, self._has_restarted = record.step, count, False
        self.loss = record.loss if record.loss is not None else self.loss
        if leads or behind or record.step is None or self.step_seconds is None:
            self.step_seconds = record.step_seconds or self.step_seconds
        for name, value in record.scalars.items():
            if name in self.scalars or len(self.scalars) < MOST:
                self.scalars[name] = value


def _is_behind(record: LogRecord, step: int | None) -> bool:
    """Whether it is the step of a rank that is behind the furthest one."""
    return step is not None and 1 < (record.step or 0) < step <= (record.step or 0) + ECHO
