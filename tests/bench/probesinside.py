"""The ranks of `probes.py`: three ways to time one op over the same buffers, in turns.

`bare`: a loop of the operation alone, timed from outside. `probe`: the probe's own loop, timed from outside, too. `own`: what the command
would tell of it. `seed`: as the benchmark does that this probe comes from, see `Turns.seed`. Rank 0 says `rounds` for each op
and size: seconds of one operation by way. Started by path with an order in JSON, as the probe's own scripts are.
"""

import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "agents" / "mldebug_agents" / "probes"))

from inside.collectives import CollectiveTimer  # type: ignore[import-not-found]
from inside.ops import CollectiveOperation, elements  # type: ignore[import-not-found]
from inside.process_group import join, leave  # type: ignore[import-not-found]
from inside.ranks import emit, launch, rank  # type: ignore[import-not-found]


def work(order: dict[str, Any]) -> None:
    """All ops and sizes on this rank."""
    torch, device = join(order)
    bench = CollectiveTimer(torch, device, order)
    for op in order["ops"]:
        for size in order["sizes"]:
            count = elements(op, size, 4, bench.world)
            operation = CollectiveOperation(torch, op, count, "float32", device)
            bench.timed(operation, order["warmup"])
            turns = Turns(torch, bench, operation, order, count * 4)
            rounds = [turns.take(number) for number in range(order["rounds"])]
            if rank() == 0:
                emit("rounds", op=op, bytes=count * 4, rounds=rounds)
    leave(torch)


class Turns:
    """Rounds in which each way has its turn, beginning with another one each time."""

    def __init__(self, torch: Any, bench: Any, operation: Any, order: dict[str, Any], size: int):
        self._torch, self._bench, self._operation = torch, bench, operation
        self._size, self._repeats = size, order["repeats"]
        self._cuda = order["device"] == "cuda"

    def take(self, number: int) -> dict[str, float]:
        """One round; the ways and `own` in seconds of one operation."""
        ways = ("bare", "probe", "seed")
        table: dict[str, float] = {}
        for way in (*ways[number % 3 :], *ways[: number % 3]):
            self._torch.distributed.barrier()
            self._finish()
            getattr(self, way)(table)
        return table

    def bare(self, table: dict[str, float]) -> None:
        """The operation alone, again and again."""
        began = time.perf_counter()
        self._torch.distributed.barrier()  # the probe has one, too
        self._finish()
        for _ in range(self._repeats):
            self._operation.call()
        self._finish()
        table["bare"] = (time.perf_counter() - began) / self._repeats

    def probe(self, table: dict[str, float]) -> None:
        """The loop that the command runs."""
        began = time.perf_counter()
        times = self._bench.timed(self._operation, self._repeats)
        self._finish()
        table["probe"] = (time.perf_counter() - began) / self._repeats
        table["own"] = statistics.median(self._slowest(times))

    def _slowest(self, times: list[float]) -> list[float]:
        """Of each repetition the time of the rank that took longest."""
        row = self._torch.tensor(
            times, dtype=self._torch.float64, device=self._operation.sent.device
        )
        self._torch.distributed.all_reduce(row, self._torch.distributed.ReduceOp.MAX)
        return [float(one) for one in row.tolist()]

    def seed(self, table: dict[str, float]) -> None:
        """The benchmark that this comes from: a barrier before each operation, the bandwidth of each, its mean over ranks and trials."""
        torch, speeds = self._torch, []
        for _ in range(self._repeats):
            mean = torch.tensor([self._size / self._blocking()], device=self._operation.sent.device)
            torch.distributed.reduce(mean, 0)
            speeds.append(float(mean.item()) / self._bench.world)
        table["seed"] = self._size / statistics.mean(speeds)
        table["seed_median"] = self._size / statistics.median(speeds)
        table["seed_least"] = self._size / max(speeds)

    def _blocking(self) -> float:
        """Seconds of one operation that nothing is queued before or after, as this rank sees it."""
        self._torch.distributed.barrier()
        if not self._cuda:
            began = time.perf_counter()
            self._operation.call()
            return time.perf_counter() - began
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in "be")
        begin.record()
        self._operation.call()
        end.record()
        self._torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    def _finish(self) -> None:
        if self._cuda:
            self._torch.cuda.synchronize()


if __name__ == "__main__":
    launch(json.loads(sys.argv[1]), work)
