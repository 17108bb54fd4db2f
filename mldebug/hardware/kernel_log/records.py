r"""One record of /dev/kmsg, or one printed line of dmesg or journalctl, as a struct. Pure; never raises on text.

/dev/kmsg gives `priority,sequence,microseconds,flags[,more];text`, then lines that begin with a space and hold
`KEY=value`; what cannot be printed stands there as `\x0a` (Documentation/ABI/testing/dev-kmsg). Programs that write
into the log cannot use facility 0: by it one knows what the kernel itself said.
"""

import re

from mldebug.core.model import MeasuredData

MAX_RECORD = 16 << 10  # bytes; the kernel's own limit is 8 KiB
KERNEL_FACILITY = 0
_MAX_DIGITS = 19

_ESCAPED = re.compile(r"\\x([0-9a-fA-F]{2})")
_PRINTED = re.compile(
    r"(?:<(?P<priority>\d{1,4})>)?\[ {0,8}(?P<seconds>\d{1,10}\.\d{1,9})\](?:\[[^\]]{0,16}\])? ?(?P<text>.*)",
    re.DOTALL,
)
_JOURNAL = re.compile(  # time and host; behind "program: " that program says what it likes
    r"(?:(?!: )[^\[\]]){0,80}? kernel: (?P<rest>.*)", re.DOTALL
)


class KernelRecord(MeasuredData, frozen=True, kw_only=True):
    """One record of the kernel's log. `text` may hold several lines."""

    text: str
    seconds: float = 0.0  # the kernel's clock: about seconds since boot
    sequence: int = -1  # -1: a printed line, which has none
    level: int = 6  # 0 emergency … 7 debug
    facility: int = KERNEL_FACILITY
    device: str = ""  # "+pci:0000:3b:00.0", "n2": DEVICE= of the record

    def unix(self, boot_time: float) -> float:
        """Unix time of the record. `boot_time`: unix time at which the kernel's clock began."""
        return boot_time + self.seconds


def parse_record(data: bytes | str) -> KernelRecord | None:
    """Parse one record of /dev/kmsg; None for anything else."""
    text = (
        data[:MAX_RECORD].decode(errors="replace") if isinstance(data, bytes) else data[:MAX_RECORD]
    )
    head, semicolon, body = text.partition(";")
    fields = head.split(",", 4)
    if not semicolon or len(fields) < 4:
        return None
    priority, sequence, micros = (_number(field) for field in fields[:3])
    if priority is None or sequence is None or micros is None:
        return None
    line, _, more = body.partition("\n")
    return KernelRecord(
        text=_unescaped(line),
        seconds=micros / 1e6,
        sequence=sequence,
        level=priority & 7,
        facility=priority >> 3,
        device=_device(more) if more else "",
    )


def parse_printed(line: str) -> KernelRecord | None:
    """Parse a line as dmesg, syslog or `journalctl -k` print it: `<3>[   12.5] text`, `… host kernel: [12.5] text`;
    None for a line of neither form.
    """
    line = line[:MAX_RECORD].rstrip("\n")
    journal = _JOURNAL.match(line)
    rest = journal["rest"] if journal else line
    printed = _PRINTED.match(rest)
    if printed is None:
        return KernelRecord(text=rest) if journal else None
    priority = int(printed["priority"] or 6)
    return KernelRecord(
        text=printed["text"],
        seconds=float(printed["seconds"]),
        level=priority & 7,
        facility=priority >> 3,
    )


def _number(field: str) -> int | None:
    return int(field) if len(field) <= _MAX_DIGITS and field.isascii() and field.isdigit() else None


def _unescaped(line: str) -> str:
    if "\\x" not in line:
        return line
    raw = _ESCAPED.sub(lambda match: chr(int(match[1], 16)), line)
    try:
        return raw.encode("latin-1").decode(errors="replace")  # the kernel escapes byte by byte
    except UnicodeEncodeError:
        return raw


def _device(more: str) -> str:
    for line in more.split("\n"):
        key, _, value = line.partition("=")
        if key == " DEVICE":
            return _unescaped(value[:200])
    return ""


class KernelClock:
    """Converts time stamps of kernel records to unix time.

    Call `begin` before each round of reads, `drained` when a round reached the end of the log.

    NTP does not adjust the log's clock: after weeks `boot time + timestamp` can be wrong by many
    seconds. Reading bounds it: a record is not later than the read that found it, nor earlier than
    the last read that reached the end. The clock is corrected when a bound is violated.
    """

    def __init__(self) -> None:
        self._boot = 0.0
        self._drift = 0.0
        self._now = 0.0
        self._earliest: float | None = None  # monotonic time of the last drained round
        self._since = 0.0

    def begin(self, unix: float, monotonic: float) -> None:
        """Begin a round of reads: the present moment by the unix clock and by the monotonic clock, in seconds."""
        self._boot = unix - monotonic
        self._now = unix
        self._since = self._boot + self._earliest if self._earliest is not None else 0.0

    def drained(self, monotonic: float) -> None:
        """Note that the round which began at this monotonic time (seconds) reached the end of the log: later records are newer."""
        self._earliest = monotonic

    def unix(self, seconds: float) -> float:
        """Unix time of a record that was read in the present round. `seconds`: its timestamp."""
        at = self._boot + self._drift + seconds
        bounded = min(max(at, self._since), self._now)
        self._drift += bounded - at
        return bounded
