"""A report's owner may write anything into its report.json: whatever can be loaded is shown, as a page and as text."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mldebug.cli.console import Console
from mldebug.core.report_model import Report
from mldebug.core.text import LAST, rfc3339
from mldebug.incidents.report.html import render_html
from mldebug.incidents.report.sanitize import tidy_report
from mldebug.incidents.report.text import print_report
from mldebug.incidents.report_store import ReportStore
from shared.incidents import samples

HUGE = (1e308, -1e308, 2**63 - 1, -(10**18))
SETS = ("xxx", "1-2-3", "-", ",", "5-1", "1e400", "\u00b2", "9" * 5000, "0-" + "9" * 30)


def changed(folder: Path, change: Callable[[dict[str, Any]], None]) -> Report:
    """A stored report after its owner has changed the file."""
    report = samples.report(
        samples.ALL["hang" if "hang" in samples.ALL else next(iter(samples.ALL))]()
    )
    store = ReportStore(folder)
    store.save(report, "", {})
    file = folder / "reports" / report.id / "report.json"
    content = json.loads(file.read_bytes())
    change(content)
    file.write_text(json.dumps(content))
    return store.load(report.id)


def show(report: Report) -> None:
    """As a page and as text."""
    assert report.diagnosis.summary in render_html(report).replace("&#39;", "'")
    print_report(report, Console())


@pytest.mark.parametrize("number", HUGE)
def test_numbers_that_cannot_be_are_shown(tmp_path: Path, number: float) -> None:
    def change(content: dict[str, Any]) -> None:
        content["stall"]["timeout_seconds"] = float(number)
        content["stall"]["collective_timeout_seconds"] = float(number)
        content["ranks"][0]["cpu_ratio"] = float(number)

    show(changed(tmp_path, change))


@pytest.mark.parametrize("ranks", SETS)
def test_a_set_of_ranks_that_is_none_is_shown(tmp_path: Path, ranks: str) -> None:
    def change(content: dict[str, Any]) -> None:
        content["tree"][0]["ranks"] = ranks
        content["groups"][0]["ranks"] = ranks

    show(changed(tmp_path, change))


@pytest.mark.parametrize("name", samples.ALL)
def test_what_we_write_is_loaded_as_it_was_written(tmp_path: Path, name: str) -> None:
    report = samples.report(samples.ALL[name]())
    ReportStore(tmp_path).save(report, "", {})
    assert ReportStore(tmp_path).load(report.id) == tidy_report(report)
    if name != "hostile":
        assert tidy_report(report) == report


def test_a_time_without_a_date_is_the_nearest_with_one() -> None:
    assert rfc3339(1e308) == rfc3339(LAST) == "9999-12-31T23:59:59.000Z"
    assert rfc3339(-1e308) == "1970-01-01T00:00:00.000Z"
    assert rfc3339(1763704241.5) == "2025-11-21T05:50:41.500Z"
