"""Times collectives: one `cell` event for each op and size, with every rank's seconds of every repetition.

The order has `device`, `ops`, `sizes` (bytes), `dtype`, `warmup`, `repeats`, `timeout` (seconds of one operation),
`cell_seconds` (about, for one op and size), `memory` (bytes that a rank may take, None: a share of what is free).
"""

from __future__ import annotations

import os
import time
from typing import Any

from .ops import CollectiveOperation, elements, needed
from .process_group import join, leave
from .ranks import emit, launch, rank
from .values import BLOCK, Values

SHARE = 0.8  # of a GPU's free memory; of the host's free memory a quarter, shared by the ranks of this node
FEWEST = 3  # repetitions
UNSUPPORTED = ("does not support", "not implemented", "not supported", "No backend type")


def main(order: dict[str, Any]) -> None:
    """Start `work` once for each rank of this node; the entry point of this script. Never returns."""
    launch(order, work)


def work(order: dict[str, Any]) -> None:
    """What one rank does: time every op with every size. Rank 0 writes the events."""
    torch, device = join(order)
    bench = CollectiveTimer(torch, device, order)
    if rank() == 0:
        emit("joined", **about(torch, order, bench))
    for op in order["ops"]:
        for size in bench.payloads(op):
            bench.cell(op, size)
    leave(torch)


def about(torch: Any, order: dict[str, Any], bench: CollectiveTimer) -> dict[str, Any]:
    """The content of the event `joined`: number of ranks, backend, GPU model, versions, and the bytes that a rank may use."""
    cuda = order["device"] == "cuda"
    return {
        "ranks": bench.world,
        "backend": "nccl" if cuda else "gloo",
        "gpu": gpu_models(torch) if cuda else "",
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else "",
        "torch": str(torch.__version__),
        "memory": bench.memory,
    }


def gpu_models(torch: Any) -> str:
    """The model of this node's GPUs; several joined with " and ", because the slowest model limits all."""
    here = range(int(os.environ["LOCAL_WORLD_SIZE"]))
    return " and ".join(sorted({torch.cuda.get_device_name(gpu) for gpu in here}))


class CollectiveTimer:
    """Times collectives in one rank. `memory`: bytes that every rank may use for buffers."""

    def __init__(self, torch: Any, device: Any, order: dict[str, Any]) -> None:
        self._torch, self._device, self._order = torch, device, order
        self._cuda = device.type == "cuda"
        self.world = torch.distributed.get_world_size()
        self._itemsize = torch.empty(0, dtype=getattr(torch, order["dtype"])).element_size()
        self._values = Values(torch, self.world, order["dtype"], device)
        self.memory = int(self._agreed(float(self._free()), "MIN"))

    def payloads(self, op: str) -> list[int]:
        """The sizes of the order (bytes), without those that give the same number of elements as an earlier one."""
        found: dict[int, int] = {}
        for size in self._order["sizes"]:
            found.setdefault(elements(op, size, self._itemsize, self.world), size)
        return list(found.values())

    def cell(self, op: str, size: int) -> None:
        """Time one op with `size` bytes and check the result's values; rank 0 writes the event with the times of all ranks."""
        count = elements(op, size, self._itemsize, self.world)
        wanted = needed(op, count, self._itemsize, self.world) + 4 * BLOCK * self._itemsize
        if wanted > self.memory:
            self._skip(
                op,
                size,
                f"its buffers need {wanted} bytes on each rank, {self.memory} may be taken",
            )
            return
        try:
            operation = CollectiveOperation(
                self._torch, op, count, self._order["dtype"], self._device
            )
            times, wrong = self._measure(operation)
        except (RuntimeError, ValueError, NotImplementedError) as error:
            if not any(one in str(error) for one in UNSUPPORTED):
                raise
            self._skip(op, size, str(error).splitlines()[0])
            return
        self._tell(operation, count * self._itemsize, times, wrong)
        del operation
        if self._cuda:
            self._torch.cuda.empty_cache()

    def _measure(self, operation: CollectiveOperation) -> tuple[list[float], int | None]:
        warm = self.timed(operation, max(1, self._order["warmup"]))
        longest = self._agreed(min(warm), "MAX")
        fitting = int(self._order["cell_seconds"] / max(longest, 1e-9))
        times = self.timed(operation, max(FEWEST, min(self._order["repeats"], fitting)))
        return times, operation.wrong(self._values)

    def timed(self, operation: CollectiveOperation, repeats: int) -> list[float]:
        """Run the operation `repeats` times back to back and return the seconds that each took in this rank."""
        self._torch.distributed.barrier()
        if self._cuda and operation.op != "barrier":
            return self._by_events(operation, repeats)
        times = []
        for _ in range(repeats):
            begin = time.perf_counter()
            operation.call()
            if self._cuda:
                self._torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        return times

    def _by_events(self, operation: CollectiveOperation, repeats: int) -> list[float]:
        event = self._torch.cuda.Event
        marks = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(repeats)]
        self._torch.cuda.synchronize()
        for begin, end in marks:
            begin.record()
            operation.call()
            end.record()
        self._torch.cuda.synchronize()
        return [begin.elapsed_time(end) / 1000 for begin, end in marks]

    def _tell(
        self, operation: CollectiveOperation, size: int, times: list[float], wrong: int | None
    ) -> None:
        row = self._torch.tensor(
            [*times, -1.0 if wrong is None else wrong],
            dtype=self._torch.float64,
            device=self._device,
        )
        table = [self._torch.empty_like(row) for _ in range(self.world)]
        self._torch.distributed.all_gather(table, row)
        if rank() == 0:
            rows = [one.tolist() for one in table]
            emit(
                "cell",
                op=operation.op,
                bytes=size,
                times=[[round(one, 9) for one in each[:-1]] for each in rows],
                wrong=[None if each[-1] < 0 else int(each[-1]) for each in rows],
            )

    def _skip(self, op: str, size: int, reason: str) -> None:
        if rank() == 0:
            emit("skipped", op=op, bytes=size, reason=reason)

    def _agreed(self, value: float, how: str) -> float:
        tensor = self._torch.tensor([value], dtype=self._torch.float64, device=self._device)
        self._torch.distributed.all_reduce(tensor, getattr(self._torch.distributed.ReduceOp, how))
        return float(tensor.item())

    def _free(self) -> int:
        """Bytes that this rank may take, never more than its share of what is free."""
        if self._cuda:
            free = int(self._torch.cuda.mem_get_info()[0] * SHARE)
        else:
            free = available() // 4 // int(os.environ["LOCAL_WORLD_SIZE"])
        most = self._order["memory"]
        return free if most is None else min(free, most)


def available() -> int:
    """Bytes of host memory available without swapping (MemAvailable); 0 where that is not known."""
    with open("/proc/meminfo", encoding="ascii") as text:
        for line in text:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0
