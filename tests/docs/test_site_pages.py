"""docs/settings.md and docs/commands.md are made from the code, up to date, and leave nothing out."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest
import yaml

import commands_page
import settings_page
from mldebug.cli.main import cli
from mldebug.config.schema import Config, effective_yaml
from mldebug.core.plugins import load, names, options_of

DOCS = Path(__file__).parents[2] / "docs"
MADE = {"settings.md": settings_page.page, "commands.md": commands_page.page}
PLUGINS = {
    "logs": "log",
    "transports": "transport",
    "channels": "channel",
    "schedulers": "scheduler",
    "gpus": "gpu",
    "actions": "step",
}
ENTRIES = {"jobs.expected": "scheduler", "storage.quotas": "limit"}  # one of the keys of an entry


@cache
def settings() -> dict[str, dict[str, tuple[str, ...]]]:
    """The rows of the page: by section or plugin, by key, the other cells."""
    parts = re.split(r"^##+ (.+)$", settings_page.page(), flags=re.MULTILINE)
    return {
        title: {
            key: tuple(re.split(r" (?<!\\)\| ", rest))
            for key, rest in re.findall(r"^\| `(\S+)` \| (.+) \|$", part, re.MULTILINE)
        }
        for title, part in zip(parts[1::2], parts[2::2], strict=True)
    }


def leaves(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    else:
        yield path


@pytest.mark.parametrize("name", MADE)
def test_the_page_is_up_to_date(name: str, request: pytest.FixtureRequest) -> None:
    made = MADE[name]()
    if request.config.getoption("--update-golden"):
        (DOCS / name).write_text(made, encoding="utf-8")
    assert (DOCS / name).read_text(encoding="utf-8") == made, (
        "make it anew with: pytest tests/docs/test_site_pages.py --update-golden"
    )


def test_every_setting_stands_on_the_page() -> None:
    """Held against what `check-config --print` prints, which is made another way."""
    wanted = set(leaves(yaml.safe_load(effective_yaml(Config()))))
    values = {f"{section}.{key}" for section, rows in settings().items() for key in rows}
    rooms = {"logs", "transports", "channels", "schedulers", "gpus", "actions.steps"}
    assert wanted - values == rooms
    for path, key in ENTRIES.items():
        assert f"{path}.NAME.{key}" in values


@pytest.mark.parametrize(
    ("room", "name"), [(room, name) for room in PLUGINS for name in names(room)]
)
def test_every_setting_of_a_plugin_stands_on_the_page(room: str, name: str) -> None:
    wanted = [field.name for field in msgspec.structs.fields(options_of(load(room, name)))]
    assert list(settings()[f"{PLUGINS[room]} {name}"]) == wanted


def test_every_setting_has_a_default_a_type_and_a_meaning() -> None:
    rows = [(key, cells) for rows in settings().values() for key, cells in rows.items()]
    assert len(rows) > 150
    assert not [key for key, cells in rows if len(cells) != 3 or not all(cells)]
    assert not [key for key, cells in rows if len(cells[2].split()) < 2]


@pytest.mark.parametrize(
    ("section", "key", "cells"),
    [
        ("stall", "interval", ("`5s`", "duration 500ms to 1m", "between two looks at all jobs")),
        ("capture", "workers", ("`auto`", "`auto` or whole number 1 to 64")),
        ("storage", "canary.size", ("`64KiB`", "size 1B to 16MiB", "of the file")),
        ("agent", "state_dir", ("`/var/lib/mldebug`", "absolute path")),
        ("channel email", "security", ("`starttls`", "`starttls`, `tls`, `none`")),
        ("health", "thresholds.nvlink_down", ("`0`", "whole number from 0 or `null`")),
    ],
)
def test_a_row_says_what_the_code_says(section: str, key: str, cells: tuple[str, ...]) -> None:
    assert settings()[section][key][: len(cells)] == cells


def test_what_is_no_code_is_no_markdown() -> None:
    bare = re.sub(r"`[^`\n]*`|\\.|<!--.*?-->", "", settings_page.page(), flags=re.DOTALL)
    assert not re.findall(r"^\|.*[*<].*$", bare, re.MULTILINE)


def test_every_command_stands_on_its_page() -> None:
    result = commands_page.page()
    for name in names("commands"):
        assert f"\n## mldebug {name.replace('_', '-')}\n" in result
    assert "\n### mldebug probe collectives\n" in result


def test_the_page_is_the_same_whatever_ran_before() -> None:
    """Click keeps the help option of the first context of a command."""
    command = cli.get_command(click.Context(cli), "diagnose")
    assert command is not None
    command._help_option = None
    assert "--help" in command.get_help(click.Context(command, info_name="diagnose"))
    assert commands_page.page() == (DOCS / "commands.md").read_text(encoding="utf-8")
