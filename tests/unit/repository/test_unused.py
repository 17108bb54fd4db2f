"""Nothing is shipped that only tests use, or nobody: no name that stands at its definition alone, no module that nobody imports."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from mldebug.core.plugins import PACKAGES, load, names
from shared.system.sources import nodes_of, tree_of

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
    "mldebug_agents.agent.inspection_child": "in a child, by its name",
    "mldebug_agents.agent.serving": "by the agent, by its name, once its helper is forked",
    "mldebug_agents.cli.node_search": "where the agent does not answer for the node, by its name",
    "mldebug_agents.cluster.peers.routes": "for the first client of the agent, by its name",
    "mldebug_agents.support.replay.serving": "by the agent that replays, by its name",
    "mldebug_agents.cluster.fanout.child": "in a child, by its name",
    "mldebug_agents.probes.inside": "in the Python of the training environment, by its path",
    "mldebug_agents.storage.dir_sizes.child": "in a child, by its name",
    "mldebug_agents.support.demo.training": "by the launcher of the demo",
    "mldebug_agents.system.fake_reader": "by tests, those of a site's own plugins too",
    "mldebug_training.startup.sitecustomize": "by Python at its start",
    "mldebug_training.tracing.attach": "in a process that is traced while it runs, by the file that Python runs there",
    "mldebug_training.trace": "by `python -m mldebug_training.trace`",
}


def module_of(file: Path) -> str:
    base = next(base for root, base in ROOTS.items() if file.is_relative_to(base / root))
    return ".".join(file.relative_to(base).with_suffix("").parts)


def defined(tree: ast.Module) -> Iterator[str]:
    """The functions, classes and methods of a module, its constants, and the fields of its classes."""
    for node in nodes_of(tree):
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
    found = {name for source in sources for name in defined(tree_of(source))}
    return {name for name in found if times[name] == 1 and not name.startswith("__")}


def imported(source: str) -> Iterator[str]:
    for node in nodes_of(tree_of(source)):
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


# names of modules that only others read, by who does
READ = {
    "the registry of plugins": {"create", "Options", "problems"},
    "tests, which write the file anew": {"help_texts.written", "table.written"},
    "users' training loops": {"rank_print.dropped_lines"},
    "options of a site's own plugins": {"units.Size"},
    "readers of the code: the values that a field may have, which tests hold rules to": {"analysis.KINDS", "model.COMPONENTS"},
    "Python": {"__getattr__", "__version__", "__all__"},
}  # fmt: skip
WELL_READ = {name for names in READ.values() for name in names}


def given(node: ast.stmt) -> set[str]:
    """The names that a statement of a module gives; none for what a decorator hands on, as click's do."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return set() if node.decorator_list else {node.name}
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return {node.target.id}
    targets = node.targets if isinstance(node, ast.Assign) else []
    return {one.id for one in targets if isinstance(one, ast.Name)}


def loads(node: ast.AST) -> Iterator[str]:
    """The names that are read in a part of a module, by themselves, behind a dot or in a string."""
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
            yield each.id
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield from re.findall(r"\w+", each.value) if len(each.value) < 100 else ()


def unread(sources: dict[str, str], others: str = "") -> set[str]:
    """`module.name` of what a module gives, and neither reads itself elsewhere nor another one imports from it or reads behind a dot."""
    trees = {name: tree_of(source) for name, source in sources.items()}
    taken = set(re.findall(r"\w+", others))
    for tree in trees.values():
        for node in nodes_of(tree):
            if isinstance(node, ast.ImportFrom):
                module = (node.module or "").rpartition(".")[2]
                taken |= {f"{module}.{each.name}" for each in node.names}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                taken.add(node.attr)
    found = set()
    for name, tree in trees.items():
        parts = [(given(node), set(loads(node))) for node in tree.body]
        times = Counter(word for _, read in parts for word in read)
        for gives, read in parts:
            alone = {one for one in gives - taken if times[one] == (one in read)}
            found |= {
                f"{name}.{one}" for one in alone if f"{name.rpartition('.')[2]}.{one}" not in taken
            }
    return found


def test_a_name_that_another_module_has_too_is_found_where_nobody_reads_it() -> None:
    sources = {
        "a": "MOST = 1\nLEAST = 2\ndef f(): return LEAST\ndef g(): return g()",
        "b": "MOST = 2\nfrom a import f\nimport c\nf(MOST, c.h)",
        "c": "def h(): ...\ndef k(): ...",
    }
    assert unread(sources) == {"a.MOST", "a.g", "c.k"}
    assert unread(sources, "{{ k() }}") == {"a.MOST", "a.g"}


def test_every_name_of_a_module_is_read() -> None:
    sources = {module_of(file).removesuffix(".__init__"): file.read_text() for file in FILES}
    found = {
        one
        for one in unread(sources, " ".join(map(Path.read_text, TEXTS)))
        if not WELL_READ & {one.rpartition(".")[2], ".".join(one.split(".")[-2:])}
        and not any(one.startswith(f"{run}.") for run in RUN)
    }
    assert sorted(found) == []
