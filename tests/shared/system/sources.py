"""Sources as syntax trees: many tests look through the same thousand files, and each is parsed and walked once."""

import ast
from functools import cache


@cache
def tree_of(source: str) -> ast.Module:
    """Of this text; nobody changes it."""
    return ast.parse(source)


@cache
def nodes_of(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes of a tree, as `ast.walk` finds them."""
    return tuple(ast.walk(tree))
