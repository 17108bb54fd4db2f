"""Steps in files that frameworks write for people's charts: TensorBoard's events, wandb's offline file, CSV loggers' tables.

Same interface as `mldebug.jobs.logs.parser.LogParser`: bytes in any chunks go in, records come out, memory is bounded, nothing is
raised for what a file holds. What only an evaluation or a thread that measures the machine writes is no step: such a thread goes
on while the training hangs.
"""

import csv
import json
import re
import struct
from collections.abc import Iterator, Mapping
from typing import Protocol

from mldebug.jobs.logs.protobuf import fields, float32, signed, text
from mldebug.jobs.logs.records import LogRecord, number, whole

Chunk = bytes
MAX_RECORD = 1 << 20  # bytes; longer ones (images, graphs) are passed over
MAX_LINE = 64 << 10
MAX_COLUMNS = 1000

_EVALUATION = re.compile(r"(?:^|[/_.\- ])(?:eval|evaluation|val|valid|validation|test)(?:[/_.\- ]|$)", re.IGNORECASE)  # fmt: skip
_MACHINE = re.compile(
    r"^(?:_|sys(?:tem)?[/._]|gpu|cpu|mem(?:ory)?[/._]|disk|network|proc[/._]|hardware|power|(?:device)?stats|time$|epoch$|step$)",
    re.IGNORECASE,
)
_LOSS = re.compile(r"(?:^|[/_. ])loss(?:[_ ](?:step|epoch|total))?$", re.IGNORECASE)


class FileParser(Protocol):
    """What `LogFollower` feeds the bytes of one file to. The counters are those of `LogParser`."""

    lines: int
    records: int
    bytes: int
    binary: int
    oversized: int

    @property
    def slow(self) -> tuple[str, ...]:
        """Formats of the user's that were put aside."""

    @property
    def held(self) -> int:
        """How many bytes of an unfinished record are kept for the next `feed`."""

    def feed(self, data: Chunk) -> list[LogRecord]:
        """Take the next bytes of the file; return the records that they complete."""

    def flush(self) -> list[LogRecord]:
        """Return the record that is whole but for its end."""

    def take_nccl(self) -> list[str]:
        """Lines of NCCL's since the last call."""

    def resync(self, at: int = 0) -> None:
        """Note that bytes were left out, and that the next ones begin at this place of the file."""

    def restart(self) -> None:
        """Note that the next bytes begin a file."""


class _EventParser:
    """What the parsers of chart files share: a buffer, and counters."""

    def __init__(self) -> None:
        self.lines = self.records = self.bytes = self.binary = self.oversized = 0
        self.slow: tuple[str, ...] = ()
        self._held = b""
        self._skip = 0  # bytes of a long record that are still to come

    @property
    def held(self) -> int:
        """How many bytes of an unfinished record are kept."""
        return len(self._held)

    def feed(self, data: bytes) -> list[LogRecord]:
        """Take the next bytes; return the records that they complete, one for each step."""
        self.bytes += len(data)
        if self._skip:
            passed = min(self._skip, len(data))
            self._skip -= passed
            data = data[passed:]
        self._held += data
        found = list(_one_per_step(self._take()))
        self.records += len(found)
        return found

    def flush(self) -> list[LogRecord]:
        """Nothing: a record that is not complete is not written yet."""
        return []

    def take_nccl(self) -> list[str]:
        """Nothing: NCCL writes elsewhere."""
        return []

    def resync(self, at: int = 0) -> None:
        """Find the next record in what follows."""
        self.restart()

    def restart(self) -> None:
        """Begin a file."""
        self._held, self._skip = b"", 0

    def _take(self) -> Iterator[LogRecord]:
        raise NotImplementedError

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
        last = LogRecord(step=record.step, loss=loss, format=record.format)
    if last is not None:
        yield last


def _record(step: int | None, values: Mapping[str, float | None], format_: str) -> LogRecord | None:
    """The record of a step with its values by name; None where only an evaluation or the machine was measured."""
    trained = [name for name in values if not (_EVALUATION.search(name) or _MACHINE.search(name))]
    if step is None or not 0 <= step < 10**15 or not trained:
        return None
    losses = (values[name] for name in trained if _LOSS.search(name))
    return LogRecord(step=step, loss=next(losses, None), format=format_)


# --- TensorBoard ---------------------------------------------------------------------------------


_FRAME = struct.Struct("<QI")  # length, its checksum; then the data and its checksum
_HIGH = b"\0\0\0\0\0"  # of the length of a record that is not huge


class TfEventsParser(_EventParser):
    """`events.out.tfevents.*`: TFRecords that hold one `Event` each (wall time, step, charts)."""

    def __init__(self) -> None:
        super().__init__()
        self._searching = False

    def resync(self, at: int = 0) -> None:
        """Look for the next record whose length has the right checksum."""
        super().resync(at)
        self._searching = at > 0

    def restart(self) -> None:
        """Begin a file."""
        super().restart()
        self._searching = False

    def _take(self) -> Iterator[LogRecord]:
        if self._searching and not self._find():
            return
        while len(self._held) >= _FRAME.size:
            size, checksum = _FRAME.unpack_from(self._held)
            if checksum != masked_crc(self._held[:8]):
                self._searching = True
                if not self._find():
                    return
                continue
            whole_size = size + 16
            if size > MAX_RECORD:
                self._drop(whole_size)
                continue
            if len(self._held) < whole_size:
                return
            event, self._held = self._held[12 : 12 + size], self._held[whole_size:]
            self.lines += 1
            record = _of_event(event)
            if record is not None:
                yield record

    def _find(self) -> bool:
        """Move to the next frame; False where there is none in what is here."""
        at = self._held.find(_HIGH, 3)
        while at >= 0:
            head = self._held[at - 3 : at + 9]
            if len(head) < _FRAME.size:
                self._held = self._held[at - 3 :]
                return False
            if _FRAME.unpack(head)[1] == masked_crc(head[:8]):
                self._held, self._searching = self._held[at - 3 :], False
                return True
            at = self._held.find(_HIGH, at + 1)
        self._held = self._held[-16:]
        return False


def _of_event(event: bytes) -> LogRecord | None:
    step = 0
    values: dict[str, float | None] = {}
    for place, value in fields(event):
        if place == 2:
            step = signed(value) or 0
        elif place == 5 and isinstance(value, bytes):
            values |= dict(_charts(value))
    return _record(step, values, "tensorboard")


def _charts(summary: bytes) -> Iterator[tuple[str, float | None]]:
    for place, chart in fields(summary):
        if place != 1 or not isinstance(chart, bytes):
            continue
        tag, value = "", None
        for part, content in fields(chart):
            if part == 1:
                tag = text(content)
            elif part == 2:
                value = float32(content)
            elif part == 8 and isinstance(content, bytes):
                value = next((float32(one) for at, one in fields(content) if at in (4, 5)), None)
        yield tag, value


def _table() -> tuple[int, ...]:
    entries = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = value >> 1 ^ 0x82F63B78 if value & 1 else value >> 1
        entries.append(value)
    return tuple(entries)


_CRC32C = _table()


def masked_crc(data: bytes) -> int:
    """TFRecord's checksum: CRC-32C, turned and moved."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _CRC32C[(value ^ byte) & 0xFF] ^ value >> 8
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


# --- wandb -----------------------------------------------------------------------------------------


_BLOCK = 32_768  # of LevelDB's log format, which wandb uses
_HEAD = struct.Struct("<IHB")  # checksum, length, kind
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_FILE_HEADER = 7  # ":W&B", magic number, version


class WandbParser(_EventParser):
    """`run-*.wandb`: LevelDB's log format, one `Record` each. History counts; statistics of the machine and output do not."""

    def __init__(self) -> None:
        super().__init__()
        self._at = 0  # of the file, where `_held` begins
        self._parts = b""
        self._aligned = True

    def restart(self) -> None:
        """Begin a file."""
        super().restart()
        self._at, self._parts, self._aligned = 0, b"", True

    def resync(self, at: int = 0) -> None:
        """Go on at the next block."""
        self.restart()
        self._at, self._aligned = at, at == 0

    def _take(self) -> Iterator[LogRecord]:
        if not self._aligned:
            self._pass(-self._at % _BLOCK)
            self._aligned = self._at % _BLOCK == 0
        while self._aligned and (piece := self._piece()) is not None:
            kind, data = piece
            if kind in (_FULL, _FIRST):
                self._parts = b""
            self._parts += data if len(self._parts) <= MAX_RECORD else b""
            if kind in (_FULL, _LAST):
                self.lines += 1
                record = _of_wandb(self._parts)
                self._parts = b""
                if record is not None:
                    yield record

    def _piece(self) -> tuple[int, bytes] | None:
        """The next piece of a record, and its kind; None where it is not all here."""
        if self._at == 0:
            if len(self._held) < _FILE_HEADER:
                return None
            self._pass(_FILE_HEADER)
        left = _BLOCK - self._at % _BLOCK
        if left < _HEAD.size:
            if len(self._held) < left:
                return None
            self._pass(left)
        if len(self._held) < _HEAD.size:
            return None
        _, size, kind = _HEAD.unpack_from(self._held)
        if not _FULL <= kind <= _LAST or size > _BLOCK:
            self._pass(min(len(self._held), _BLOCK - self._at % _BLOCK))  # zeroes: the next block
            return 0, b""
        if len(self._held) < _HEAD.size + size:
            return None
        data = self._held[_HEAD.size : _HEAD.size + size]
        self._pass(_HEAD.size + size)
        return kind, data

    def _pass(self, size: int) -> None:
        passed = min(size, len(self._held))
        self._held, self._at = self._held[passed:], self._at + passed


def _of_wandb(record: bytes) -> LogRecord | None:
    for place, value in fields(record):
        if place == 2 and isinstance(value, bytes):
            return _of_history(value)
    return None


def _of_history(history: bytes) -> LogRecord | None:
    step: int | None = None
    values: dict[str, float | None] = {}
    for place, value in fields(history):
        if place == 1 and isinstance(value, bytes):
            parts = dict(fields(value))
            name = text(parts[1]) if 1 in parts else text(parts.get(2, b""))
            values[name] = _json_number(text(parts.get(16, b"")))
        elif place == 2 and isinstance(value, bytes):
            step = next((signed(one) or 0 for at, one in fields(value) if at == 1), 0)
    counted = next((values[name] for name in ("trainer/global_step", "train/global_step", "_step") if values.get(name) is not None), None)  # fmt: skip
    return _record(int(counted) if counted is not None else step, values, "wandb")


def _json_number(value: str) -> float | None:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    finite = isinstance(found, int | float) and not isinstance(found, bool) and abs(found) < 10**15
    return float(found) if finite else None


# --- tables ----------------------------------------------------------------------------------------


_STEP_COLUMNS = ("step", "global_step", "trainer/global_step", "iteration", "iter", "total_timesteps", "time/total_timesteps")  # fmt: skip


class CsvParser(_EventParser):
    """`metrics.csv` of Lightning and its kin: a line of names, then a line for each step or evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self._names: tuple[str, ...] = ()
        self._dropping = False

    def restart(self) -> None:
        """Begin a file: its names come first."""
        super().restart()
        self._names, self._dropping = (), False

    def resync(self, at: int = 0) -> None:
        """Skip to the next line end; without the names of its columns nothing of a table is understood."""
        names = self._names
        super().resync(at)
        self._names = names or (("",) if at else ())
        self._dropping = at > 0

    def _take(self) -> Iterator[LogRecord]:
        *complete, self._held = self._held.split(b"\n")
        if len(self._held) > MAX_LINE:
            self.oversized += 1
            self._held = b""
        if complete and self._dropping:
            del complete[0]
            self._dropping = False
        for line in complete:
            row = _row(line)
            if not row:
                continue
            self.lines += 1
            if not self._names:
                self._names = tuple(name.strip() for name in row)
                continue
            record = _of_row(dict(zip(self._names, row, strict=False)))
            if record is not None:
                yield record


def _row(line: bytes) -> list[str]:
    try:
        return next(csv.reader([line[:MAX_LINE].decode(errors="replace").strip("\r")]), [])[
            :MAX_COLUMNS
        ]
    except csv.Error:
        return []


def _of_row(row: Mapping[str, str]) -> LogRecord | None:
    column = next((name for name in _STEP_COLUMNS if row.get(name, "").strip()), None)
    if column is None:
        return None
    step = whole(row[column].strip().removesuffix(".0"))
    values = {
        name: number(value) for name, value in row.items() if name != column and value.strip()
    }
    return _record(step, values, "csv")


PARSERS: Mapping[str, type[_EventParser]] = {
    "tensorboard": TfEventsParser,
    "wandb": WandbParser,
    "csv": CsvParser,
}
"""By kind of file, as `event_kind` names it."""


def event_kind(name: str) -> str:
    """Which parser reads a file of that name: tensorboard, wandb, csv; "" for none."""
    if "events.out.tfevents" in name:
        return "tensorboard"
    if name.endswith(".wandb"):
        return "wandb"
    return "csv" if name in ("metrics.csv", "progress.csv") else ""
