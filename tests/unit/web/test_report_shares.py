"""What one owner makes of his report costs him alone: the pages of all others come."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mldebug.core.errors import AccessError
from mldebug.core.report_model import Report
from mldebug.incidents.report.stack_tree import MAX_CULPRITS, branches
from mldebug.incidents.report_store import ReportStore
from mldebug_agents.web import report_cache
from mldebug_agents.web.report_cache import HANGING, ReportCache
from shared.incidents.samples import report, sleeping, tree

MINE, THEIRS = 62_001, 62_002


def stored(root: Path, report_id: str, owner: int) -> None:
    made = msgspec.structs.replace(report(sleeping()), id=report_id)
    folder = ReportStore(root).save(made, "", {})
    os.chown(folder, owner, -1)


@pytest.mark.skipif(os.geteuid() != 0, reason="root gives reports to their owners")
def test_a_report_that_renders_for_ever_keeps_nobody_else_from_his(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """6.9 MB of culprits and spans kept the one lock: all pages were 503 for as long as it was looked at."""
    stored(tmp_path, "20261126T000000Z-bad", THEIRS)
    stored(tmp_path, "20261126T000001Z-good", MINE)
    go, real = threading.Event(), report_cache.render_page

    def slow(made: Report, home: str) -> Any:
        if made.id.endswith("bad"):
            go.wait(60)
        return real(made, home)

    monkeypatch.setattr(report_cache, "render_page", slow)
    monkeypatch.setattr(report_cache, "PATIENCE", 0.3)
    cache = ReportCache(tmp_path)
    try:
        for _ in range(2 * HANGING):  # he asks again and again
            with pytest.raises(AccessError):
                cache.page("20261126T000000Z-bad", THEIRS, "")
        monkeypatch.setattr(report_cache, "PATIENCE", 20.0)
        assert "20261126T000001Z-good" in cache.page("20261126T000001Z-good", MINE, "").html
        assert len(cache.entries(None)) == 2
    finally:
        go.set()
    monkeypatch.setattr(report_cache, "PATIENCE", 20.0)
    assert cache.page("20261126T000000Z-bad", THEIRS, "").html  # his lock is free again


def test_culprits_and_spans_without_end_are_marked_in_little_time() -> None:
    spans = ",".join(f"{rank}-{rank}" for rank in range(0, 60_000, 2))
    nodes = tree([((f"frame{number} (a.py:1)",), 1) for number in range(50)])
    nodes = tuple(msgspec.structs.replace(node, ranks=spans) for node in nodes)
    begun = time.process_time()
    found = branches(nodes, list(range(60_000)), 60_000)
    assert time.process_time() - begun < 20  # it was some hours
    assert found[0].culprits == list(range(0, MAX_CULPRITS, 2))
