"""docs/glossary.md has every word of the command line, of reports and of metric labels that is not plain English or the field's own."""

import json
import re
from pathlib import Path

from mldebug.core.model import Role
from mldebug.core.plugins import create, names
from mldebug.hardware.health.model import HealthState
from mldebug.stall.signals import Stage
from mldebug.storage.checkpoints.model import Completeness

ROOT = Path(__file__).parents[2]
GLOSSARY = (ROOT / "docs/glossary.md").read_text()
TEXT = GLOSSARY.lower()
# English, or a word of Linux, NVIDIA and Prometheus that means here what it means there
PLAIN = {
    "at", "after", "before", "id", "kind", "name", "pid", "reason", "schema", "state", "source", "count", "user", "version", "versions", "threads",
    "frames", "frame", "tid", "note", "words", "what", "why", "how", "seconds", "bytes", "path", "device", "uuid", "gpu", "gpus", "mount",
    "mountpoint", "fstype", "folder", "link", "type", "result", "outcome", "nodes", "ranks", "op", "dtype", "settings", "xid", "read", "cause",
    "vbios", "serial", "sensor", "recording", "reason_code", "pci_bus_id", "driver_version", "mig_mode", "location", "limit", "availability",
    "cgroup", "captures", "changes", "change", "culprits", "timeline", "tree", "children", "looks", "detected_at", "reported_at", "taken_at",
    "started_at", "stalled_since", "duration_seconds", "timeout_seconds", "last_seen", "way_out", "log", "log_source", "processes", "power_watts",
    "usual_watts", "sure", "memory_traffic", "least_busy_ratio", "most_busy_ratio", "sm_active_ratio", "cpu_ratio", "doing", "hardware",
    "xid_catalogue", "works", "step_age", "phase_age", "last_call", "last_call_age", "last_collective", "trace", "groups", "job", "event",
}  # fmt: skip
COMMANDS = {  # verbs that are English; the others are words of the glossary
    "agent", "check_config", "completion", "diagnose", "dump", "gpus", "notify", "reports", "run", "share", "status", "top", "trace", "up", "web", "doctor", "demo",
}  # fmt: skip


def lacking(words: set[str]) -> list[str]:
    """Those that the glossary does not have, as they are written or as words."""
    return sorted(
        word
        for word in words
        if word not in PLAIN
        and not any(
            re.search(rf"\b{one}s?\b", TEXT)
            for one in {word.lower(), word.lower().replace("_", " ").rstrip("s")}
        )
    )


def test_a_word_that_is_not_there_is_found() -> None:
    assert lacking({"culprit", "frobnication"}) == ["frobnication"]


def test_every_label_of_a_metric_is_there() -> None:
    labels = {label for name in names("metrics") for family in create("metrics", name).families for label in family.labels}  # fmt: skip
    assert len(labels) > 40
    assert lacking(labels) == []


def test_every_word_of_a_report_is_there() -> None:
    schema = json.loads((ROOT / "mldebug/incidents/report/report.schema.json").read_text())
    keys = {key for one in schema["$defs"].values() for key in one.get("properties", {})}
    assert len(keys) > 60
    assert lacking(keys) == []


def test_every_state_that_people_read_is_there() -> None:
    states = {str(one) for kind in (Role, Stage, Completeness, HealthState) for one in kind}
    assert [state for state in states if f"`{state}`" not in GLOSSARY] == []


def test_every_command_is_there() -> None:
    assert lacking({name for name in names("commands") if name not in COMMANDS}) == []


def test_a_word_stands_once() -> None:
    found = [
        word
        for row in re.findall(r"^\| ([^|]+) \|", GLOSSARY, re.MULTILINE)
        for word in row.split(", ")
    ]
    words = [word for word in found if word not in ("word", "---")]
    assert sorted({word for word in words if words.count(word) > 1}) == []
