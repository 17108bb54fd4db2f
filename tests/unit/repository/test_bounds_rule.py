"""No number and no list that a job or a peer names is expanded before it is bounded: a new module that does it itself fails here.

A list of nodes or a set of ranks is unfolded by `mldebug.core.ranksets`, which counts before it expands. Whatever else goes through as many
turns, or makes as many things, as a variable says has a row that says who bounds that variable. To add one: bound the number first (`min`
with a constant is enough, and needs no row), or go through what is there instead of through all that could be.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.system.sources import nodes_of, tree_of

ROOT = Path(__file__).parents[3]
ROOTS = ("mldebug", "agents/mldebug_agents", "exporters/mldebug_exporters")
PERSONS = ("agents/mldebug_agents/probes/", "agents/mldebug_agents/support/demo/")
"""What a person starts, with numbers of his own, in processes of its own."""

ONLY_THERE = {"NodeSet": "mldebug/core/ranksets.py", "RangeSet": "mldebug/core/ranksets.py"}
EXPANDING = frozenset(["product", "permutations", "combinations", "combinations_with_replacement"])
MAKING = frozenset(["bytes", "bytearray", "repeat"])
PADDING = frozenset(["ljust", "rjust", "center", "zfill", "to_bytes"])
RANKS = "a world size: at most a million, refused where the environment or the announcement is read"
OURS = "our own threads"
DRIVER = "the GPU driver's number, which `bounds` cuts"
BOUNDED: dict[str, str] = {
    "agents/mldebug_agents/cli/commands/storage/checkpoints.py": "names that are cut to 60",
    "agents/mldebug_agents/cli/commands/goodput/goodput.py": "WIDTH: a bar of a share",
    "mldebug/capture/flight_recorder/analysis.py": "ranks of dumps, where they are at most four times as many as dumps",
    "mldebug/capture/nccl_ras/progress.py": "pairs of late communicators, of which an answer has some hundred",
    "mldebug/capture/stacks/reader.py": "lines of a text that is held",
    "mldebug/capture/trace/reader.py": "the header's chunks, refused above MAX_CHUNKS and the file's size",
    "mldebug/cli/console.py": "the indent of our own texts",
    "mldebug/cluster/inspection.py": "MOST_RANKS, counted before they are expanded",
    "mldebug/core/ranksets.py": "counts before it expands",
    "mldebug/diagnosis/classify/case.py": RANKS,
    "mldebug/core/text.py": "the longest cell of a table that is held",
    "mldebug/diagnosis/classify/process_facts.py": "frames that are held",
    "mldebug/fleet/answers/lemons.py": "a share that halves: never more than one",
    "mldebug/incidents/decide.py": "the digits of a line's number",
    "mldebug/status/gpu_table.py": "the longest cell of a table that is held",
    "mldebug/storage/filesystems/quotas.py": "powers of _POWER, at most 5",
    "mldebug/diagnosis/classify/nodes.py": "MAX_MISSING",
    "mldebug/diagnosis/exits/words/launcher_lines.py": "MOST_TASKS, or the ranks that are known",
    "mldebug/diagnosis/exits/words/raised_in.py": "lines of a text that is held",
    "mldebug/fleet/answers/hours.py": "MOST_WEEKS",
    "mldebug/goodput/account/segments.py": "BINS, beyond which the stretches become longer",
    "mldebug/hardware/health/kernel_rules.py": "periods between the ends of a burst, which LONGEST bounds",
    "mldebug/hardware/host_memory/trend.py": "pairs of some kept readings",
    "mldebug/incidents/incident.py": "MAX_ATTEMPTS, and failures that a text lists",
    "mldebug/alerts/rank_map.py": "MOST_RANKS cells of MOST_NODES nodes",
    "mldebug/incidents/report/rank_map.py": "rows and columns of ranks that are held",
    "mldebug/jobs/heartbeat.py": "MAX_SCALARS",
    "mldebug/jobs/known_issues/nccl_log.py": "three digits in the pattern",
    "mldebug/probes/curve.py": "bits of the number of hosts that a person has named",
    "mldebug/probes/preflight/rendezvous.py": "ALL_PAIRS, and bits of the number of nodes that came, of which MOST_NODES are kept",
    "mldebug/status/top/columns.py": "the width of the terminal, and what a column may have at most",
    "mldebug/status/top/screen.py": "BAR, and the height of the terminal",
    "mldebug/storage/checkpoints/safe_pickle.py": "one or two",
    "agents/mldebug_agents/cluster/peers/net/connect_pool.py": OURS,
    "agents/mldebug_agents/cluster/transports/slurm.py": "65,536 of each span of a scheduler's answer to a person",
    "agents/mldebug_agents/hardware/gpu/nvml/absent.py": DRIVER,
    "agents/mldebug_agents/hardware/gpu/nvml/full_read.py": DRIVER,
    "agents/mldebug_agents/hardware/gpu/nvml/links.py": DRIVER,
    "agents/mldebug_agents/hardware/gpu/vendors/nvidia.py": DRIVER,
    "agents/mldebug_agents/jobs/ranks/grouping.py": "MAX_LOCAL ranks of one node",
    "agents/mldebug_agents/storage/child/server.py": OURS,
    "agents/mldebug_agents/system/workers.py": OURS,
    "agents/mldebug_agents/watch/rank_evidence.py": "five digits of the kernel's list of CPUs",
}


def _is_bounded(node: ast.expr) -> bool:
    """Whether an expression is no more than constants and lengths of what is held."""
    match node:
        case ast.Constant():
            return True
        case ast.Attribute(value=ast.Name(id=name), attr="size") if name.isupper():  # a Struct's
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.isupper()
        case ast.Call(func=ast.Name(id="len")):
            return True
        case ast.IfExp(body=one, orelse=other):
            return _is_bounded(one) and _is_bounded(other)
        case ast.Call(func=ast.Name(id="min"), args=arguments):
            return any(map(_is_bounded, arguments))
        case ast.Call(func=ast.Name(id="max"), args=arguments):
            return all(map(_is_bounded, arguments))
        case ast.BinOp(op=ast.Add() | ast.Mult(), left=left, right=right):
            return _is_bounded(left) and _is_bounded(right)
        case ast.BinOp(op=ast.Sub() | ast.FloorDiv() | ast.Mod(), left=left):
            return _is_bounded(left)
        case ast.UnaryOp(operand=operand):
            return _is_bounded(operand)
    return False


def _calls(tree: ast.AST) -> Iterator[tuple[str, list[ast.expr]]]:
    for node in nodes_of(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            yield name, node.args


def expands(tree: ast.AST) -> bool:
    """Whether something in it is done or made as often as a variable says."""
    for name, arguments in _calls(tree):
        if name == "range" and not _is_bounded(arguments[min(1, len(arguments) - 1)]):
            return True
        if name in EXPANDING or name in ONLY_THERE:
            return True
        if name == "repeat" and len(arguments) > 1 and not _is_bounded(arguments[1]):
            return True
        if name in ("bytes", "bytearray") and arguments and _is_a_size(arguments[0]):
            return True
        if name in PADDING and arguments and not _is_bounded(arguments[0]):
            return True
    return _repeats(tree) or any(map(_powers, nodes_of(tree)))


def _powers(node: ast.AST) -> bool:
    """`1 << n`, `2**n` and a width in a format: as many bits, digits or blanks as a variable says."""
    match node:
        case ast.BinOp(left=ast.Constant(), op=ast.LShift() | ast.Pow(), right=right):
            return not _is_bounded(right)
        case ast.FormattedValue(format_spec=ast.JoinedStr(values=parts)):
            inner = [one.value for one in parts if isinstance(one, ast.FormattedValue)]
            return not all(map(_is_bounded, inner))
    return False


def _is_a_size(node: ast.expr) -> bool:
    """Whether `bytes(node)` makes so many of them: a sum or product, or what is called a size."""
    name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
    sized = isinstance(node, ast.BinOp) or name.endswith(("size", "count", "length", "number"))
    return sized and not _is_bounded(node)


def _repeats(tree: ast.AST) -> bool:
    """A list, a tuple, a text or bytes, written out, times a variable."""
    for node in nodes_of(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            for one, times in ((node.left, node.right), (node.right, node.left)):
                text = isinstance(one, ast.Constant) and isinstance(one.value, str | bytes)
                if (text or isinstance(one, ast.List | ast.Tuple)) and not _is_bounded(times):
                    return True
    return False


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for root in ROOTS:
        for file in sorted((ROOT / root).rglob("*.py")):
            name = str(file.relative_to(ROOT))
            if not name.startswith(PERSONS):
                yield name, tree_of(file.read_text())


def test_whoever_expands_a_number_has_a_row_that_says_who_bounds_it() -> None:
    found = {name for name, tree in _modules() if expands(tree)}
    new = found - BOUNDED.keys()
    assert not new, f"{sorted(new)}: bound the number before it is expanded; see the docstring here"
    assert not BOUNDED.keys() - found, "rows that nobody needs any more"


@pytest.mark.parametrize(("name", "home"), ONLY_THERE.items())
def test_only_one_module_unfolds_lists_of_nodes(name: str, home: str) -> None:
    found = {
        module for module, tree in _modules() if any(name == called for called, _ in _calls(tree))
    }
    assert found <= {home}


@pytest.mark.parametrize(
    "line",
    [
        "for rank in range(job.world_size): pass",
        "range(first, last + 1)",
        "range(int(words[0]))",
        "NodeSet(text)",
        "RangeSet('0-9')",
        "itertools.product(*parts)",
        "bytearray(header.size)",
        "[None] * world",
        "' ' * width",
        "itertools.repeat(0, count)",
        "(0,) * world",
        "name.ljust(width)",
        "number.to_bytes(size)",
        "1 << rank",
        "10**digits",
        "f'{name:{width}}'",
    ],
)
def test_the_rule_is_not_blind(line: str) -> None:
    assert expands(ast.parse(line))


@pytest.mark.parametrize(
    "line",
    [
        "range(len(ranks))",
        "range(MAX_NODES)",
        "range(min(count, MAX_SCALARS))",
        "range(0, len(data), size)",
        "bytes(name)",
        "'-' * 8",
        "[0] * len(ranks)",
        "(0,) * len(ranks)",
        "1 << 20",
        "f'{name:>{WIDTH}}'",
        "number.to_bytes(8)",
    ],
)
def test_what_is_bounded_needs_no_row(line: str) -> None:
    assert not expands(ast.parse(line))
