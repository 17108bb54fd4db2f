"""From what a log said to signs of progress: only a new step, or a record without one, is movement."""

from mldebug.records import LogRecord, StepTimes
from mldebug.stall.signals import Progress, ProgressKind
from mldebug.stall.steptimes import StepTimer


class LogProgress:
    """What the logs of one run have told so far. A bar that is redrawn with the same step says nothing."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.loss: float | None = None
        self.step_seconds: float | None = None
        self._counter: tuple[str, int | None] | None = None
        self._moves = 0
        self._told = 0  # of these told in signals()
        self._bytes = 0
        self._moved_at: float | None = None
        self._grown_at = 0.0
        self._timer = StepTimer()

    @property
    def moved_at(self) -> float | None:
        """When the last record came, or was there already (monotonic)."""
        return self._moved_at

    @property
    def step_times(self) -> StepTimes | None:
        """All step durations so far; None before the first."""
        return self._timer.times

    def take(
        self, records: tuple[LogRecord, ...], grew_bytes: int, now: float, log: object = ""
    ) -> None:
        """Take what one poll of one log brought; `now` is monotonic, `log` tells the logs of the run apart."""
        if grew_bytes:
            self._bytes, self._grown_at = self._bytes + grew_bytes, now
        for record in records:
            if self._is_new(record):
                self._moves, self._moved_at = self._moves + 1, now
            self._remember(record)
        self._timer.take(records, log, now)

    def arrive(self, record: LogRecord | None, written_at: float, log: object = "") -> None:
        """Take the record that was there before we came, written at this monotonic time: how long it is quiet already."""
        if record is not None:
            self._remember(record)
            self._timer.begin(record, log, written_at)
            self._moved_at = max(written_at, self._moved_at or written_at)

    def signals(self) -> tuple[Progress, ...]:
        """The last state of each signal, for one `Look`."""
        found = []
        if self._moved_at is not None:
            events, self._told = max(1, self._moves - self._told), self._moves
            at = self._moved_at
            found.append(
                Progress(kind=ProgressKind.RECORD, value=self._moves, at=at, events=events)
            )
            if self.step is not None:
                found.append(
                    Progress(kind=ProgressKind.STEP, value=self.step, at=at, events=events)
                )
        if self._bytes:
            found.append(
                Progress(kind=ProgressKind.LOG_GROWTH, value=self._bytes, at=self._grown_at)
            )
        return tuple(found)

    def _is_new(self, record: LogRecord) -> bool:
        return (
            record.step is None
            or (record.format, record.total) != self._counter
            or record.step != self.step
        )

    def _remember(self, record: LogRecord) -> None:
        if record.step is not None:
            self.step, self._counter = record.step, (record.format, record.total)
        self.loss = record.loss if record.loss is not None else self.loss
        self.step_seconds = record.step_seconds or self.step_seconds
