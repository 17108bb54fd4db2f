"""What it costs to stop together: a poll of four ranks between exchanges and with one, and an exchange of many at one store.

The many are threads, each with a connection of its own to one TCPStore, as the ranks of a large job have.
"""

import os
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from bench.table import Row, show
from mldebug_training import Switches
from mldebug_training.helpers.switches.exchange import Exchange, RankAtStore

RANKS, STEPS, STEP = 4, 400, 0.008
POLL, EXCHANGE = 20.0, 500.0  # microseconds
MANY = tuple(int(one) for one in os.environ.get("MLDEBUG_BENCH_MANY", "64 256").split())
TURNS = 10


def train(rank: int, port: int, folder: str, value: Any) -> None:
    """One rank; tells what each poll took, and whether an exchange began in it."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))  # fmt: skip
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    switches, spans, numbers = Switches(f"{folder}/{rank}", signal=None), [], torch.ones(16)
    switches.at_start()
    for _ in range(STEPS):
        time.sleep(STEP)
        dist.all_reduce(numbers)
        last, began = switches._agreement._last, time.perf_counter()
        switches.poll()
        took = time.perf_counter() - began
        spans.append((took, switches._agreement._last is not last))
    value.put(spans)
    dist.barrier()
    dist.destroy_process_group()


def polls() -> tuple[float, float, float]:
    """Microseconds: between exchanges, with one (medians), and the mean of all."""
    context = mp.get_context("spawn")
    queue = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        job = mp.spawn(train, (free_port(), folder, queue), RANKS, join=False)
        spans = [one for _ in range(RANKS) for one in queue.get()]
        while not job.join():
            pass
    without, with_one = ([took for took, began in spans if began is kind] for kind in (False, True))
    mean = statistics.fmean(took for took, _ in spans)
    return statistics.median(without) * 1e6, statistics.median(with_one) * 1e6, mean * 1e6


def free_port() -> int:
    """One that nobody listens at now."""
    return int(dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False).port)


def many(size: int) -> tuple[float, float]:
    """Seconds of an exchange of so many, and of the processor for it, of all together (medians)."""
    host = dist.TCPStore("127.0.0.1", 0, size, True, wait_for_workers=False)
    stores = [dist.TCPStore("127.0.0.1", host.port, size, False) for _ in range(size)]
    places = [RankAtStore(one, "bench", rank, size) for rank, one in enumerate(stores)]
    last: list[Exchange | None] = [None] * size
    walls, busy = [], []
    with ThreadPoolExecutor(size) as pool:
        for turn in range(TURNS):
            began, worked = time.perf_counter(), time.process_time()
            last = [Exchange(place, (rank, turn), one) for rank, (place, one) in enumerate(zip(places, last, strict=True))]  # fmt: skip
            for one in last:
                one.start()  # type: ignore[union-attr]
            found = set(pool.map(lambda one: one.result(120.0), last))
            assert found == {(size - 1, turn)}, found
            walls.append(time.perf_counter() - began)
            busy.append(time.process_time() - worked)
    return statistics.median(walls[1:]), statistics.median(busy[1:])


def main() -> None:
    """Measure and show."""
    between, with_one, mean = polls()
    rows = [
        Row("a poll between exchanges", f"{between:.1f} us", f"<= {POLL:.0f} us", between <= POLL),
        Row("  with an exchange", f"{with_one:.0f} us", f"<= {EXCHANGE:.0f} us", with_one <= EXCHANGE),
        Row(f"  all in all, steps of {STEP * 1e3:.0f} ms", f"{mean:.0f} us"),
    ]  # fmt: skip
    for size in MANY:
        wall, busy = many(size)
        rows.append(Row(f"an exchange of {size} at one store", f"{wall * 1e3:.0f} ms ({busy * 1e3:.0f} ms of a core, all of them)"))  # fmt: skip
    show("what it costs to stop together", rows)


if __name__ == "__main__":
    sys.exit(main())
