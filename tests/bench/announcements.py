"""What announcing the GPUs of all nodes costs: bytes of an announcement, and a coordinator's time and memory, with and without them.

A coordinator's own parts, in a process of its own for each case: no sockets, so what TLS costs is not in it (see `peers`).
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.table import Row, show
from mldebug.cluster.coordinator import Coordinator
from mldebug.cluster.messages import Announcement, RunNews, believed, read
from mldebug.core.model import GpuBrief

NODES, EACH, ROUNDS = 1024, 8, 3


def announcement(node: int, gpus: int) -> bytes:
    """What a node with eight ranks sends, as JSON."""
    ranks = f"{node * EACH}-{node * EACH + EACH - 1}"
    news = RunNews(
        key=("torchrun", "4711", "port 29500", "uid 1000"), name="train.py",
        world_size=NODES * EACH, ranks=ranks, step=120_000, age=86_400.0,
    )  # fmt: skip
    briefs = tuple(
        GpuBrief(
            index=index, name="NVIDIA H100 80GB HBM3", busy=0.97, memory_used=61 << 30, memory_total=80 << 30,
            watts=655.2, limit_watts=700.0, celsius=58.0, user=f"rank {node * EACH + index}", state="healthy",
        )
        for index in range(gpus)
    )  # fmt: skip
    name = f"node{node:04d}"
    made = Announcement(node=name, agent=f"{node:016x}", port=9754, runs=(news,), gpus=briefs)
    return msgspec.json.encode(made)


def measure(gpus: int) -> dict[str, float]:
    """Of all nodes, several times; in this process."""
    bodies = [announcement(node, gpus) for node in range(NODES)]
    before, coordinator = _memory(), Coordinator()
    times = []
    for turn in range(ROUNDS):
        began = time.process_time()
        for node, body in enumerate(bodies):
            address = f"10.0.{node >> 8}.{node & 255}"
            coordinator.update(believed(read(body, Announcement)), address, float(turn))
        times.append(time.process_time() - began)
    grown = _memory() - before
    began = time.process_time()
    view = msgspec.json.encode(coordinator.view("node0000", (), float(ROUNDS)))
    took = time.process_time() - began
    return {"bytes": len(bodies[-1]), "seconds": min(times), "memory": grown, "view_seconds": took, "view": len(view)}  # fmt: skip


def _memory() -> float:
    """MiB of this process."""
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0]) / 1024


def rows() -> Iterator[Row]:
    """Both cases."""
    found = {}
    for gpus in (0, EACH):
        argv = [sys.executable, "-m", "bench.announcements", str(gpus)]
        folder = Path(__file__).parents[1]
        found[gpus] = json.loads(subprocess.run(argv, check=True, capture_output=True, cwd=folder).stdout)  # fmt: skip
    for gpus, one in found.items():
        what = f"{NODES:,} nodes of {EACH} ranks, {'with their GPUs' if gpus else 'without GPUs'}"
        yield Row(f"{what}: bytes of an announcement", f"{one['bytes']:.0f}")
        yield Row(f"{what}: the coordinator's CPU for one of each", f"{one['seconds']:.2f} s")
        yield Row(f"{what}: what it remembers", f"{one['memory']:.1f} MiB")
        yield Row(f"{what}: the view of `status --cluster`", f"{one['view'] / 1e6:.2f} MB, {1e3 * one['view_seconds']:.0f} ms")  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:]:
        print(json.dumps(measure(int(sys.argv[1]))))
    else:
        show("What announcing GPUs costs", rows())
