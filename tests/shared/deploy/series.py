"""What a scrape may have, and what PromQL asks for: for the tests of rules and dashboards."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from mldebug_exporters.exposition.collect import OWN
from mldebug_exporters.prometheus import groups

FOLDER = Path(__file__).parents[3] / "deploy/prometheus"
RULES = sorted(FOLDER / name for name in ("rules.yaml", "alerts.yaml", "dcgm-names.yaml"))

SCRAPED = {"instance", "job"}  # labels that Prometheus adds
METRIC = re.compile(r"\b(mldebug[\w:]+|up)\b(\{[^}]*\})?")
MATCHER = re.compile(r'(\w+)(?:=~|!=|!~|=)"([^"]*)"')
JOINED = re.compile(r"\b(?:by|on|ignoring|group_left)\s*\(([^()]*)\)")


def load(file: Path) -> Any:
    """A YAML file."""
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def rules(*files: Path) -> list[dict[str, Any]]:
    """All of these files."""
    return [rule for file in files for group in load(file)["groups"] for rule in group["rules"]]


RECORDED = {rule["record"]: rule["expr"] for rule in rules(*RULES) if "record" in rule}


def declared() -> dict[str, set[str]]:
    """What a scrape may have: series -> its labels."""
    facts = {"up": set[str]()}
    for family in [*OWN, *(one for group in groups().values() for one in group.families)]:
        many = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
        facts |= {family.series + end: {*family.labels, *(("le",) if end == "_bucket" else ())} for end in many}  # fmt: skip
    return facts


SERIES = declared()


def queried_series(expression: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Each series that an expression asks for, and by which labels."""
    for name, chosen in METRIC.findall(expression):
        yield name, dict(MATCHER.findall(chosen))


def labels_of(name: str) -> set[str]:
    """Those of a scraped series, or of all that a recorded one is made of."""
    if name in SERIES:
        return SERIES[name] | SCRAPED
    made = set(re.findall(r'label_replace\(.*?"(\w+)", "\$1"', RECORDED[name]))
    made |= set(re.findall(r'"(\w+)", "[^"]*\$1", "\w+"', RECORDED[name]))
    return made.union(*(labels_of(one) for one, _ in queried_series(RECORDED[name])))
