"""Nothing is shipped that only tests use, or nobody: no name that stands at its definition alone, no module that nobody imports."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from mldebug.core.plugins import PACKAGES, load, names

ROOT = Path(__file__).parents[3]
ROOTS = {
    "mldebug": ROOT,
    "mldebug_agents": ROOT / "agents",
    "mldebug_training": ROOT / "agents",
    "mldebug_exporters": ROOT / "exporters",
}
FILES = [file for root, base in ROOTS.items() for file in sorted((base / root).rglob("*.py"))]
TEXTS = [
    file
    for root, base in ROOTS.items()
    for file in (base / root).rglob("*")
    if file.suffix in (".j2", ".js", ".c", ".yaml", ".css")
]
# names that others call, by who does
CALLED = {
    "click": {"format_epilog", "shell_complete"},
    "pickle": {"find_class", "persistent_load"},
    "torch": {"get_param"},
    "logging": {"formatTime"},
    "ClusterShell": {"ev_read", "ev_hup", "ev_close", "ev_timer"},
    "the command line of the probe, by `_` and the name of an operation": {
        "_all_reduce", "_all_to_all", "_reduce", "_barrier", "_send_recv",
    },
    "the module trace, whose interface it has": {"runfunc"},
    "plugins' tests and those of a site: the world is a parameter, and its fakes ship": {"FakeReader"},
    "rich": {"on_broken_pipe"},
}  # fmt: skip
# modules that are run, or loaded by name: by what
RUN = {
    "mldebug_agents.probes.inside": "in the Python of the training environment, by its path",
    "mldebug_agents.storage.dir_sizes.child": "in a child, by its name",
    "mldebug_agents.support.demo.training": "by the launcher of the demo",
    "mldebug_agents.system.fake_reader": "by tests, those of a site's own plugins too",
    "mldebug_training.startup.sitecustomize": "by Python at its start",
    "mldebug_training.trace": "by `python -m mldebug_training.trace`",
}


def module_of(file: Path) -> str:
    base = next(base for root, base in ROOTS.items() if file.is_relative_to(base / root))
    return ".".join(file.relative_to(base).with_suffix("").parts)


def defined(tree: ast.Module) -> Iterator[str]:
    """The functions, classes and methods of a module, its constants, and the fields of its classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if not node.decorator_list:
                yield node.name
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id
        elif isinstance(node, ast.Assign) and node in tree.body:
            yield from (one.id for one in node.targets if isinstance(one, ast.Name))


def unused(sources: list[str], others: str = "") -> set[str]:
    """The names that stand once in all sources together, where they are defined."""
    times = Counter(re.findall(r"\w+", others))
    for source in sources:
        times.update(re.findall(r"\w+", source))
    found = {name for source in sources for name in defined(ast.parse(source))}
    return {name for name in found if times[name] == 1 and not name.startswith("__")}


def imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)


def test_an_unused_name_is_found() -> None:
    one = "LEFT = 1\nclass Gone:\n    field: int\n    lost: int\ndef used(): return field"
    assert unused([one, "used()"]) == {"LEFT", "Gone", "lost"}
    assert unused([one], "{{ lost }} Gone used") == {"LEFT"}


def test_no_name_stands_at_its_definition_alone() -> None:
    called = {name for names in CALLED.values() for name in names}
    found = unused([file.read_text() for file in FILES], " ".join(map(Path.read_text, TEXTS)))
    assert found - called == set()


def test_every_module_is_imported_loaded_or_run() -> None:
    used = {name for file in FILES for name in imported(file.read_text())}
    plugins = {load(kind, name).__name__ for kind in PACKAGES for name in names(kind)}
    modules = {module_of(file) for file in FILES if not file.stem.startswith("__")}
    left = modules - used - plugins
    assert {
        name for name in left if not any(f"{name}.".startswith(f"{run}.") for run in RUN)
    } == set()
