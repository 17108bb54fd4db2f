"""Reads the sources of installed frameworks, and lists the functions in which a rank waits for others and that no table classifies.

    python tests/shared/diagnosis/packagecallers.py FOLDER …

A folder is one of installed or unpacked packages (`pip download --no-deps`, unzipped). A line for each call: file, function, line, and
what is called. Calls that end in frames of PyTorch, Ray or JAX themselves are classified by those; here are those that block in the
framework's own line: a handle's `wait()`, a method of a process group, a key of a store, a tensor that was reduced and is read.
"""

import ast
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mldebug.capture.packages import FRAMEWORKS
from mldebug.core.model import Frame
from mldebug.diagnosis.classify.tables.matching import match_calls

COLLECTIVES = r"(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|barrier|gather|scatter|reduce)\w*"
COMMUNICATES = re.compile(rf"(?:.*\.)?_?(?:{COLLECTIVES}|batch_isend_irecv|isend|irecv|send|recv)")
DISTRIBUTED = re.compile(
    r"(?:torch\.distributed|dist|c10d|deepspeed\.comm|comm|funcol|hvd)(?:\.\w+)*\.\w+"
)


class BlockingCall(NamedTuple):
    """A call that blocks in its own line: of which receiver, by which method, and what it is a wait for."""

    receiver: re.Pattern[str]
    method: re.Pattern[str]
    kind: str


CALLS = tuple(
    BlockingCall(re.compile(receiver, re.IGNORECASE), re.compile(method), kind)
    for receiver, method, kind in (
        (r"(?!.*(?:aio|nvme|kv_)).*(?:handle|work|req(?:uest)?s?|future|fut|reduce_op|comm_op|ticket)s?(?:\[.*\])?", r"wait", "handle"),
        (r"(?:.*[._])?(?:pg|process_group)", COLLECTIVES + r"|_?allgather_base|_reduce_scatter_base|send|recv", "collective"),
        (r"(?:.*\.)?(?:(?:tcp|dp|coord|control|reconfig|prefix|bootstrap)_)?store", r"get|wait|wait_for_\w+", "store"),
        (r".*", r"wait_at_barrier|blocking_key_value_get(?:_bytes)?", "store"),
        (r"(?!jax$).*", r"block_until_ready", "device"),
    )
)  # fmt: skip
READS = re.compile(r"item|tolist|cpu|numpy")
"""Reads of a tensor that wait for what its stream has to do: looked for only beside a collective."""
GENERAL = re.compile(
    r"__\w+__|forward|run|fit|log|main|eval_batch|forward_streaming|multi_validation_epoch_end|log_all|_format_payload_debug|build|compile\w*|get"
)
"""Functions that do much beside that read: whoever stands in one is not taken for one that waits for its GPU."""
NOT_IN_TRAINING = re.compile(
    r"(?:.*/)?(?:tests?|testing|examples?|benchmarks?|_internal/common_\w+|test_\w+\.py)(?:/.*)?|"
    r"deepspeed/(?:inference|io|nvme)/.*|vllm/(?:models|model_executor|third_party|entrypoints|v1/(?:simple_kv_offload|fault_tolerance|kv_offload))/.*|"
    r"vllm/distributed/(?:elastic_ep|kv_transfer)/.*|ray/(?:serve|experimental|dag)/.*|transformers/(?:exporters|generation/continuous_batching)/.*|"
    r"verl/model_merger/.*|jax/experimental/(?:mosaic|pallas)/.*|orbax/checkpoint/experimental/.*|megatron/core/(?:inference|resharding)/.*|"
    r"nemo/collections/speechlm2/.*|transformers/(?:integrations|utils/hub)\b.*|orbax/checkpoint/_src/serialization/.*"
)
"""Serving, conversion, tools and tests; what saves a checkpoint of JAX is known by JAX's own frames."""


class UnknownWait(NamedTuple):
    """A function that waits for others, and no row of a table says so."""

    file: str
    function: str
    line: int
    call: str
    kind: str


def unknown_waits(folder: Path) -> Iterator[UnknownWait]:
    """All of the frameworks that are in this folder."""
    for name in FRAMEWORKS:
        top = folder / name
        for file in sorted(top.rglob("*.py")) if top.is_dir() else ():
            short = str(file.relative_to(folder))
            if not NOT_IN_TRAINING.fullmatch(short):
                yield from _of_file(file, short)


def _of_file(file: Path, short: str) -> Iterator[UnknownWait]:
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _of_function(node, short)


def _of_function(node: ast.FunctionDef | ast.AsyncFunctionDef, short: str) -> Iterator[UnknownWait]:
    calls = list(_own_calls(node))
    shared = any(DISTRIBUTED.fullmatch(name) and COMMUNICATES.fullmatch(name) for name, _ in calls)
    for name, line in calls:
        kind = _kind(name, shared)
        if kind == "device" and GENERAL.fullmatch(node.name):
            continue
        if kind and not match_calls((Frame(function=node.name, file=short, line=line, path=""),)):
            yield UnknownWait(short, node.name, line, name, kind)
            return


def _kind(name: str, shared: bool) -> str:
    receiver, _, method = name.rpartition(".")
    for call in CALLS:
        if receiver and call.method.fullmatch(method) and call.receiver.fullmatch(receiver):
            return call.kind
    return "device" if shared and receiver and READS.fullmatch(method) else ""


def _own_calls(node: ast.AST) -> Iterator[tuple[str, int]]:
    """The calls of a function without those of functions inside it, as written, in order."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(child, ast.Call):
            yield ast.unparse(child.func), child.lineno
        yield from _own_calls(child)


def main(folders: list[str]) -> int:
    """Print what is unknown; 1 where anything is."""
    found = [one for folder in folders or [sysconfig.get_path("purelib")] for one in unknown_waits(Path(folder))]  # fmt: skip
    for one in found:
        print(f"{one.file}:{one.line} {one.function}: {one.call} ({one.kind})")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
