"""One subject, one name; one name, one thing: what the tree and the words of the code must keep."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from mldebug.core.plugins import PACKAGES

ROOT = Path(__file__).parents[3]
ROOTS = {
    "mldebug": ROOT / "mldebug",
    "agents": ROOT / "agents/mldebug_agents",
    "training": ROOT / "agents/mldebug_training",
    "exporters": ROOT / "exporters/mldebug_exporters",
}
FILES = [file for root in ROOTS.values() for file in sorted(root.rglob("*.py"))]
MOST = 15  # entries of a folder
# one file for each group of metrics, whose labels users know, and what they share
LONG = {ROOTS["exporters"] / "metrics"}
# words of an earlier dialect, as parts of the names of modules, classes and functions
RETIRED = {
    "house",
    "room",
    "rooms",
    "desk",
    "desks",
    "board",
    "boards",
    "scribe",
    "keeper",
    "witness",
    "witnesses",
    "told",
    "ledger",
    "shelf",
}
# room on a disk or in a queue is none of those rooms
FINE = {"_make_room", "_check_room", "NoRoomError"}


def words(name: str) -> set[str]:
    """The words of an identifier, in small letters."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)}


SUBJECTS = {
    "alerts", "capture", "cli", "cluster", "config", "core", "diagnosis", "hardware", "incidents", "jobs",
    "probes", "stall", "state", "status", "storage", "support", "system", "watch", "web",
}  # fmt: skip
# subjects without a test folder of their own name, and test folders that stand for no folder of that name
NO_TESTS = {"status"}  # tested by what it shows, in web/ and cli/
OTHER_TESTS = {"exporters", "repository", "training"}
# config sections by subject, where the section has another name; each name is older than the folders and stays as users know it
SECTIONS = {
    "agent": "agent", "capture": "capture", "stall": "stall", "cluster": "cluster", "metrics": "exporters", "checkpoints": "storage",
    "storage": "storage", "memory": "hardware", "health": "hardware", "gpus": "hardware", "events": "alerts", "channels": "alerts",
    "actions": "alerts", "schedulers": "jobs", "jobs": "jobs", "logs": "jobs", "transports": "cluster", "trees": "storage",
}  # fmt: skip


def classes() -> dict[str, set[str]]:
    found = defaultdict(set)
    for file in FILES:
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].add(str(file.relative_to(ROOT)))
    return found


def test_a_class_name_stands_in_one_module() -> None:
    twice = {name: sorted(files) for name, files in classes().items() if len(files) > 1}
    assert {name: files for name, files in twice.items() if name != "Options"} == {}


def test_options_belong_to_plugins() -> None:
    folders = {package.replace(".", "/") for packages in PACKAGES.values() for package in packages}
    stray = [file for file in classes()["Options"] if not any(folder in file for folder in folders)]
    assert stray == []


@pytest.mark.parametrize("root", sorted(ROOTS))
def test_no_folder_is_long(root: str) -> None:
    folders = [ROOTS[root], *(each for each in ROOTS[root].rglob("*") if each.is_dir())]
    long = {}
    for folder in folders:
        if folder.name == "__pycache__" or folder in LONG:
            continue
        entries = {each.name for each in folder.iterdir()} - {
            "__init__.py",
            "__main__.py",
            "__pycache__",
            "py.typed",
        }
        if len(entries) > MOST:
            long[str(folder.relative_to(ROOT))] = len(entries)
    assert long == {}


def test_retired_words_name_nothing() -> None:
    found = []
    for file in FILES:
        names = [file.stem, *file.relative_to(ROOT).parts[:-1]]
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                names.append(node.name)
        found += [
            f"{file.relative_to(ROOT)}: {name}"
            for name in names
            if name not in FINE and words(name) & RETIRED
        ]
    assert sorted(set(found)) == []


def test_no_variable_has_a_name_of_the_earlier_dialect() -> None:
    # names on disk and on the wire are strings (`msgspec.field(name=...)`), and stay
    hard = RETIRED - {"room", "rooms", "board", "boards", "told"}
    found = []
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            name = node.arg if isinstance(node, ast.arg) else ""
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
                name = node.id if isinstance(node, ast.Name) else node.attr
            if name.isupper():
                continue  # MAX_TOLD: how many are told
            if words(name) & hard or name == "told":
                line = getattr(node, "lineno", 0)
                found.append(f"{file.relative_to(ROOT)}:{line}: {name}")
    assert found == []


def test_a_subject_has_one_name_in_all_roots_and_in_the_tests() -> None:
    there = {
        folder.name
        for root in ("mldebug", "agents")
        for folder in ROOTS[root].iterdir()
        if folder.is_dir() and folder.name not in ("__pycache__", "agent")
    }
    assert there == SUBJECTS
    tests = {folder.name for folder in (ROOT / "tests/unit").iterdir() if folder.is_dir()} - {"__pycache__"}  # fmt: skip
    assert tests - OTHER_TESTS == SUBJECTS - NO_TESTS


def test_each_section_of_the_config_belongs_to_a_subject() -> None:
    from mldebug.config.schema import Config

    sections = set(Config.__struct_fields__)
    assert sections == set(SECTIONS)
    assert set(SECTIONS.values()) <= SUBJECTS | {"agent", "exporters"}
