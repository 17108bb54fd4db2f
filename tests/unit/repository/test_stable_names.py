"""What users type, scrape and read is extended and never renamed: all names of version 0.1.0 are there still."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from mldebug.config.schema import Config
from mldebug_agents.cli.completion.table import Verb, read_table

ROOT = Path(__file__).parents[3]
OLDER: dict[str, list[str]] = json.loads((ROOT / "tests/fixtures/names-0.1.0.json").read_text())
DEEPEST = 6


def settings(type_: Any, above: str = "", depth: int = 0) -> Iterator[str]:
    """The keys of a section of the configuration, as `stall.timeout`, with those below it."""
    for part in get_args(type_):
        yield from settings(part, above, depth)
    if not (isinstance(type_, type) and issubclass(type_, msgspec.Struct)) or depth == DEEPEST:
        return
    hints = get_type_hints(type_)
    for field, key in zip(type_.__struct_fields__, type_.__struct_encode_fields__, strict=True):
        yield f"{above}{key}"
        yield from settings(hints[field], f"{above}{key}.", depth + 1)


def commands(verb: Verb, above: str = "") -> Iterator[str]:
    """The commands below a command, and their options, as `reports list --json`."""
    for parameter in verb.parameters:
        yield from (f"{above}{name}" for name in parameter.names)
    for below in verb.verbs:
        yield f"{above}{below.name}"
        yield from commands(below, f"{above}{below.name} ")


def report_keys() -> Iterator[str]:
    schema = json.loads((ROOT / "mldebug/incidents/report/report.schema.json").read_text())
    for name, part in schema["$defs"].items():
        yield from (f"{name}.{key}" for key in part.get("properties", ()))


NOW = {
    "settings": set(settings(Config)),
    "commands": set(commands(read_table())),
    "metrics": set(re.findall(r"mldebug_[a-z0-9_]+", (ROOT / "docs/metrics.md").read_text())),
    "report.json": set(report_keys()),
}


@pytest.mark.parametrize("kind", sorted(NOW))
def test_no_name_that_users_meet_is_gone(kind: str) -> None:
    assert len(OLDER[kind]) > 100
    assert set(OLDER[kind]) - NOW[kind] == set()
    assert len(NOW[kind]) > len(OLDER[kind])
