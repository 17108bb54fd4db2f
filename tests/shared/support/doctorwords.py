"""Every sentence that `mldebug doctor` can print of a check that is not ok, and every reason in one, read from their source."""

import ast
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

AGENTS = Path(__file__).parents[3] / "agents/mldebug_agents"
CHECKS = ("support/doctor/checks.py", "support/doctor/rows.py", "support/doctor/gpus.py")
TRIALS = ("support/doctor/trials.py", "capture/stacks/pyspy.py")
HOLE = "…"  # what is only known when it runs

Names = Mapping[str, list[ast.expr]]


def sentences() -> set[tuple[str, str]]:
    """(name of the check, its meaning), with holes for what is filled in."""
    return {
        (name, meaning)
        for given, names in _calls(CHECKS, {"DoctorCheck"})
        if set(_texts(given["state"], names)) != {"ok"}
        for name in _texts(given["name"], names)
        for meaning in _texts(given["meaning"], names)
    }


def reasons() -> set[str]:
    """Why a trial of doctor fails: what fills the holes of its sentences."""
    dumps = (text for given, names in _calls(TRIALS, {"Dump"}) if "failure" in given for text in _texts(given["failure"], names))  # fmt: skip
    errors = (text for given, names in _calls(TRIALS, {"ToolError", "EvidenceError"}) for text in _texts(given["0"], names))  # fmt: skip
    return {*dumps, *errors} - {""}


def _calls(files: Iterable[str], wanted: set[str]) -> Iterator[tuple[dict[str, ast.expr], Names]]:
    """The arguments of each such call, and what names stand for where it is made."""
    for file in files:
        tree = ast.parse((AGENTS / file).read_text())
        constants = _assigned(tree.body)
        for function in (one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef)):
            names = constants | _assigned(ast.walk(function))
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in wanted:  # fmt: skip
                    placed = {str(place): one for place, one in enumerate(node.args)}
                    yield placed | {one.arg: one.value for one in node.keywords if one.arg}, names


def _assigned(body: Iterable[ast.AST]) -> dict[str, list[ast.expr]]:
    """Names, and all that they are set to; `a, b = x, y` counts."""
    found: dict[str, list[ast.expr]] = defaultdict(list)
    for node in body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            pairs: Iterable[tuple[ast.expr, ast.expr]] = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = zip(target.elts, value.elts, strict=True)
            for one, given in pairs:
                if isinstance(one, ast.Name):
                    found[one.id].append(given)
    return found


def _texts(node: ast.expr, names: Names) -> Iterator[str]:
    """What an expression may say."""
    match node:
        case ast.Constant(value=str(text)):
            yield text
        case ast.JoinedStr(values=parts):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else HOLE for part in parts)  # fmt: skip
        case ast.IfExp(body=one, orelse=other):
            yield from _texts(one, names)
            yield from _texts(other, names)
        case ast.Name(id=name) if name in names:
            yield from (text for value in names[name] for text in _texts(value, names))
        case ast.Call(args=[ast.List(elts=[first, *_])]):  # "; ".join([first, *more])
            yield from _texts(first, names)
        case _:
            yield HOLE
