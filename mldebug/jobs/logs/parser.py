"""Bytes of a log in, progress records out: any chunks, any content, bounded memory, never an exception."""

import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain

import msgspec

from mldebug.jobs.logs.headed_tables import HeadedTable, table_below
from mldebug.jobs.logs.labels import strip_labels, unwrap_docker
from mldebug.jobs.logs.lines.quiet_lines import QuietLines
from mldebug.jobs.logs.losses import training_loss
from mldebug.jobs.logs.records import LogFormat, LogRecord
from mldebug.jobs.logs.scalars import scalars_of

MAX_LINE = 16 << 10  # bytes; a longer line is no record
SLICE = 1 << 20  # bytes worked on at once
PATIENCE = 0.5  # seconds that a format of the user's may take in all before its speed matters
SLOW = (
    1e-3  # seconds a line: then a log of 4 MiB keeps the watch busy for longer than a look may take
)

# Of this thread; of the process in a browser, where there is only one
THREAD_SECONDS = getattr(time, "thread_time", time.process_time)

_NULS = re.compile(rb"\0+")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]{0,40}[ -/]{0,4}[@-~]|[@-Z\\-_])")
_CLOSED = b"]}|"
_LOSS_FIRST = re.compile(
    r"(?:(?:total|train(?:ing)?|average|avg|mean|current)[ _])?loss\b", re.IGNORECASE
)
_NCCL = re.compile(r"NCCL (?:WARN|version|INFO (?:NET/|Bootstrap|Using network|NCCL version))")
MOST_SECONDS = 0.25  # of CPU time for the lines of one slice, and some more for each line and byte
MOST_OF_LINE, MOST_OF_BYTE = 200e-6, 0.5e-6  # five times what lines of trainings take
TIMED = 4  # lines after which that is looked at
SCALARS_OF = 32  # records of one slice, its last: of more, nobody can show the figures in between
MAX_BLOCK = 60  # lines below a step in which its loss may stand
MAX_NCCL, MAX_NCCL_LINE = 1024, 600  # lines kept until somebody takes them; characters of one


class LogParser:
    """Finds the records of one log. Lines end with a newline or, as progress bars do, with a carriage return.

    Counters: `lines` (not blank), `records`, `bytes`, `binary` (lines with bytes that are no text, and runs of NULs, as
    a truncated log has them: what stands between is still read), `oversized` (lines above `MAX_LINE`: dropped), `skipped` (characters of lines
    that were left out because those before them took too long: anybody may write lines that do).
    """

    def __init__(
        self,
        formats: Sequence[LogFormat],
        own: Mapping[str, LogFormat] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        used: Callable[[], float] = THREAD_SECONDS,
    ) -> None:
        """`own`: the formats of the configuration by name, tried first in that order, and no longer used where they are slow.
        `used`: CPU seconds of this thread.
        """
        self._used = used
        self._formats = sorted(formats, key=lambda it: it.generic)
        signs = [it.signs for it in formats]
        self._signs = _fewest(chain.from_iterable(signs)) if all(signs) else ()
        self._own = [_Own(name, it, clock) for name, it in (own or {}).items()]
        self._quiet = QuietLines(() if self._own else self._signs, _NCCL)
        self.lines = self.records = self.bytes = self.binary = self.oversized = self.skipped = 0
        self._partial = b""
        self._flushed = b""
        self._dropping = False
        self._nccl: list[str] = []
        self._block: _Block | None = None
        self._table: HeadedTable | None = None
        self._unread = False  # the last line had no word of any format

    @property
    def slow(self) -> tuple[str, ...]:
        """Names of the user's formats that took too long on this log and are not tried any more."""
        return tuple(own.name for own in self._own if own.slow)

    @property
    def held(self) -> int:
        """How many bytes of an unfinished line are kept for the next `feed`."""
        return len(self._partial)

    def feed(self, data: bytes) -> list[LogRecord]:
        """Parse the next bytes of the log; return the records that they complete, in order."""
        self.bytes += len(data)
        found: list[LogRecord] = []
        for start in range(0, len(data), SLICE):
            found += self._take(data[start : start + SLICE] if len(data) > SLICE else data)
        self.records += len(found)
        return found

    def preface(self, data: bytes) -> None:
        """Learn from the beginning of a log, of which the middle is left out, what its later lines need: the column names of a table. What it
        tells of steps is old: it is no record, and is not counted.
        """
        counters = self.lines, self.records, self.bytes, self.binary, self.oversized, self.skipped
        nccl_lines, self._nccl = self._nccl, []
        self.feed(data)
        self.lines, self.records, self.bytes, self.binary, self.oversized, self.skipped = counters
        self._nccl, self._block = nccl_lines, None
        self.restart()

    def flush(self) -> list[LogRecord]:
        """The record in the unfinished line, if the line is complete but for its end; returned once.

        A progress bar ends its line only when it draws the next one. A line that may be cut within a number or word is not used.
        """
        line = self._partial.rstrip()
        if not line or line[-1] not in _CLOSED or self._partial == self._flushed:
            return []
        self._flushed = self._partial
        text = _ESCAPES.sub("", line.decode(errors="replace"))
        record = self._match(text)
        self.records += record is not None
        return [_with_scalars(record, text)] if record else []

    def take_nccl(self) -> list[str]:
        """The lines in which NCCL writes of networks, peers and its version, since the last call; at most `MAX_NCCL`."""
        taken, self._nccl = self._nccl, []
        return taken

    def resync(self, at: int = 0) -> None:
        """Bytes of the log were left out: skip to the next line end. `at` (where the next bytes begin) is not used here."""
        self.restart()
        self._dropping = True

    def restart(self) -> None:
        """Forget the unfinished line; the next bytes begin a new one."""
        self._partial = self._flushed = b""
        self._dropping = False

    def _take(self, data: bytes) -> list[LogRecord]:
        if b"\0" in data:
            data, runs = _NULS.subn(b"\n", data)
            self.binary += runs
        if b"\r" in data:
            data = data.replace(b"\r", b"\n")
        end = data.rfind(b"\n")
        if end < 0:
            self._hold(data)
            return []
        head = self._head(data[:end])
        self._hold(data[end + 1 :])
        return self._parse(head) if head else []

    def _head(self, head: bytes) -> bytes:
        """Join what was held with what completes it; drop the rest of a line that is not wanted."""
        partial, settled, dropping = self._partial, self._flushed, self._dropping
        self.restart()
        if dropping or (settled and head[:1] in (b"\n", b"") and settled == partial):
            return head[head.find(b"\n") :] if b"\n" in head else b""
        return partial + head

    def _hold(self, data: bytes) -> None:
        if self._dropping:
            return
        if len(self._partial) + len(data) > MAX_LINE:
            self.oversized += 1
            self.resync()
        else:
            self._partial += data

    def _parse(self, data: bytes) -> list[LogRecord]:
        text = data.decode(errors="replace")
        if "\x1b" in text:
            text = _ESCAPES.sub("", text)
        if '"log":' in text:
            text = "\n".join(
                part
                for line in text.split("\n")
                for part in (_unwrapped(line) if line[:1] == "{" else (line,))
            )
        lines = text.split("\n")
        self.lines += len(lines) - lines.count("")
        if "\ufffd" in text:
            self.binary += sum("\ufffd" in line for line in lines)
        if len(text) > MAX_LINE and max(map(len, lines)) > MAX_LINE:
            short = [line for line in lines if len(line) <= MAX_LINE]
            self.oversized += len(lines) - len(short)
            lines, text = short or [""], "\n".join(short)
        found = self._records(lines, self._quiet.shapes_of(text), nccl="NCCL " in text)
        return [
            *(record for record, _ in found[:-SCALARS_OF]),
            *(_with_scalars(record, line) for record, line in found[-SCALARS_OF:]),
        ]

    def _records(self, lines: Sequence[str], shapes: Sequence[str], *, nccl: bool) -> list[tuple[LogRecord, str]]:  # fmt: skip
        """The records in these lines, and the lines. `shapes`: of each, see `QuietLines`; `nccl`: whether NCCL has written any."""
        found = []
        quiet, match = self._quiet, self._match
        known = quiet.shapes
        until, judged = self._used() + _most_seconds(lines), 0
        for place, (line, shape) in enumerate(zip(lines, shapes, strict=True)):
            always = known.get(shape)
            if always is not None and self._block is None and (always or not quiet.may_count(line)):
                table = self._table
                if table is None or not table.may_be_row(line):
                    continue
            if not line:
                continue
            if nccl and len(self._nccl) < MAX_NCCL and _NCCL.search(line):
                self._nccl.append(line[-MAX_NCCL_LINE:])
            judged += 1
            if not judged % TIMED and self._used() > until:
                self.skipped += sum(map(len, lines[place:]))
                break
            record = match(line)
            if record is not None:
                found.append((record, line))
            elif self._unread:
                quiet.learn(shape)
                known = quiet.shapes
        return found

    def _match(self, line: str) -> LogRecord | None:
        self._unread = self._block is None and bool(self._signs) and not self._may_count(line)
        if self._unread:
            return self._unsigned(line)
        line = strip_labels(line)
        record = self._read(line) or self._tabled(line)
        if record is not None and record.step is not None:
            self._block = None if record.loss is not None else _Block(record)
        elif self._block is not None:
            whole = self._block.continued(line)
            if whole is not None or self._block.over:
                self._block = None
            return whole or record
        return record

    def _unsigned(self, line: str) -> LogRecord | None:
        """What a line tells that has no word of any format: only the user's own formats and rows of a table may read it."""
        is_row = self._table is not None and self._table.may_be_row(line)
        if not (is_row or self._own):
            return None
        line = strip_labels(line)
        return self._read_own(line) or (self._tabled(line) if is_row else None)

    def _tabled(self, line: str) -> LogRecord | None:
        """What a row of a table tells, whose column names stand in an earlier line; such a line of names is kept."""
        table = self._table
        if table is not None and table.may_be_row(line):
            record = table.row(line)
            if record is not None:
                return record
        found = table_below(line) if _has_names(line.lower()) else None
        if found is not None and not (table is not None and table.is_same(found)):
            self._table = found
        elif found is None and table is not None and table.ends_at(line):
            self._table = None
        return None

    def _may_count(self, line: str) -> bool:
        """Can a format read something in this line? Many plain searches cost less than one expression for all of them."""
        text = line.lower()
        for sign in self._signs:  # noqa: SIM110  # half the time of any()
            if sign in text:
                return True
        return False

    def _read_own(self, line: str) -> LogRecord | None:
        for own in self._own:
            record = own.parse(line)
            if record is not None:
                return record
        return None

    def _read(self, line: str) -> LogRecord | None:
        record = self._read_own(line)
        if record is not None:
            return record
        for place, format_ in enumerate(self._formats):
            record = format_.parse(line)
            if record is not None:
                if place and not format_.generic:  # a log has one format: try it first from now on
                    self._formats.insert(0, self._formats.pop(place))
                return record
        return None


def _most_seconds(lines: Sequence[str]) -> float:
    """How long these lines may take; what is left of them then is left out."""
    return MOST_SECONDS + MOST_OF_LINE * len(lines) + MOST_OF_BYTE * sum(map(len, lines))


def _fewest(signs: Iterable[str]) -> tuple[str, ...]:
    """The signs without those that have another one in them: where they stand, that does."""
    found = tuple(dict.fromkeys(signs))
    return tuple(one for one in found if not any(other != one and other in one for other in found))


def _has_names(line: str) -> bool:
    """Whether a line in lower case has a word without which no table of training begins."""
    return "loss" in line or "norm" in line or "trial name" in line


def _unwrapped(line: str) -> list[str]:
    """The lines of text in a line of Docker's JSON, in which colours are written as words."""
    return [_ESCAPES.sub("", part) if "\x1b" in part else part for part in unwrap_docker(line)]


def _with_scalars(record: LogRecord, line: str) -> LogRecord:
    """The record with the other figures of its line, where it is one of training; a user's own pattern has named its own."""
    if record.scalars or (record.step is None and record.loss is None):
        return record
    found = scalars_of(line)
    return msgspec.structs.replace(record, scalars=found) if found else record


class _Block:
    """Indented lines below a step without a loss, as Composer, OLMo and Coqui print them, or one line that begins with a loss: it may stand
    there.
    """

    def __init__(self, record: LogRecord) -> None:
        self._record = record
        self._left = MAX_BLOCK
        self.over = False

    def continued(self, line: str) -> LogRecord | None:
        """Return the block's record with the loss of this line; None where the line has none. Sets `over` where the block ends
        before this line.
        """
        first, self._left = self._left == MAX_BLOCK, self._left - 1
        self.over = line[:1] not in ("", " ", "\t") or not self._left
        belongs = not self.over or (first and _LOSS_FIRST.match(line))
        loss = training_loss(line.lower()) if belongs else None
        return None if loss is None else msgspec.structs.replace(self._record, loss=loss)


class _Own:
    """A format from the configuration, timed: a regular expression cannot be interrupted, so one that is too slow is not used again."""

    def __init__(self, name: str, format_: LogFormat, clock: Callable[[], float]) -> None:
        self.name = name
        self.slow = False
        self._format = format_
        self._clock = clock
        self._lines = 0
        self._seconds = 0.0

    def parse(self, line: str) -> LogRecord | None:
        if self.slow:
            return None
        began = self._clock()
        record = self._format.parse(line)
        self._seconds += self._clock() - began
        self._lines += 1
        self.slow = self._seconds > PATIENCE and self._seconds > SLOW * self._lines
        return msgspec.structs.replace(record, format=self.name) if record else None
