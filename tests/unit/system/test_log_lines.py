"""The agent's own log lines: who stamps them."""

import io
import logging
import os
import re
import time
from pathlib import Path

import pytest

from mldebug_agents.system.service.log_lines import LogLineFormatter, is_journal

RECORD = logging.LogRecord("mldebug", logging.WARNING, "", 0, "rank %d sleeps", (3,), None)


def test_a_line_has_local_time_with_its_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        RECORD.created = 1_795_240_000.25
        text = LogLineFormatter(timed=True).format(RECORD)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert text == "2026-11-21T11:16:40.250+05:30 WARNING rank 3 sleeps"
    assert re.match(r"\d{4}-\d\d-\d\dT", LogLineFormatter(timed=True).format(RECORD))


def test_journald_stamps_its_lines_itself() -> None:
    assert LogLineFormatter(timed=False).format(RECORD) == "WARNING rank 3 sleeps"


def test_the_journal_is_known_by_its_device_and_inode(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as stream:
        facts = os.fstat(stream.fileno())
        mine = {"JOURNAL_STREAM": f"{facts.st_dev}:{facts.st_ino}"}
        assert is_journal(stream, mine)
        assert not is_journal(stream, {})
        inherited = {"JOURNAL_STREAM": f"{facts.st_dev}:{facts.st_ino + 1}"}
        assert not is_journal(stream, inherited), "a shell below journald, and its output in a file"
    assert not is_journal(stream, mine), "closed"
    assert not is_journal(io.StringIO(), mine)
