"""What the parser understands of one log: for a person who wonders why a job shows no step."""

import re
from collections.abc import Iterable

import msgspec

from mldebug.core.redact import clean
from mldebug.jobs.logs.parser import MAX_LINE, LogParser
from mldebug.jobs.logs.records import LogRecord

MAX_EXAMPLES = 5
SHOWN = 200  # characters of a line
_COUNTS = re.compile(
    r"(?i)(?:step|iter|epoch|batch|loss|it/s|s/it|update|\bit\b)[^\n]{0,80}?\d|\d ?/ ?\d"
)
_LINE_ENDS = re.compile(rb"[\r\n]+")


class FormatTrial(msgspec.Struct, kw_only=True):
    """What one log format understood of a log that a person wants to try."""

    format: str
    lines: int = 0
    with_loss: int = 0
    first_step: int | None = None
    last_step: int | None = None
    total: int | None = None  # steps, as the last such line says
    example: str = ""  # a line of these, cleaned
    read: LogRecord | None = None  # what was read in the example


class LogTrial(msgspec.Struct, kw_only=True):
    """What was read in a log, by format. `left`: the first few lines that seem to count something and were not read."""

    lines: int = 0
    understood: int = 0
    counting: int = 0  # lines not read that look as if they counted something
    formats: list[FormatTrial] = []
    left: list[str] = []
    slow: tuple[str, ...] = ()  # patterns of the user that took too long


def try_log(chunks: Iterable[bytes], parser: LogParser) -> LogTrial:
    """Read a log from its start, line by line, as the agent would. Errors in reading `chunks` are passed on."""
    trial, found = LogTrial(), dict[str, FormatTrial]()
    for line in _lines(chunks):
        records = parser.feed(line + b"\n")
        text = line.decode(errors="replace")
        trial.lines += bool(text.strip())
        for record in records:
            trial.understood += 1
            _count(found.setdefault(record.format, FormatTrial(format=record.format)), record, text)
        if not records and _COUNTS.search(text[:1000]):
            trial.counting += 1
            if len(trial.left) < MAX_EXAMPLES:
                trial.left.append(clean(text, SHOWN))
    trial.formats = sorted(found.values(), key=lambda one: -one.lines)
    trial.slow = parser.slow
    return trial


def _lines(chunks: Iterable[bytes]) -> Iterable[bytes]:
    """Lines without their ends; a progress bar ends its lines with a carriage return. One above `MAX_LINE` comes in parts: it is no record."""
    rest = b""
    for chunk in chunks:
        *whole, rest = _LINE_ENDS.split(rest + chunk)
        yield from whole
        if len(rest) > MAX_LINE:
            yield rest
            rest = b""
    if rest:
        yield rest


def _count(one: FormatTrial, record: LogRecord, text: str) -> None:
    one.lines += 1
    one.with_loss += record.loss is not None
    if record.step is not None:
        one.first_step = record.step if one.first_step is None else one.first_step
        one.last_step = record.step
    one.total = one.total if record.total is None else record.total
    if one.read is None or (one.read.step is None and record.step is not None):
        one.example, one.read = clean(text, SHOWN), record
