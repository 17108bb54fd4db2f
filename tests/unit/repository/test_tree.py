"""The shape of the code: short files and functions, no import cycles, and each thing where a newcomer looks first."""

import ast
import dataclasses
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import cast

import pytest

from mldebug_agents.incidents.manager import IncidentManager
from mldebug_agents.incidents.remote import RemoteCases
from mldebug_agents.state.store import StateStore
from mldebug_agents.system.context import Context
from shared.system.sources import nodes_of, tree_of

ROOT = Path(__file__).parents[3]
BASES = {"mldebug": "", "mldebug_agents": "agents", "mldebug_training": "agents", "mldebug_exporters": "exporters"}  # fmt: skip
LINES = 400  # of a file
FUNCTION = 60  # lines of a function, its decorators not counted
# what keeps or does something for the agent, and the subjects that put such parts together: the agent, and commands for themselves
PART = re.compile(r"(?:Monitors?|Controller|Manager|Notifier|Tracker|Store)$")
BUILDERS = ("agent", "cli", "support")
GUIDE = (ROOT / "CONTRIBUTING.md").read_text()

Graph = Mapping[str, set[str]]


@cache
def sources() -> dict[str, str]:
    """The text of every module, by its dotted name; that of a package is the name of its folder."""
    found = {}
    for root, base in BASES.items():
        for file in sorted((ROOT / base / root).rglob("*.py")):
            parts = file.relative_to(ROOT / base).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file.read_text()
    return found


def imported(name: str, tree: ast.Module, modules: Mapping[str, object]) -> Iterator[str]:
    """The modules that a module imports, wherever in it, by a word too; of `from a import b` it is a.b where that is a module, else a."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            words = (each.value for each in node.args if isinstance(each, ast.Constant))
            yield from (each for each in words if each in modules)
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in modules)
        elif isinstance(node, ast.ImportFrom):
            above = name.split(".")[: -node.level] if node.level else []
            module = ".".join([*above, node.module] if node.module else above)
            for each in node.names:
                full = f"{module}.{each.name}"
                yield from [full] if full in modules else [module] if module in modules else []


@cache
def imports() -> dict[str, set[str]]:
    texts = sources()
    return {name: set(imported(name, tree_of(text), texts)) - {name} for name, text in texts.items()}  # fmt: skip


def on_cycles(graph: Graph) -> set[str]:
    """The nodes of a graph that can be reached from themselves."""
    left = {node: set(others) for node, others in graph.items()}
    while ends := {node for node, others in left.items() if not others & left.keys()}:
        left = {node: others for node, others in left.items() if node not in ends}
    while starts := left.keys() - set().union(*left.values()):
        left = {node: others for node, others in left.items() if node not in starts}
    return set(left)


def test_a_cycle_is_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}, "e": set[str]()}
    assert on_cycles(graph) == {"b", "c"}
    assert on_cycles({"a": {"b"}, "b": {"c"}, "c": set()}) == set()


def test_modules_import_each_other_in_no_cycle() -> None:
    assert on_cycles(imports()) == set()


@pytest.mark.parametrize("root", sorted(BASES))
def test_subjects_import_each_other_in_no_cycle(root: str) -> None:
    """The folders of a root, each as one."""
    graph: dict[str, set[str]] = defaultdict(set)
    for name, others in imports().items():
        if name.startswith(f"{root}."):
            own = name.split(".")[1]
            graph[own] |= {one.split(".")[1] for one in others if one.startswith(f"{root}.")} - {
                own
            }
    assert len(graph) > 2
    assert on_cycles(graph) == set()


def test_no_file_is_long() -> None:
    long = {name: text.count("\n") for name, text in sources().items() if text.count("\n") > LINES}
    assert long == {}


def test_no_function_is_long() -> None:
    long = {
        f"{name}.{node.name}": lines
        for name, text in sources().items()
        for node in nodes_of(tree_of(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION
    }
    assert long == {}


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("mldebug/jobs/logs/formats/huggingface.py", "def parse("),
        ("mldebug/stall/decision.py", "-> StallDecision"),
        ("agents/mldebug_agents/hardware/gpu/nvml/library.py", "nvml.nvmlLib = library"),
        ("exporters/mldebug_exporters/channels/email.py", "smtplib"),
        ("mldebug/storage/checkpoints/completeness.py", "Completeness."),
    ],
    ids=["a log line is parsed", "stalled is decided", "NVML is read", "an e-mail is sent", "a checkpoint is judged whole"],
)  # fmt: skip
def test_what_a_newcomer_looks_for_stands_where_its_name_says(path: str, words: str) -> None:
    assert words in (ROOT / path).read_text()


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("log format", "mldebug/jobs/logs/formats/"),
        ("stall decision", "mldebug/stall/decision.py"),
        ("nvml", "agents/mldebug_agents/hardware/gpu/nvml/"),
        ("email", "exporters/mldebug_exporters/channels/email.py"),
        ("checkpoint complete", "mldebug/storage/checkpoints/completeness.py"),
    ],
)
def test_a_newcomer_finds_it_by_the_first_words_that_come_to_mind(words: str, place: str) -> None:
    """Looked for among the paths of all modules, as `git ls-files | grep` does, they lead there and nowhere else."""
    paths = [
        str(file.relative_to(ROOT))
        for root, base in BASES.items()
        for file in (ROOT / base / root).rglob("*.py")
    ]
    assert {path for path in paths if all(word in path for word in words.split())} == {
        path for path in paths if path.startswith(place)
    }


def test_where_a_new_thing_goes_is_told_in_ten_lines() -> None:
    part = GUIDE.partition("\n## Where a new thing goes\n")[2].partition("\n### ")[0]
    rules = re.findall(r"^\d\. ", part, re.MULTILINE)
    assert 3 <= len(rules) <= 10
    listed = part[part.index("\n1. ") :].partition("\n\n")[0].strip()
    assert len(listed.splitlines()) <= 10


def test_the_context_of_all_parts_is_small_and_frozen() -> None:
    """What most parts need to read the node, and no service of another subject."""
    fields = {field.name for field in dataclasses.fields(Context)}
    assert fields == {"host", "reader", "spawner", "node", "current_config"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        Context(*[None] * 5).node = "n2"  # type: ignore[arg-type, misc]


def built_elsewhere(modules: Mapping[str, ast.Module]) -> Iterator[str]:
    """Modules that build a part of another subject, though they are neither the wiring nor a command with parts of its own."""
    trees = {name: tree for name, tree in modules.items() if name.startswith("mldebug_agents.")}
    parts = {
        node.name: name.split(".")[1]
        for name, tree in trees.items()
        for node in nodes_of(tree)
        if isinstance(node, ast.ClassDef) and PART.search(node.name)
    }
    for name, tree in trees.items():
        subject = name.split(".")[1]
        for node in nodes_of(tree):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Name) and called.id in parts and subject not in {parts[called.id], *BUILDERS}:  # fmt: skip
                yield f"{name}: {called.id}"


def test_a_part_that_is_built_elsewhere_is_found() -> None:
    texts = {"mldebug_agents.watch.a": "class AMonitor: ...", "mldebug_agents.jobs.b": "AMonitor()",
             "mldebug_agents.agent.wiring": "AMonitor()", "mldebug_agents.watch.c": "AMonitor()"}  # fmt: skip
    found = built_elsewhere({name: tree_of(text) for name, text in texts.items()})
    assert list(found) == ["mldebug_agents.jobs.b: AMonitor"]


def test_parts_of_several_subjects_are_put_together_in_one_place() -> None:
    found = built_elsewhere({name: tree_of(text) for name, text in sources().items()})
    assert list(found) == []


def test_the_life_of_an_incident_is_one_class() -> None:
    assert IncidentManager.__bases__ == (object,)
    assert IncidentManager.__subclasses__() == []


def test_incidents_are_kept_in_two_stores_and_nowhere_else() -> None:
    """The state on disk has those of runs with a rank here; `RemoteCases` has those of other runs, and keeps them in the same state."""
    store = cast(StateStore, object())
    manager = IncidentManager(store)
    assert isinstance(manager.remote.cases, RemoteCases)
    assert (manager._writer.store, manager.remote.cases._store) == (store, store)
    assert manager.remote._writer is manager._writer
    source = Path(inspect.getfile(IncidentManager)).parent
    keeps = {file.name for file in source.rglob("*.py") if "dict[str, Incident]" in file.read_text()}  # fmt: skip
    assert keeps == {"remote.py"}
