"""Measures one node: its GPUs, the ways between them, its memory and a disk. Each piece in a fork, with a deadline.

The order has `stages` (of STAGES), `gpus` (how many), `seconds`, and `disk` (a folder, or ""). Events: `stage` with
`stage`, `seconds`, `results` by label (`GPU 0`, `node`), each a dictionary of figures or a failure (see `forks`), and
`cut`: the time for all was over before that of this stage; `done`.
"""

from __future__ import annotations

import os
import time
from functools import partial
from importlib import import_module
from typing import Any, Callable, Dict

from .forks import ForkedTasks, Result
from .ranks import beating, emit, keep_stdout
from .workloads import copies, disk, dram, fp8, matmul, memory, peers

Work = Callable[..., Result]
EACH_GPU: Dict[str, Work] = {
    "memory": memory,
    "matmul": matmul,
    "fp8": fp8,
}  # all GPUs at the same time
IN_TURNS: Dict[str, Work] = {"copy": copies}  # or they would share the way to the host
ONCE: Dict[str, Work] = {"peers": peers}
HOST: Dict[str, Work] = {"dram": dram, "disk": disk}
SECONDS = {"memory": 120.0, "matmul": 60.0, "fp8": 30.0, "copy": 60.0, "peers": 120.0, "dram": 60.0, "disk": 60.0}  # fmt: skip


def main(order: dict[str, Any]) -> None:
    """Run the stages of the node probe one after another, and print the results of each as a line of JSON. A stage that hangs or dies does
    not stop the others. `order`: `stages` (names), `seconds` for all of them, the number of `gpus`, and what single stages need.
    """
    keep_stdout()
    until = time.monotonic() + order["seconds"]
    with beating():
        import_module("torch")
    for stage in order["stages"]:
        begin = time.monotonic()
        longest = min(SECONDS[stage], until - begin)
        results = _stage(stage, order, longest)
        cut = longest < SECONDS[stage] and any(result.get("late") for result in results.values())
        seconds = round(time.monotonic() - begin, 3)
        emit("stage", stage=stage, seconds=seconds, results=results, cut=cut)
    emit("done")
    os._exit(0)


def _stage(stage: str, order: dict[str, Any], seconds: float) -> dict[str, Result]:
    gpus = range(order["gpus"])
    if stage in EACH_GPU:
        return _forked_tasks({f"GPU {gpu}": partial(EACH_GPU[stage], gpu) for gpu in gpus}, seconds)
    if stage in IN_TURNS:
        results: dict[str, Result] = {}
        for gpu in gpus:
            results.update(_forked_tasks({f"GPU {gpu}": partial(IN_TURNS[stage], gpu)}, seconds))
        return results
    if stage in ONCE:
        return _forked_tasks({"node": partial(ONCE[stage], order["gpus"])}, seconds)
    return _forked_tasks({"node": partial(HOST[stage], order)}, seconds)


def _forked_tasks(work: Dict[str, Callable[[], Result]], seconds: float) -> dict[str, Result]:
    crew = ForkedTasks()
    for label, one in work.items():
        crew.start(label, one)
    return crew.wait(seconds)
