"""wandb's offline file `run-*.wandb`: LevelDB's log format, one `Record` of its protocol buffers each."""

import json
import struct
from collections.abc import Iterator

from mldebug.jobs.logs.charts.chart_parser import MAX_RECORD, ChartParser, step_record
from mldebug.jobs.logs.charts.protobuf import fields, signed, text
from mldebug.jobs.logs.records import LogRecord

_BLOCK = 32_768  # of LevelDB's log format, which wandb uses
_HEAD = struct.Struct("<IHB")  # checksum, length, kind
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_FILE_HEADER = 7  # ":W&B", magic number, version


class WandbParser(ChartParser):
    """Parses `run-*.wandb`: LevelDB's log format with one `Record` in each entry. Only the rows of the
    run's history become records; statistics of the machine and printed output do not.
    """

    def __init__(self) -> None:
        super().__init__()
        self._at = 0  # of the file, where `_held` begins
        self._parts = b""
        self._aligned = True

    def restart(self) -> None:
        """The next bytes are the beginning of a file."""
        super().restart()
        self._at, self._parts, self._aligned = 0, b"", True

    def resync(self, at: int = 0) -> None:
        """Bytes were left out, the next ones begin at offset `at` of the file: drop what is held and go on at the first block
        from there.
        """
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
    return step_record(int(counted) if counted is not None else step, values, "wandb", values.get("_timestamp"))  # fmt: skip


def _json_number(value: str) -> float | None:
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        return None
    finite = isinstance(found, int | float) and not isinstance(found, bool) and abs(found) < 10**15
    return float(found) if finite else None
