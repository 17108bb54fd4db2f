"""TensorBoard's `events.out.tfevents.*`: TFRecords that hold one `Event` each (wall time, step, charts)."""

import struct
from collections.abc import Iterator

from mldebug.jobs.logs.charts.chart_parser import MAX_RECORD, ChartParser, step_record
from mldebug.jobs.logs.charts.protobuf import fields, float32, float64, signed, text
from mldebug.jobs.logs.records import LogRecord

_FRAME = struct.Struct("<QI")  # length, its checksum; then the data and its checksum
_HIGH = b"\0\0\0\0\0"  # of the length of a record that is not huge


class TfEventsParser(ChartParser):
    """Parses `events.out.tfevents.*`: TFRecords that hold one `Event` each (wall time, step, charts)."""

    def __init__(self) -> None:
        super().__init__()
        self._searching = False

    def resync(self, at: int = 0) -> None:
        """Bytes were left out: look for the next record, one whose length has the right checksum."""
        super().resync(at)
        self._searching = at > 0

    def restart(self) -> None:
        """The next bytes are the beginning of a file."""
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
    step, written_at = 0, None
    values: dict[str, float | None] = {}
    for place, value in fields(event):
        if place == 1:
            written_at = float64(value)
        elif place == 2:
            step = signed(value) or 0
        elif place == 5 and isinstance(value, bytes):
            values |= dict(_charts(value))
    return step_record(step, values, "tensorboard", written_at)


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
    """The checksum that TFRecord uses: CRC-32C, rotated and with a constant added."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _CRC32C[(value ^ byte) & 0xFF] ^ value >> 8
    value ^= 0xFFFFFFFF
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF
