"""The agent's log lines on stderr. They carry the time, unless journald reads them, which adds it itself."""

import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO


def set_up(stream: TextIO, environ: Mapping[str, str] = os.environ) -> None:
    """Send all log records from INFO on to this stream."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LogLineFormatter(timed=not is_journal(stream, environ)))
    logging.basicConfig(handlers=[handler], level=logging.INFO)


def is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether this stream leads to journald.

    $JOURNAL_STREAM names its device and inode; the variable alone is not enough, since shells
    inherit it whose output goes elsewhere. Source: systemd.exec(5).
    """
    try:
        facts = os.fstat(stream.fileno())
    except (OSError, ValueError):  # no real file
        return False
    return environ.get("JOURNAL_STREAM", "") == f"{facts.st_dev}:{facts.st_ino}"


class LogLineFormatter(logging.Formatter):
    """Formats a record as `2026-11-21T12:34:06.123+01:00 WARNING text`, in local time; without the
    time where `timed` is false.
    """

    def __init__(self, *, timed: bool) -> None:
        super().__init__(
            "%(asctime)s %(levelname)s %(message)s" if timed else "%(levelname)s %(message)s"
        )

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging's name
        """Return the record's time in local time with its UTC offset, to the millisecond. `datefmt` is ignored."""
        when = datetime.fromtimestamp(record.created, UTC).astimezone()
        return when.isoformat(timespec="milliseconds")
