"""The agent's own log lines on stderr: with the time, unless journald is there, which stamps every line itself."""

import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO


def set_up(stream: TextIO, environ: Mapping[str, str] = os.environ) -> None:
    """Send all log records to a stream."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LogLineFormatter(timed=not is_journal(stream, environ)))
    logging.basicConfig(handlers=[handler], level=logging.INFO)


def is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Does this stream lead to journald? $JOURNAL_STREAM names its device and inode, and is inherited by shells whose
    output goes elsewhere. Source: systemd.exec(5).
    """
    try:
        facts = os.fstat(stream.fileno())
    except (OSError, ValueError):  # no real file
        return False
    return environ.get("JOURNAL_STREAM", "") == f"{facts.st_dev}:{facts.st_ino}"


class LogLineFormatter(logging.Formatter):
    """`2026-11-21T12:34:06.123+01:00 WARNING text`, in local time."""

    def __init__(self, *, timed: bool) -> None:
        super().__init__(
            "%(asctime)s %(levelname)s %(message)s" if timed else "%(levelname)s %(message)s"
        )

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging's name
        """Local time with its offset."""
        when = datetime.fromtimestamp(record.created, UTC).astimezone()
        return when.isoformat(timespec="milliseconds")
