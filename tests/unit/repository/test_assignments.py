"""An object is changed by its own class alone: nobody else assigns its attributes.

A module may fill in what it has just made, and the small records whose classes it defines itself. All else is done by a method.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.system.sources import nodes_of, tree_of

ROOT = Path(__file__).parents[3]
FILES = [
    file
    for root in ("mldebug", "agents", "exporters")
    for file in sorted((ROOT / root).rglob("*.py"))
]
# of these, a value says why: all but two are objects of others, whose interface is an attribute
EXCEPTIONS = {
    "mldebug/stall/decision.py: self._memory": "what is stored of a watch; nobody else has it",
    "mldebug/stall/decision.py: memory": "the same, under a shorter name",
    "agents/mldebug_training/tracing/engines.py: own": "once per call of the traced job: a method would be felt",
    "agents/mldebug_training/tracing/ring_writer.py: self._local": "a value for each thread",
    "mldebug/cli/main.py: command": "click",
    "mldebug/cli/main.py: sys": "a stream that is closed is opened anew",
    "mldebug/cli/commands/reports.py: context": "click",
    "agents/mldebug_agents/cli/commands/probes/probe.py: command": "click",
    "agents/mldebug_agents/cli/completion/answer.py: command": "click",
    "agents/mldebug_agents/cluster/fanout/child.py: stream": "ClusterShell",
    "agents/mldebug_agents/cluster/peers/net/identity.py: proof.server": "ssl",
    "agents/mldebug_agents/cluster/peers/net/identity.py: self.now.server": "ssl",
    "agents/mldebug_agents/cluster/peers/net/identity.py: link": "ssl",
    "agents/mldebug_agents/fleet/stream.py: context": "ssl",
    "agents/mldebug_agents/hardware/gpu/nvml/gpm.py: order": "a structure of NVML",
    "agents/mldebug_agents/hardware/gpu/nvml/gpm.py: order.metrics[place]": "a structure of NVML",
    "agents/mldebug_agents/hardware/gpu/nvml/library.py: nvml": "pynvml takes its library so",
    "agents/mldebug_agents/probes/inside/workloads.py: torch.backends.cuda.matmul": "torch",
    "agents/mldebug_agents/support/demo/training.py: parameter": "torch",
    "agents/mldebug_training/common/imports.py: module": "importlib",
    "agents/mldebug_training/common/imports.py: module.__spec__": "importlib",
    "agents/mldebug_training/common/imports.py: spec": "importlib",
    "agents/mldebug_training/common/own_file.py: call": "ctypes",
    "agents/mldebug_training/tracing/ring_file.py: call": "ctypes",
    "agents/mldebug_training/tracing/engines.py: threading": "the interpreter's hook for new threads",
    "agents/mldebug_training/hook/frameworks.py: owner": "a function of a framework is wrapped",
    "agents/mldebug_training/hook/on_request/step_profile.py: module": "PyTorch's profiler is to find ours stopped",
    "agents/mldebug_training/hook/phases.py: owner": "a function of a framework is wrapped",
    "agents/mldebug_training/hook/phases.py: OwnProcess": "torch.compile leaves these methods alone",
    "agents/mldebug_training/helpers/overflow/modules.py: ModuleHook": "torch.compile leaves it alone",
    "exporters/mldebug_exporters/channels/apprise.py: logging.getLogger('apprise')": "logging",
}


def declared(tree: ast.AST) -> set[str]:
    """The attributes that classes of a module declare or set on themselves."""
    names = set()
    for cls in nodes_of(tree):
        for node in ast.walk(cls) if isinstance(cls, ast.ClassDef) else ():
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names |= {node.attr} if is_own(node.value) else set()
    return names


def is_own(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def made(function: ast.AST) -> set[str]:
    """The variables of a function that hold what it has just made: the result of calling a class."""
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Call):
            called = ast.unparse(node.value.func).rpartition(".")[2].lstrip("_")
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if called[:1].isupper():
                names |= {one.id for one in targets if isinstance(one, ast.Name)}
    return names


def foreign(source: str) -> Iterator[tuple[str, int]]:
    """What attributes are assigned to, and the line, wherever it is neither `self`, nor made here, nor of a class of this module."""
    tree = tree_of(source)
    own = declared(tree)
    fresh: dict[ast.AST, set[str]] = {}
    for function in nodes_of(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            variables = made(function)
            for node in ast.walk(function):
                fresh[node] = fresh.get(node, set()) | variables
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr":
            yield ast.unparse(node.args[0]), node.lineno
        if not isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Load):
            continue
        if is_own(node.value) or node.attr in own:
            continue
        if not (isinstance(node.value, ast.Name) and node.value.id in fresh.get(node, ())):
            yield ast.unparse(node.value), node.lineno


# methods that keep a function which they get, though their object was made before: why that one could not be given to it
LATER = {
    "LimitedConnection.serve": "socket.accept makes the connection, and nobody else",
    "OwnProcess.call_after_beat": "a helper that a job imports, perhaps never",
    "OwnProcess.answer_requests": "a module that a job loads only when it is asked",
}


def keepers(source: str) -> Iterator[str]:
    """`Class.method` of what does nothing but keep a function for its object: a part that is connected after it was made."""
    tree = tree_of(source)
    functions = {"Callable"} | {
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign) and "Callable[" in ast.unparse(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for cls in (node for node in nodes_of(tree) if isinstance(node, ast.ClassDef)):
        for method in (node for node in cls.body if isinstance(node, ast.FunctionDef)):
            given = {
                one.arg
                for one in (*method.args.args, *method.args.kwonlyargs)
                if one.annotation
                and functions & set(re.findall(r"\w+", ast.unparse(one.annotation)))
            }
            body = method.body[ast.get_docstring(method) is not None :]
            kept = [
                isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id in given
                for node in body
            ]
            if kept and all(kept) and method.name != "__init__":
                yield f"{cls.name}.{method.name}"


def test_no_part_gets_its_functions_after_it_was_made() -> None:
    found = {name for file in FILES for name in keepers(file.read_text())}
    assert found == set(LATER)


def test_a_keeper_is_found() -> None:
    methods = "def __init__(self, f: Callable): self.f = f\n def g(self, f: Then): self.f = f\n def h(self, f: int): self.f = f"
    assert list(keepers(f"Then = Callable[[], None]\nclass A:\n {methods}")) == ["A.g"]


def test_no_attribute_of_another_object_is_assigned() -> None:
    found, used = [], set()
    for file in FILES:
        name = file.relative_to(ROOT)
        for target, line in foreign(file.read_text()):
            used.add(f"{name}: {target}")
            if f"{name}: {target}" not in EXCEPTIONS:
                found.append(f"{name}:{line}: {target}")
    assert found == []
    assert EXCEPTIONS.keys() - used == set()


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("def f(run):\n    run.capture = None", "run"),
        ("def f(run):\n    run.tries += 1", "run"),
        ("def f(run):\n    del run.tries", "run"),
        ("def f(a):\n    a.b.c, d = 1, 2", "a.b"),
        ("def f(run):\n    for run.at in range(3): pass", "run"),
        ("def f(runs):\n    run = runs.get(1)\n    run.at = 2", "run"),
        ("def f(run):\n    setattr(run, 'at', 2)", "run"),
        ("class A:\n    def f(self):\n        self.part.x = 1", "self.part"),
    ],
)
def test_an_assignment_is_found(source: str, target: str) -> None:
    assert [one for one, _ in foreign(source)] == [target]


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def f(self):\n        self.x = 1",
        "def f():\n    thread = threading.Thread()\n    thread.daemon = True",
        "class A:\n    x: int = 0\ndef f(a):\n    a.x = 1",
        "def f(a):\n    a.x[1] = 2",
    ],
)
def test_what_is_fine_is_left_alone(source: str) -> None:
    assert list(foreign(source)) == []
