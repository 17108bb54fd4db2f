"""What stands beside the fields of a struct in the code: the comment above each, else the one behind it."""

import ast
import inspect
import tokenize
from collections.abc import Iterator
from functools import cache
from io import StringIO
from pathlib import Path

import msgspec


@cache
def comments(kind: type[msgspec.Struct]) -> dict[str, str]:
    """The words by the name of the field; fields that it inherits have theirs from where they are declared."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if issubclass(base, msgspec.Struct) and base is not msgspec.Struct:
            found |= _of_class(Path(inspect.getfile(base)).read_text(), base.__name__)
    return found


def _of_class(source: str, name: str) -> dict[str, str]:
    behind, alone = _read(source)
    return {
        field: " ".join(_above(line, alone)) or behind.get(end, "")
        for field, line, end in _fields(ast.parse(source), name)
    }


def _read(source: str) -> tuple[dict[int, str], dict[int, str]]:
    """Comments by line: those behind code, and those that have a line of their own."""
    behind: dict[int, str] = {}
    alone: dict[int, str] = {}
    for token in tokenize.generate_tokens(StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            own_line = not token.line[: token.start[1]].strip()
            (alone if own_line else behind)[token.start[0]] = token.string.lstrip("# ").rstrip()
    return behind, alone


def _fields(tree: ast.Module, name: str) -> Iterator[tuple[str, int, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            for one in node.body:
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
                    yield one.target.id, one.lineno, one.end_lineno or one.lineno


def _above(line: int, alone: dict[int, str]) -> list[str]:
    """The block of comments that ends on the line before."""
    words: list[str] = []
    while line - 1 in alone:
        line -= 1
        words.insert(0, alone[line])
    return words
