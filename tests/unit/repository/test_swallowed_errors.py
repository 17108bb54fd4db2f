"""No error is dropped in silence: where one is caught and nothing is done with it, a comment or the function's docstring says what that means.

Errors whose name says all (nothing there yet, gone meanwhile, not a number) need no words.
"""

import ast
import io
import tokenize
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
CLEAR = frozenset(
    [
        "BlockingIOError",
        "BrokenPipeError",
        "ChildProcessError",
        "ConnectionRefusedError",
        "Empty",
        "FileExistsError",
        "FileNotFoundError",
        "IndexError",
        "KeyError",
        "KeyboardInterrupt",
        "NotADirectoryError",
        "OverflowError",
        "PackageNotFoundError",
        "ProcessLookupError",
        "RecursionError",
        "SSLWantReadError",
        "StopIteration",
        "TimeoutError",
        "TypeError",
        "UnicodeDecodeError",
        "UnicodeEncodeError",
        "ValueError",
        "_NotYetError",
    ]
)


def silent(source: str) -> Iterator[tuple[int, str]]:
    """(line, names of the errors) of each place that drops errors without a word."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    tree = tree_of(source)
    documented = set()
    for function in nodes_of(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            documented |= set(ast.walk(function)) if ast.get_docstring(function) else set()
    for node in nodes_of(tree):
        if not isinstance(node, ast.ExceptHandler | ast.With):
            continue
        names = [name for name in dropped(node) if name not in CLEAR]
        lines = range(node.lineno - 1, node.body[0].lineno + 1)
        if names and node not in documented and not comments.intersection(lines):
            yield node.lineno, " ".join(names)


def dropped(node: ast.ExceptHandler | ast.With) -> list[str]:
    """The errors that this handler, or this `suppress`, does nothing with."""
    if isinstance(node, ast.ExceptHandler):
        names = names_of(node.type) if node.type else ["everything"]
        return names if all(map(is_nothing, node.body)) else []
    calls = [item.context_expr for item in node.items if "suppress(" in ast.unparse(item)]
    return [
        name
        for call in calls
        if isinstance(call, ast.Call)
        for argument in call.args
        for name in names_of(argument)
    ]


def is_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Return):
        return statement.value is None or isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Pass | ast.Continue | ast.Break)


def names_of(errors: ast.expr) -> list[str]:
    parts = errors.elts if isinstance(errors, ast.Tuple) else [errors]
    return [ast.unparse(part).rpartition(".")[2] for part in parts]


def test_no_error_is_dropped_without_a_word() -> None:
    found = {str(file.relative_to(ROOT)): list(silent(file.read_text())) for file in FILES}
    assert {name: places for name, places in found.items() if places} == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("try:\n    f()\nexcept OSError:\n    pass\n", ["OSError"]),
        ("def g():\n    try:\n        f()\n    except Exception:\n        return None\n", ["Exception"]),
        ("with suppress(OSError, ValueError):\n    f()\n", ["OSError"]),
        ("try:\n    f()\nexcept OSError:\n    pass  # it has ended\n", []),
        ("def g():\n    '''None where it is gone.'''\n    with suppress(OSError):\n        f()\n", []),
        ("try:\n    f()\nexcept FileNotFoundError:\n    pass\n", []),
        ("try:\n    f()\nexcept OSError as error:\n    log(error)\n", []),
    ],
)  # fmt: skip
def test_what_is_silent(source: str, found: list[str]) -> None:
    assert [names for _, names in silent(source)] == found
