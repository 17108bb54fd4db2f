"""docs/metrics.md is made from the declarations, and up to date."""

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mldebug.core.plugins import names, summary
from mldebug_exporters.prometheus import Prometheus, groups
from shared.docs.metrics_page import page
from shared.web.snapshots import hooked, moving, snapshot, stalled, trapped

PAGE = Path(__file__).parents[2] / "docs/metrics.md"


def made() -> str:
    return page(groups(), {name: summary("metrics", name) for name in names("metrics")})


def test_the_page_is_up_to_date(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-golden"):
        PAGE.write_text(made(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == made(), (
        "make it anew with: pytest tests/docs/test_metrics_page.py --update-golden"
    )


def test_every_series_of_a_scrape_stands_on_the_page() -> None:
    text = (
        Prometheus()
        .render(snapshot(moving(), moving(), stalled(), hooked(), trapped()))[0]
        .decode()
    )
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    rows = dict(re.findall(r"^\| `(\w+)` \|.*?\| ((?:`\w+` ?)*) ?\|", made(), re.MULTILINE))
    assert len(rows) > 30
    for one in samples:
        base = re.sub(r"_(bucket|sum|count)$", "", one.name)
        row = rows[one.name if one.name in rows else base]
        assert set(one.labels) - {"le"} == set(re.findall(r"`(\w+)`", row)), one.name


def test_a_row_fits_a_table() -> None:
    for line in made().splitlines():
        if line.startswith("| `"):
            assert line.count("|") == 7
