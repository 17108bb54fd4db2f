"""The interface of log format plugins (`LogFormat`), the record that they make of a line, and how numbers in a log are read."""

import math
import re
from typing import Protocol

import msgspec

NUMBER = (
    r"[-+]?(?:(?:\d{1,40}(?:\.\d{0,40})?|\.\d{1,40})(?:[eE][-+]?\d{1,4})?"
    r"|(?:[nN][aA][nN]|[iI][nN][fF](?:[iI][nN][iI][tT][yY])?)(?![A-Za-z]))"
)
WHOLE = r"\d{1,15}(?!\d)"
GROUPED = r"(?:\d{1,15}(?!\d|[,_]\d{3}(?!\d))|\d{1,3}(?:[,_]\d{3}){1,4}(?!\d))"
"""A count as `f"{step:,}"` prints it, or a plain one; read it with `whole`."""

_PER_SECOND = {"ms": 1_000, "us": 1_000_000}
_EPOCH = re.compile(
    r"epoch['\"]?[ :=]{0,4}['\"]?(?:\[?(\d{1,9}(?:\.\d{1,20})?)|\[ {1,12}(\d{1,9}) ?/ ?\d{1,9}\](?=[ ,]{0,4}\[ {0,12}\d))",
    re.IGNORECASE,
)
_SEPARATED = re.compile(r"(\d)[,_](?=\d{3})")


class LogRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The progress in one log line. Fields that the line does not contain are None or empty.

    A record without a step (an evaluation, a Trainer dict) is progress where it reports something new. `step` may start again at
    0 (each epoch, an evaluation with another `total`), and a redrawn bar repeats it.
    """

    step: int | None = None
    total: int | None = None
    loss: float | None = None  # nan and inf are what a log may say
    step_seconds: float | None = None  # > 0, finite
    scalars: dict[str, float] = {}  # what else it tells by name, as it comes; nan and inf too
    place: str = ""  # what else the line counts: its epoch, how far an evaluation is
    mark: int = 0  # checksum of a line without a step, which differs where anything else in it does
    shape: str = (
        ""  # the words of a line that any program may print, up to its count; "" in a known format
    )
    bare: bool = (
        False  # such a line, and it counts without a loss, another metric, a total or an epoch
    )
    whole_run: bool = False  # the line calls its count that of the whole run: `global step 12`
    format: str  # name of the logs/ plugin that read it
    written_at: float | None = None  # unix seconds, where it says itself when it was made


STEP_BOUNDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0)
"""Upper bounds in seconds of the step-time histogram; closest where most training steps lie."""


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """A histogram of step durations: how many steps fell into each range of STEP_BOUNDS (not cumulative), the last number for
    those above all bounds.
    """

    counts: tuple[int, ...]
    seconds: float  # of all together


class LogCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What was read of all log files of one job since the job was found: lines, training records in them, bytes, and what was left out."""

    lines: int = 0
    records: int = 0
    bytes: int = 0  # parsed
    binary: int = 0  # lines that are no text, and runs of NULs
    oversized: int = 0  # lines too long to be a record, left out
    skipped_bytes: int = (
        0  # left out because more came than one look can parse, or lines that take long
    )
    rotations: int = 0
    truncations: int = 0
    failures: int = 0  # polls that could not read


def number(text: str | None) -> float | None:
    """The float in a text as a log writes it (1.5, 3E-05, nan, -inf); None for other text."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def whole(text: str | None) -> int | None:
    """The count in a text, of at most 15 digits (12, 1,234, 1_234); None for other text."""
    if text is None:
        return None
    if text.isdecimal() and text.isascii():  # as nearly always
        return int(text) if len(text) <= 15 else None
    digits = _SEPARATED.sub(r"\1", text.strip()) if len(text) < 40 else ""
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 15 else None


def epoch(text: str) -> str:
    """The epoch that a line names, as text; "" where it names none."""
    found = _EPOCH.search(text) if "poch" in text else None
    return found[1] or found[2] if found else ""


def duration(text: str | None, unit: str | None = "s") -> float | None:
    """The seconds in a number with its unit (ms, us; any other counts as s); None where that is no positive finite time."""
    value = number(text)
    if value is None:
        return None
    seconds = value / _PER_SECOND.get(unit or "s", 1)
    return seconds if 0 < seconds < math.inf else None


class LogFormat(Protocol):
    """Reads the log lines of one training framework. Each plugin file in `formats/` creates one."""

    @property
    def generic(self) -> bool:
        """Whether this format may also match lines of other formats, so that it must be tried last."""

    @property
    def signs(self) -> tuple[str, ...]:
        """Words in lower case of which a line must contain one to be worth parsing; empty where every line is."""

    def parse(self, line: str) -> LogRecord | None:
        """The record in one line (without its end); None where there is none. Never raises."""
