"""What the parsers of chart files share: the interface of log parsers, a bounded buffer, and what counts as a step of training."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Protocol

import msgspec

from mldebug.jobs.logs.records import LogRecord
from mldebug.jobs.logs.scalars import name_of

Chunk = bytes
MAX_RECORD = 1 << 20  # bytes; longer ones (images, graphs) are passed over

_EVALUATION = re.compile(r"(?:^|[/_.\- ])(?:eval|evaluation|val|valid|validation|test)(?:[/_.\- ]|$)", re.IGNORECASE)  # fmt: skip
_MACHINE = re.compile(
    r"^(?:_|sys(?:tem)?[/._]|gpu|cpu|mem(?:ory)?[/._]|disk|network|proc[/._]|hardware|power|(?:device)?stats|time$|epoch$|step$)",
    re.IGNORECASE,
)
_LOSS = re.compile(r"(?:^|[/_. ])loss(?:[_ ](?:step|epoch|total))?$", re.IGNORECASE)


class FileParser(Protocol):
    """The parser of one file, to which `LogFollower` feeds its bytes as they come. The counters are those of `LogParser`."""

    lines: int
    records: int
    bytes: int
    binary: int
    oversized: int
    skipped: int

    @property
    def slow(self) -> tuple[str, ...]:
        """Names of the user's own formats that were too slow and are not tried any more."""

    @property
    def held(self) -> int:
        """How many bytes of an unfinished record are kept for the next `feed`."""

    def feed(self, data: Chunk) -> list[LogRecord]:
        """Parse the next bytes of the file; return the records that they complete."""

    def preface(self, data: Chunk) -> None:
        """Learn from the beginning of the file, of which the middle is left out, how its later records are to be read."""

    def flush(self) -> list[LogRecord]:
        """The record in the unfinished end of the file, if it is complete but for its end."""

    def take_nccl(self) -> list[str]:
        """The lines that NCCL wrote, since the last call."""

    def resync(self, at: int = 0) -> None:
        """Note that bytes were left out; the next ones begin at offset `at` of the file."""

    def restart(self) -> None:
        """Note that the next bytes are the beginning of a file."""


class ChartParser(ABC):
    """Base of the parsers of chart files: the buffer for an unfinished record, and the counters."""

    def __init__(self) -> None:
        self.lines = self.records = self.bytes = self.binary = self.oversized = self.skipped = 0
        self.slow: tuple[str, ...] = ()
        self._held = b""
        self._skip = 0  # bytes of a long record that are still to come

    @property
    def held(self) -> int:
        """How many bytes of an unfinished record are kept for the next `feed`."""
        return len(self._held)

    def feed(self, data: bytes) -> list[LogRecord]:
        """Parse the next bytes; return the records that they complete, one for each step."""
        self.bytes += len(data)
        if self._skip:
            passed = min(self._skip, len(data))
            self._skip -= passed
            data = data[passed:]
        self._held += data
        found = list(_one_per_step(self._take()))
        self.records += len(found)
        return found

    def preface(self, data: bytes) -> None:  # noqa: B027
        """Nothing to learn: each record tells all by itself."""

    def flush(self) -> list[LogRecord]:
        """No record: one that is not complete is still being written."""
        return []

    def take_nccl(self) -> list[str]:
        """No lines: NCCL does not write into these files."""
        return []

    def resync(self, at: int = 0) -> None:
        """Bytes were left out: drop the unfinished record, and find the next one in what follows."""
        self.restart()

    def restart(self) -> None:
        """The next bytes are the beginning of a file: drop the unfinished record."""
        self._held, self._skip = b"", 0

    @abstractmethod
    def _take(self) -> Iterator[LogRecord]:
        """The records that are complete in `_held`, which are removed from it."""

    def _drop(self, size: int) -> None:
        """Leave out a record of this size, of which not all is here."""
        self.oversized += 1
        self._skip = max(0, size - len(self._held))
        self._held = self._held[size:]


def _one_per_step(records: Iterator[LogRecord]) -> Iterator[LogRecord]:
    """A step is written once for each chart: the last of them, with the loss of any."""
    last: LogRecord | None = None
    for record in records:
        if last is not None and last.step != record.step:
            yield last
            last = None
        loss = record.loss if record.loss is not None or last is None else last.loss
        scalars = record.scalars if last is None else {**last.scalars, **record.scalars}
        last = msgspec.structs.replace(record, loss=loss, scalars=scalars)
    if last is not None:
        yield last


def step_record(
    step: int | None,
    values: Mapping[str, float | None],
    format_: str,
    written_at: float | None = None,
) -> LogRecord | None:
    """The record of a step, made of the values in its charts by name; None where the step is no number of 0 or more, or only an
    evaluation or the machine was measured. `written_at`: unix seconds, as the file tells them.
    """
    trained = [name for name in values if not (_EVALUATION.search(name) or _MACHINE.search(name))]
    if step is None or not 0 <= step < 10**15 or not trained:
        return None
    losses = (values[name] for name in trained if _LOSS.search(name))
    figures = {name_of(name): values[name] for name in trained}
    scalars = {name: value for name, value in figures.items() if name and value is not None}
    at = written_at if written_at is not None and isfinite(written_at) else None
    return LogRecord(step=step, loss=next(losses, None), scalars=scalars, format=format_, written_at=at)  # fmt: skip
