"""CONTRIBUTING's map of the folders and list of what a plugin needs are true."""

import re
from pathlib import Path

import pytest

from mldebug.core.model import Verdict
from mldebug.core.plugins import PACKAGES, names

ROOT = Path(__file__).parents[3]
README, CONTRIBUTING = (ROOT / "README.md").read_text(), (ROOT / "CONTRIBUTING.md").read_text()
ROOTS = ("mldebug", "agents/mldebug_agents", "agents/mldebug_training", "exporters/mldebug_exporters")  # fmt: skip
# files in which every plugin of the kind stands by its name
NAMED = {
    "actions": ("docs/actions.md", "tests/unit/alerts/test_actions.py"),
    "channels": ("docs/notifications.md", "tests/unit/alerts/test_channels.py"),
    "checkpoints": ("docs/checkpoints.md", "tests/unit/storage/test_layout_examples.py"),
    "commands": ("README.md",),
    "detectors": ("docs/verdicts.md",),
    "gpus": ("docs/gpus.md",),
    "hub_stores": ("tests/unit/fleet/test_hub_stores.py", "docs/fleet.md"),
    "hub_transports": ("tests/unit/fleet/test_hub_transports.py", "docs/fleet.md"),
    "launchers": ("tests/unit/jobs/test_launchers.py",),
    "logs": ("tests/unit/jobs/test_log_formats.py",),
    "pages": ("docs/web.md",),
    "probes": ("docs/probes.md", "README.md"),
    "schedulers": ("docs/scheduler.md",),
    "transports": ("docs/across-nodes.md",),
}


def rows() -> dict[str, str]:
    """What CONTRIBUTING says that a plugin needs, by kind."""
    part = CONTRIBUTING.partition("### What a plugin needs")[2].partition("\nThen ")[0]
    found = re.findall(r"^\| (`[^|]*) \| ([^\n]*) \|$", part, re.MULTILINE)
    return {kind: needs for kinds, needs in found for kind in re.findall(r"`(\w+)`", kinds)}


def test_every_kind_of_plugin_is_listed() -> None:
    assert set(rows()) == set(PACKAGES)


@pytest.mark.parametrize("kind", NAMED)
def test_every_plugin_has_what_its_kind_needs(kind: str) -> None:
    for path in NAMED[kind]:
        assert path in rows()[kind] or (path == "README.md" and "README" in rows()[kind])
        text = (ROOT / path).read_text()
        assert [name for name in names(kind) if name not in text and name.replace("_", "-") not in text] == []  # fmt: skip


def test_every_path_that_a_kind_needs_is_there() -> None:
    for needs in rows().values():
        paths = re.findall(r"`((?:mldebug|docs|tests)/[^`]*)`", needs)
        assert [path for path in paths if not (ROOT / path).exists()] == []


def test_a_verdict_has_all_that_is_listed() -> None:
    page = (ROOT / "docs/verdicts.md").read_text()
    examples = (ROOT / "tests/docs/test_verdict_page.py").read_text()
    for verdict in Verdict:
        assert f"| [`{verdict}`](#{verdict}) |" in page
        assert f"\n### `{verdict}`\n" in page
        assert f"Verdict.{verdict.name}: (" in examples, verdict


@pytest.mark.parametrize("root", ROOTS)
def test_every_folder_stands_on_the_map(root: str) -> None:
    """Of each root, and the roots themselves."""
    plan = CONTRIBUTING.partition("## Where things are")[2].split("```")[1]
    assert f"{root}/ " in plan
    folders = [one.name for one in (ROOT / root).iterdir() if one.is_dir() and one.name != "__pycache__"]  # fmt: skip
    assert len(folders) > 2
    assert [name for name in folders if not re.search(rf"(?<![\w/]){name}/", plan)] == []


def test_every_folder_on_the_map_is_there() -> None:
    plan = CONTRIBUTING.partition("## Where things are")[2].split("```")[1]
    there = {str(one.relative_to(ROOT / root)) for root in ROOTS for one in (ROOT / root).rglob("*")}  # fmt: skip
    difference = {one.rstrip("/") for one in re.findall(r"(?<![\w/])[\w/]+/(?![\w])", plan)} - set(
        ROOTS
    )
    tails = {path.split("/", 1)[-1] for path in there} | {path.rsplit("/", 1)[-1] for path in there}
    assert sorted(name for name in difference if name not in there | tails) == []
