"""No place in the training package keeps an exception that a signal handler of the job may have raised while it ran."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import mldebug_training

NARROW = {  # nobody ends what takes too long by one of these
    "AttributeError", "BlockingIOError", "FileExistsError", "FileNotFoundError", "ImportError", "IndexError",
    "ProcessLookupError", "StopIteration", "TypeError",
}  # fmt: skip
ELSEWHERE = {  # functions that never run where handlers do, the main thread of a job
    "__main__.py": {"main", "_callers"},  # a program of ours
    "common/calls.py": {"make"},  # for whoever asks for the result, and is given it
    "hook/flight_recorder.py": {"answer", "_count", "_counter"},  # the hook's thread
    "helpers/switches/meeting.py": {"_run"},  # a thread of its own
    "common/signals.py": {"_give_back"},  # at a fork: Python drops what is raised there
    "tracing/ring_writer.py": {"__del__"},  # Python drops what is raised in a finalizer
    "hook/stacks.py": {"_listen"},  # the hook's thread
    "startup/sitecustomize.py": {""},  # the job has not begun
    "tracing/engines.py": {"__del__"},  # the same
    "helpers/switches/files.py": {
        "make",
        "look",
        "take",
        "clear_up",
        "_content",
    },  # the thread of watch.py
    "helpers/switches/watch.py": {"_quietly"},  # that thread
}
HOME = Path(mldebug_training.__file__).parent


def swallowing(tree: ast.AST, function: str = "") -> Iterator[tuple[str, int]]:
    """(function, line) of each place that keeps an exception which a handler of the job may have raised."""
    for node in ast.iter_child_nodes(tree):
        inside = node.name if isinstance(node, ast.FunctionDef) else function
        if isinstance(node, ast.ExceptHandler) and keeps(node):
            yield function, node.lineno
        if isinstance(node, (ast.Name, ast.Attribute)) and ast.unparse(node).endswith("suppress"):
            yield function, node.lineno
        yield from swallowing(node, inside)


def keeps(clause: ast.ExceptHandler) -> bool:
    """Neither narrow nor raised again nor passed on."""
    kinds = clause.type.elts if isinstance(clause.type, ast.Tuple) else [clause.type]
    if clause.type and {ast.unparse(kind) for kind in kinds if kind} <= NARROW:
        return False
    passed = f"pass_on({clause.name})"
    return not any(isinstance(one, ast.Raise) or ast.unparse(one) == passed for one in clause.body)


def test_no_place_in_the_package_keeps_what_a_handler_of_the_job_raises() -> None:
    found = [
        f"{name}:{line} in {function}"
        for path in sorted(HOME.rglob("*.py"))
        for name in [path.relative_to(HOME).as_posix()]
        for function, line in swallowing(ast.parse(path.read_text()))
        if function not in ELSEWHERE.get(name, ())
    ]
    assert found == []


@pytest.mark.parametrize(
    ("code", "kept"),
    [
        ("try: f()\nexcept Exception: pass", 1),
        ("try: f()\nexcept OSError as error: log(error)", 1),
        ("try: f()\nexcept (KeyError, OSError): pass", 1),
        ("try: f()\nexcept: pass", 1),
        ("with contextlib.suppress(OSError): f()", 1),
        ("with suppress(OSError): f()", 1),
        ("try: f()\nexcept (IndexError, TypeError): pass", 0),
        ("try: f()\nexcept Exception as error: pass_on(error)", 0),
        ("try: f()\nexcept BaseException:\n    g()\n    raise", 0),
    ],
)
def test_that_test_finds_them(code: str, kept: int) -> None:
    assert len(list(swallowing(ast.parse(code)))) == kept
