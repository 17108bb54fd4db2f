"""The ranks of `probes.py` on CPUs: the probe's loop and a bare one in short turns, thousands of times.

A turn is a few operations, so that what disturbs the machine hits both alike; a pair is probe, bare, bare, probe, or the other way
round, so that a drift cancels out. Each rank keeps to one core. Rank 0 says `pairs`: of each pair the quotient of the probe's time and the bare one's,
and the seconds of a bare operation. Started by path with an order in JSON.
"""

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "agents" / "mldebug_agents" / "probes"))

from inside.collectives import CollectiveTimer  # type: ignore[import-not-found]
from inside.ops import CollectiveOperation, elements  # type: ignore[import-not-found]
from inside.process_group import join, leave  # type: ignore[import-not-found]
from inside.ranks import emit, launch, rank  # type: ignore[import-not-found]

TURN = 4  # operations


def work(order: dict[str, Any]) -> None:
    """One op and size on this rank, for as long as rank 0 says."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[int(os.environ["RANK"]) % len(cores)]})
    torch, device = join(order)
    bench = CollectiveTimer(torch, device, order)
    (op,), (size,) = order["ops"], order["sizes"]
    operation = CollectiveOperation(
        torch, op, elements(op, size, 4, bench.world), "float32", device
    )
    bench.timed(operation, order["warmup"])
    pairs = [pair(torch, bench, operation, number) for number in range(order["rounds"])]
    if rank() == 0:
        bare = statistics.median(two for _, two in pairs) / (2 * TURN)
        quotients = [one / two for one, two in pairs]
        emit("pairs", quotients=quotients, bare=bare, work=own_work(bench))
    leave(torch)


def pair(torch: Any, bench: Any, operation: Any, number: int) -> tuple[float, float]:
    """Seconds of two turns by the probe and of two bare ones."""

    def bare() -> None:
        for _ in range(TURN):
            operation.call()

    def probe() -> None:
        bench.timed(operation, TURN)

    outer, inner = (bare, probe) if number % 2 else (probe, bare)
    barrier = torch.distributed.barrier
    barrier()
    torch.distributed.barrier = nothing  # the probe has one before its repetitions
    try:
        first, second, third, last = (seconds(one) for one in (outer, inner, inner, outer))
    finally:
        torch.distributed.barrier = barrier
    facts = {outer: first + last, inner: second + third}
    return facts[probe], facts[bare]


def seconds(call: Callable[[], None]) -> float:
    """Of one turn, from outside."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def nothing() -> None:
    """Do nothing."""


class Nothing:
    """An operation that does nothing: what is left is the probe's own work."""

    op, call = "all_reduce", staticmethod(nothing)


def own_work(bench: Any) -> float:
    """Seconds that the probe's loop takes for one repetition of nothing."""
    bench._torch.distributed.barrier, kept = nothing, bench._torch.distributed.barrier
    spent = seconds(lambda: bench.timed(Nothing(), 100_000))
    bench._torch.distributed.barrier = kept
    return spent / 100_000


if __name__ == "__main__":
    launch(json.loads(sys.argv[1]), work)
