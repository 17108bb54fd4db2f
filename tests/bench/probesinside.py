"""The ranks of `probes.py`: the probe's timing and a bare loop over the same buffers, alternating, each timed from outside.

Rank 0 says, for each op and size, `pairs` of seconds of one operation: [by the probe's loop, by the bare loop, the probe's own
median]. Started by path with an order in JSON, as the probe's own scripts are.
"""

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "agents" / "mldebug_agents" / "probes"))

from inside.collectives import Bench  # type: ignore[import-not-found]
from inside.joining import join, leave  # type: ignore[import-not-found]
from inside.ops import Operation, elements  # type: ignore[import-not-found]
from inside.ranks import launch, rank, say  # type: ignore[import-not-found]


def work(order: dict[str, Any]) -> None:
    """All ops and sizes on this rank."""
    torch, device = join(order)
    bench = Bench(torch, device, order)
    for op in order["ops"]:
        for size in order["sizes"]:
            count = elements(op, size, 4, bench.world)
            operation = Operation(torch, op, count, "float32", device)
            bench.timed(operation, order["warmup"])
            pairs = [
                round_of(torch, bench, operation, order, turn) for turn in range(order["rounds"])
            ]
            if rank() == 0:
                say("pairs", op=op, bytes=count * 4, pairs=pairs, own=own_work(bench))
    leave(torch)


class Nothing:
    """An operation that does nothing: what is left is the probe's own work."""

    op = "all_reduce"

    def call(self) -> None:
        """Do nothing."""


def own_work(bench: Any) -> float:
    """Seconds that the probe's loop takes for one repetition of nothing, on a CPU; 0.0 on a GPU, where events are queued."""
    if bench._cuda:
        return 0.0
    bench._torch.distributed.barrier, kept = (lambda: None), bench._torch.distributed.barrier
    began = time.perf_counter()
    bench.timed(Nothing(), 100_000)
    spent = time.perf_counter() - began
    bench._torch.distributed.barrier = kept
    return spent / 100_000


def round_of(
    torch: Any, bench: Any, operation: Any, order: dict[str, Any], turn: int
) -> list[float]:
    """One of each, now this first and now that."""
    told: dict[str, float] = {}
    for kind in ("probe", "bare") if turn % 2 else ("bare", "probe"):
        torch.distributed.barrier()
        finish(torch, order)
        began = time.perf_counter()
        if kind == "probe":
            told["own"] = statistics.median(bench.timed(operation, order["repeats"]))
        else:
            torch.distributed.barrier()  # the probe has one, too
            finish(torch, order)
            for _ in range(order["repeats"]):
                operation.call()
        finish(torch, order)
        told[kind] = (time.perf_counter() - began) / order["repeats"]
    return [told["probe"], told["bare"], told["own"]]


def finish(torch: Any, order: dict[str, Any]) -> None:
    """Wait for the GPU."""
    if order["device"] == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    launch(json.loads(sys.argv[1]), work)
