"""Small pieces of text that many parts write alike: times, counted nouns, and commands to be typed. Pure."""

import re
import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

LAST = 253_402_300_799.0  # unix seconds: the end of the year 9999, the last that has a date


def rfc3339(at: float) -> str:
    """Return unix seconds as RFC 3339 in UTC, to the millisecond; of what has no date, the nearest that has one from 1970 on."""
    moment = datetime.fromtimestamp(round(min(max(at, 0.0), LAST), 3), UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_of(time: str) -> float | None:
    """An RFC 3339 time as unix seconds; None where the text is no time."""
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return None


def message_text(value: object) -> str | None:
    """A message as a collector's JSON holds it: text, or the list of bytes by which journald writes one with colours or bars; None for anything else."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        return None
    of_bytes = all(type(one) is int and 0 <= one < 256 for one in value)
    return bytes(value).decode(errors="replace") if of_bytes else None


def plural(count: int, noun: str) -> str:
    """A count with its noun: `1 rank`, `7 ranks`, `8,192 ranks`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def moment(time: str) -> str:
    """An RFC 3339 time in UTC for people: `2026-11-21 05:50:41 UTC`; other text stays as it is."""
    found = re.fullmatch(r"(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?Z", time, re.ASCII)
    return f"{found[1]} {found[2]} UTC" if found else time


def typed(command: str, config: Path | None = None) -> str:
    """The command line `mldebug COMMAND`, with `--config FILE` where a config file was given."""
    return f"mldebug {command}" + (f" --config {shlex.quote(str(config))}" if config else "")


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The rows of a table as lines, each column as wide as its longest cell; the first row may be the header."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
