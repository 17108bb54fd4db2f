"""deploy/prometheus/: the rules ask for metrics that exist, each alert has its page, fires when it should and not when it nearly should."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from mldebug.core.model import Verdict
from mldebug.core.plugins import names
from mldebug.hardware.gpu.readings import CLOCK_EVENTS
from mldebug.hardware.health.model import COMPONENTS, HealthState, SuggestedAction
from mldebug.hardware.kernel_log.model import KernelEventKind
from mldebug.hardware.kernel_log.xids import Tier, catalogue
from shared.deploy.series import (
    FOLDER,
    JOINED,
    RECORDED,
    RULES,
    SCRAPED,
    SERIES,
    labels_of,
    load,
    queried_series,
    rules,
)

ROOT = Path(__file__).parents[3]
RUNBOOKS = ROOT / "docs/runbooks"
TESTS = sorted((FOLDER / "tests").glob("*.yaml"))


def words(kind: type[StrEnum]) -> set[str]:
    return {one.value for one in kind}


KNOWN = {
    "component": set(COMPONENTS),
    "verdict": words(Verdict),
    "xid": {str(row.xid) for row in catalogue().xids},
}


ALERTS = {rule["alert"]: rule for rule in rules(FOLDER / "alerts.yaml")}


def promtool(*arguments: object, program: str = "promtool", package: str = "prometheus") -> str:
    """What it says; missing, it fails in CI and skips elsewhere."""
    found = shutil.which(program)
    assert found or "CI" not in os.environ, f"install the package `{package}`"
    if found is None:
        pytest.skip(f"{program} is not here")
    done = subprocess.run([found, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def every_rule() -> list[Any]:
    return [
        pytest.param(rule["expr"], id=rule.get("alert") or rule["record"]) for rule in rules(*RULES)
    ]


@pytest.mark.parametrize("expression", every_rule())
def test_a_rule_asks_for_what_a_scrape_has(expression: str) -> None:
    series = dict(queried_series(expression))
    assert series
    allowed = set[str]()
    for name, chosen in queried_series(expression):
        assert name in SERIES or name in RECORDED, name
        assert set(chosen) <= labels_of(name), f"{name} has no such label"
        allowed |= labels_of(name)
        for label, values in chosen.items():
            distinct = (
                set(CLOCK_EVENTS)
                if "clock_event" in name and label == "reason"
                else KNOWN.get(label)
            )
            for value in values.split("|") if distinct and not set(values) & set(".*+") else ():
                assert value in distinct, f"{label} is never {value}"
    for joined in JOINED.findall(expression):
        assert {one.strip() for one in joined.split(",")} <= allowed, joined


@pytest.mark.parametrize("rule", ALERTS.values(), ids=ALERTS)
def test_the_words_of_an_alert_name_labels_that_it_has(rule: dict[str, Any]) -> None:
    """A label that the expression has summed away would stand there as an empty place."""
    grouped = re.findall(r"\bby\s*\(([^()]*)\)", rule["expr"])
    kept = {one.strip() for many in grouped for one in many.split(",")}
    (first, _), *_ = queried_series(rule["expr"])
    kept = kept or labels_of(first)
    assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= kept


@pytest.mark.parametrize("rule", ALERTS.values(), ids=ALERTS)
def test_an_alert_has_severity_words_and_a_page(rule: dict[str, Any]) -> None:
    name, severity = rule["alert"], rule["labels"]["severity"]
    assert severity in ("critical", "warning")
    assert rule["annotations"]["runbook_url"] == f"docs/runbooks/{name}.md"
    page = (RUNBOOKS / f"{name}.md").read_text(encoding="utf-8").splitlines()
    assert page[0] == f"# {name} ({severity})"
    assert len(page) <= 40
    assert [line for line in page if line.startswith("## ")] == ["## First look", "## Usual causes", "## What to do", "## False alarm"]  # fmt: skip


def test_no_page_is_left_over() -> None:
    pages = {file.stem for file in RUNBOOKS.glob("*.md")} - {"README"}
    assert pages == set(ALERTS)
    listed = re.findall(r"\((Mldebug\w+)\.md\)", (RUNBOOKS / "README.md").read_text(encoding="utf-8"))  # fmt: skip
    assert sorted(listed) == sorted(ALERTS)
    assert f"{len(ALERTS)} alerts" in (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("file", sorted(RUNBOOKS.glob("*.md")), ids=lambda file: file.stem)
def test_a_page_names_commands_and_metrics_that_exist(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    verbs = set(re.findall(r"(?:`|\$ |; |&& )mldebug ([a-z-]+)", text))
    assert verbs <= {name.replace("_", "-") for name in names("commands")}
    assert {name for name, _ in queried_series(text) if name.startswith("mldebug_")} <= set(SERIES)
    for link in re.findall(r"\]\(([\w./-]+)\)", text):
        assert (file.parent / link).exists(), link


def test_the_fatal_xids_are_those_of_the_catalogue() -> None:
    (xid,) = (chosen["xid"] for _, chosen in queried_series(ALERTS["MldebugGpuXidFatal"]["expr"]))
    assert xid.split("|") == [str(row.xid) for row in catalogue().xids if row.tier is Tier.FATAL]


def test_words_of_closed_sets_are_the_code_s() -> None:
    text = (FOLDER / "alerts.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r'mldebug_component_health\{[^}]*state="(\w+)"', text)) <= words(
        HealthState
    )
    assert set(re.findall(r'mldebug_kernel_event\w+\{kind="(\w+)"', text)) <= words(KernelEventKind)


@pytest.mark.parametrize("component", COMPONENTS)
def test_each_component_can_fire_an_alert_in_each_bad_state(component: str) -> None:
    """A selector without the component holds for all; what the alert leaves out, another must name."""
    for state in (HealthState.DEGRADED, HealthState.UNHEALTHY):
        chosen = [
            labels
            for rule in ALERTS.values()
            for labels in re.findall(r"mldebug_component_health\{([^}]*)\}", rule["expr"])
            if f'state="{state.value}"' in labels
        ]
        assert any(_selects(labels, component) for labels in chosen), state


def _selects(labels: str, component: str) -> bool:
    """Whether a selector of Prometheus holds for a component."""
    for operator, value in re.findall(r'component(=~|!=|=)"([^"]*)"', labels):
        if bool(re.fullmatch(value, component)) is (operator == "!="):
            return False
    return True


REPAIRS = ("dcgmi diag -r", "--gpu-reset", "RMA")


@pytest.mark.parametrize("name", ["GpuXidFatal", "GpuUnhealthy", "GpuMemoryErrors", "NvlinkDown"])
def test_the_page_of_a_broken_gpu_names_diagnosis_reset_and_return(name: str) -> None:
    text = (RUNBOOKS / f"Mldebug{name}.md").read_text(encoding="utf-8")
    assert [one for one in REPAIRS if one not in text] == []


@pytest.mark.parametrize("action", [one for one in SuggestedAction if one is not SuggestedAction.NONE])  # fmt: skip
def test_what_health_suggests_is_explained_where_its_alert_leads(action: SuggestedAction) -> None:
    pages = [(RUNBOOKS / f"Mldebug{name}.md").read_text(encoding="utf-8") for name in ("GpuUnhealthy", "ComponentDegraded")]  # fmt: skip
    assert any(f"`{action.value}`" in text for text in pages)


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_is_tested_both_ways(name: str) -> None:
    """What does not fire it must be of the metrics that it looks at, or the test would say nothing; `for` is seen to count."""
    fires, silent = [], []
    for group in (one for file in TESTS for one in load(file)["tests"]):
        for test in group.get("alert_rule_test", []):
            if test["alertname"] == name:
                (fires if test["exp_alerts"] else silent).append(group)
    assert fires
    early = [group for group in silent if group in fires]
    assert bool(early) == ("for" in ALERTS[name]), "pending, and not firing yet"
    silent = [group for group in silent if group not in early]
    assert silent
    looked_at = set(scraped(ALERTS[name]["expr"]))
    for group in silent:
        series = {re.split(r"\{", one["series"])[0] for one in group["input_series"]}
        assert series & looked_at


def scraped(expression: str) -> Iterator[str]:
    for name, _ in queried_series(expression):
        yield from scraped(RECORDED[name]) if name in RECORDED else (name,)


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_series_of_the_tests_are_as_a_scrape_has_them(file: Path) -> None:
    for one in (one for group in load(file)["tests"] for one in group["input_series"]):
        ((name, chosen),) = queried_series(one["series"])
        assert set(chosen) <= SERIES[name] | SCRAPED
        assert SERIES[name] <= set(chosen), f"{one['series']} lacks labels"


def test_promtool_accepts_the_rules() -> None:
    promtool("check", "rules", *RULES)


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_alerts_fire_and_do_not_fire(file: Path) -> None:
    promtool("test", "rules", file)


def test_the_examples_are_configurations(tmp_path: Path) -> None:
    promtool("check", "config", FOLDER / "prometheus.yaml")
    job = {"job_name": "dcgm", **load(FOLDER / "dcgm-relabel.yaml")}
    scrape = tmp_path / "prometheus.json"
    scrape.write_text(json.dumps({"scrape_configs": [job]}))
    promtool("check", "config", scrape)


def test_alertmanager_s_example_leads_where_it_should() -> None:
    file = FOLDER / "alertmanager.yaml"
    tool = {"program": "amtool", "package": "prometheus-alertmanager"}
    promtool("check-config", file, **tool)
    known = {*ALERTS, "MldebugStall"}
    matches = re.findall(r'alertname (?:=~|=|!=) "?([\w|.*+]+)"?', file.read_text(encoding="utf-8"))
    for one in (part for many in matches for part in many.split("|")):
        assert any(re.fullmatch(one, name) for name in known), one
    for alert, receivers in {
        "MldebugRunStalled severity=critical run=7f3a": "night",
        "MldebugCheckpointLate severity=critical run=7f3a": "capture,night",
        "MldebugMountStuck severity=critical instance=n1": "night",
        "MldebugAgentDown severity=warning instance=n1": "morning",
    }.items():
        sent = promtool("config", "routes", "test", f"--config.file={file}", f"alertname={alert.split()[0]}",
                        *alert.split()[1:], **tool)  # fmt: skip
        assert receivers in sent.splitlines()
