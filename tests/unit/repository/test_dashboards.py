"""deploy/grafana/: the dashboards are those that the code builds, each panel can be read, and asks for what a scrape has."""

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mldebug.hardware.health.model import HealthState
from shared.deploy.dashboards import BOARDS, FOLDER, Asking, queries, titled
from shared.deploy.series import JOINED, RECORDED, SERIES, labels_of, queried_series, rules

ROOT = Path(__file__).parents[3]
KINDS = {"stat", "timeseries", "table", "state-timeline"}
GRAFANA = {"__rate_interval", "__data", "__url_time_range", "1"}  # what Grafana itself fills in
ALERTS = {"ALERTS", "ALERTS_FOR_STATE"}
ALERT_LABELS = {"alertname", "alertstate"}
COUNTED = 24  # columns of Grafana's grid


def test_the_dashboards_are_what_the_code_builds(tmp_path: Path) -> None:
    """If not: python deploy/grafana/build.py"""
    script = FOLDER.parent / "build.py"
    subprocess.run([sys.executable, script, tmp_path], check=True, timeout=60)
    built = {file.name: file.read_text(encoding="utf-8") for file in tmp_path.iterdir()}
    assert built == {file.name: file.read_text(encoding="utf-8") for file in FOLDER.iterdir()}


def panels() -> list[Any]:
    return [pytest.param(board, panel, id=titled(board, panel)) for board in BOARDS.values() for panel in board["panels"]]  # fmt: skip


@pytest.mark.parametrize(("board", "panel"), panels())
def test_a_panel_says_what_it_shows_and_in_which_unit(board: Any, panel: Any) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    assert panel["type"] in KINDS
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert defaults["unit"]
    for target in panel["targets"]:
        assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert target["legendFormat"]
        assert target["instant"] == (panel["type"] == "table")
        assert (target.get("format") == "table") == (panel["type"] == "table")


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_panels_lie_beside_each_other(board: Any) -> None:
    taken = [
        (x, y)
        for at in (panel["gridPos"] for panel in board["panels"])
        for x, y in itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"]))
    ]  # fmt: skip
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < COUNTED
    for key in ("id", "title"):
        values = [panel[key] for panel in board["panels"]]
        assert len(values) == len(set(values))


def every_query() -> list[Any]:
    return [pytest.param(one, id=one.name) for one in queries()]


@pytest.mark.parametrize("query", every_query())
def test_a_query_asks_for_what_a_scrape_has(query: Asking) -> None:
    allowed = ALERT_LABELS if "ALERTS" in query.expression else set[str]()
    found = dict(queried_series(query.expression))
    assert found or allowed
    for name, chosen in queried_series(query.expression):
        assert name in SERIES or name in RECORDED, name
        assert set(chosen) <= labels_of(name), f"{name} has no such label"
        allowed |= labels_of(name)
        if name == "mldebug_component_health":
            assert chosen["state"] in {state.value for state in HealthState}
    for joined in JOINED.findall(query.expression):
        assert {one.strip() for one in joined.split(",") if one.strip()} <= allowed, joined
    for label in re.findall(r"\{\{(\w+)\}\}", query.legend):
        assert label in allowed | {"url", "__name__"}, f"no label {label} to be named by"


@pytest.mark.parametrize("query", every_query())
def test_a_legend_names_what_the_query_keeps(query: Asking) -> None:
    """A label that is summed away would stand there as an empty place."""
    kept = re.search(r"(?:sum|max|min|avg|count) by \(([^()]*)\)", query.expression)
    if kept and "on (" not in query.expression:
        labels = {one.strip() for one in kept[1].split(",")} | {"url"}
        assert set(re.findall(r"\{\{(\w+)\}\}", query.legend)) <= labels


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_variables_are_declared_and_used(board: Any) -> None:
    declared = {one["name"] for one in board["templating"]["list"]}
    text = json.dumps({key: value for key, value in board.items() if key != "templating"})
    text += json.dumps([one.get("query") for one in board["templating"]["list"]])
    used = set(re.findall(r"\$\{?(\w+)", text))
    assert used - GRAFANA <= declared
    assert declared <= used
    for one in board["templating"]["list"]:
        for name, chosen in queried_series(str(one.get("query", ""))):
            assert set(chosen) <= labels_of(name)


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_links_lead_somewhere(board: Any) -> None:
    boards = {one["uid"] for one in BOARDS.values()}
    text = json.dumps(board)
    for page in re.findall(r"\$\{docs\}/([\w./-]+\.md)", text):
        assert (ROOT / "docs" / page).exists(), page
    for uid, variable in re.findall(r"/d/([\w-]+)\?.*?var-(\w+)=", text):
        assert uid in boards
        (other,) = (one for one in BOARDS.values() if one["uid"] == uid)
        assert variable in {one["name"] for one in other["templating"]["list"]}
    assert board["tags"] == ["mldebug"]
    assert [one["tags"] for one in board["links"]] == [["mldebug"]]


@pytest.mark.parametrize(("board", "panel"), panels())
def test_a_row_s_link_names_columns_that_it_has(board: Any, panel: Any) -> None:
    """A column that has another name in the table is found by nobody."""
    labels = ALERT_LABELS.union(*(labels_of(name) for one in panel["targets"] for name, _ in queried_series(one["expr"])))  # fmt: skip
    named = [one["options"].get("renameByName", {}) for one in panel.get("transformations", [])]
    for label in re.findall(r"\$\{__data\.fields\.(\w+)\}", json.dumps(panel)):
        assert label in labels
        assert not any(label in one for one in named)


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_incidents_are_annotations_with_a_link_to_their_report(board: Any) -> None:
    (entry,) = board["annotations"]["list"]
    assert "mldebug_incident_open_info" in entry["expr"]
    assert '"url", "${reports}/$1", "report"' in entry["expr"]
    assert entry["textFormat"] == '<a href="{{url}}">Report {{report}}</a>'


def test_dashboards_ask_for_recorded_series_of_one_file_alone() -> None:
    """The names of dcgm-exporter are for its own dashboards."""
    ours = {rule["record"] for rule in rules(ROOT / "deploy/prometheus/rules.yaml")}
    wanted = {
        name for one in queries() for name, _ in queried_series(one.expression) if ":" in name
    }
    assert wanted <= ours
