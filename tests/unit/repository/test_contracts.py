"""What import-linter is told holds for all plugins and subjects, whatever is added: each kind is in a contract, config stands on top."""

import ast
import tomllib
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

from mldebug.core.plugins import PACKAGES, load, names
from shared.system.sources import tree_of

ROOT = Path(__file__).parents[3]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]
INDEPENDENT = [each["modules"] for each in CONTRACTS if each["type"] == "independence"]
ONE_FILE = {"expositions"}  # has no neighbour
# what everybody uses: the one module of the library that defines it
CORE = {
    "rfc3339": "core.text", "plural": "core.text", "TimelineEvent": "core.report_model", "parse_duration": "core.units",
    "parse_size": "core.units", "percent": "core.units", "fold_ranks": "core.ranksets", "redact": "core.redact",
}  # fmt: skip


def covers(pattern: str, module: str) -> bool:
    """Whether import-linter finds a module by a pattern: its `*` stands for one name, without a dot."""
    return pattern.count(".") == module.count(".") and fnmatchcase(module, pattern)


def plugin_modules(kind: str) -> list[str]:
    return [load(kind, name).__name__ for name in names(kind)]


@pytest.mark.parametrize("kind", sorted(PACKAGES.keys() - ONE_FILE))
def test_no_plugin_may_import_its_neighbour(kind: str) -> None:
    """Each is in a contract, with all others of its folder."""
    for module in plugin_modules(kind):
        folder = module.rpartition(".")[0]
        wanted = [one for one in plugin_modules(kind) if one.rpartition(".")[0] == folder]
        held = [
            patterns
            for patterns in INDEPENDENT
            if all(any(covers(pattern, one) for pattern in patterns) for one in wanted)
        ]
        assert held, f"no contract of independence has all of {folder}"


def test_the_rule_is_not_blind() -> None:
    assert not any(covers(one, "mldebug.core.text") for each in INDEPENDENT for one in each)
    assert not covers("a.commands.*", "a.commands.fleet.hub")
    assert covers("a.commands.*.*", "a.commands.fleet.hub")


@pytest.mark.parametrize("name", sorted(CORE))
def test_what_everybody_uses_stands_in_the_core_and_nowhere_else(name: str) -> None:
    assert {module for module, one in _defined() if one == name} == {CORE[name]}


@cache
def _defined() -> set[tuple[str, str]]:
    """Modules of the library, and the functions and classes at their top level."""
    return {
        (".".join(file.relative_to(ROOT / "mldebug").with_suffix("").parts), node.name)
        for file in (ROOT / "mldebug").rglob("*.py")
        for node in tree_of(file.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


def test_config_stands_on_what_it_configures() -> None:
    """No subject whose settings it has imports it; those above it are what reads a whole configuration."""
    (layers,) = (each["layers"] for each in CONTRACTS if "mldebug.config" in each.get("layers", ()))
    below = {one for layer in layers[layers.index("mldebug.config") + 1 :] for one in layer.split(" | ")}  # fmt: skip
    subjects = {
        node.module
        for file in (ROOT / "mldebug/config").rglob("*.py")
        for node in ast.walk(tree_of(file.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module
    }
    configured = {".".join(one.split(".")[:2]) for one in subjects if one.startswith("mldebug.")}
    assert "mldebug.hardware" in configured  # health.thresholds
    assert configured - {"mldebug.config"} <= below


def test_families_of_metrics_are_declared_in_tables() -> None:
    """By `FamilyTable`, which says once what they have in common; a `Family` alone says it again."""
    alone = {
        name: node.lineno
        for name in names("metrics")
        for node in ast.walk(tree_of(Path(load("metrics", name).__file__ or "").read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "Family"
    }
    assert alone == {}
