"""One style for all metrics: a family is a row of a `FamilyTable`, written at the top of its group's file."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from mldebug.core.plugins import create, names
from mldebug_exporters import metrics
from mldebug_exporters.exposition.families import Family, FamilyTable, Sample, known

FOLDER = Path(metrics.__path__[0])
ROWS = ("gauge", "counter", "info", "histogram")
TABLES = ("FamilyTable", "labelled")


def _calls(tree: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """Every call of a plain or dotted name, by its last word."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            yield getattr(node.func, "attr", getattr(node.func, "id", "")), node


def misplaced(source: str) -> list[str]:
    """What a file of metrics declares in another way than as rows of its own tables, as text."""
    tree = ast.parse(source)
    tables = {
        ast.unparse(node.targets[0])
        for node in tree.body
        if isinstance(node, ast.Assign) and any(name in TABLES for name, _ in _calls(node.value))
    }
    inside = {
        id(call)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.Lambda)
        for _, call in _calls(node)
    }
    return [
        ast.unparse(call)
        for name, call in _calls(tree)
        if name in ("Family", "row")
        or (name == "FamilyTable" and id(call) in inside)
        or (name in ROWS and (id(call) in inside or _owner(call) not in tables))
    ]


def _owner(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[0]


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: path.stem)
def test_every_family_is_a_row_of_a_table_at_the_top_of_its_file(path: Path) -> None:
    assert misplaced(path.read_text()) == []


@pytest.mark.parametrize("name", names("metrics"))
def test_a_group_has_the_families_of_its_rows_and_no_others(name: str) -> None:
    (file,) = FOLDER.rglob(f"{name}.py")
    source = file.read_text()
    for shared in file.parent.glob("_[a-z]*.py"):
        source += shared.read_text() if shared.stem in source else ""
    rows = [ast.unparse(call) for word, call in _calls(ast.parse(source)) if word in ROWS]
    assert len(create("metrics", name).families) == len(rows) > 0


@pytest.mark.parametrize(
    "line",
    [
        'X = Family(name="mldebug_x", kind="gauge", help="X.")',
        'X = TABLE.row("gauge", "x", "X.")',
        'X = families.TABLE.gauge("x", "X.")',
        'def one(name):\n    return TABLE.gauge(name, "X.")',
        'def table():\n    return FamilyTable("run")',
    ],
)
def test_another_style_is_noticed(line: str) -> None:
    start = 'TABLE = FamilyTable("run")\nPART = TABLE.labelled("rank")\n'
    assert misplaced(start + line)
    assert not misplaced(start + 'X = TABLE.gauge("x", "X.")\nPART.counter("y", "Y.")')


def test_what_is_not_known_has_no_sample_and_zero_has_one() -> None:
    table = FamilyTable("run")
    here: Family = table.gauge("here", "Here.")
    away = table.gauge("away", "Away.")
    assert list(known(("r",), (here, 0.0), (away, None))) == [Sample(here, ("r",), 0.0)]
