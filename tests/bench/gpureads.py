"""What both reads of the GPUs cost on this node: wall clock and CPU, and which calls of the library take it.

python tests/bench/gpureads.py [LIBRARY]      without one: the node's own libnvidia-ml.so.1
python tests/bench/gpureads.py fake           the recorded H200s, eight of them: what pynvml and our own code take
"""

import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from bench.table import Row, show
from fakenvml.library import FakeNvml
from mldebug.gpus.readings import NodeGpus, NodeWatch
from mldebug_agents.gpus.nvidia import Nvidia
from mldebug_agents.nvml.library import LIBRARY, Library

ROUNDS = int(os.environ.get("MLDEBUG_BENCH_ROUNDS", "30"))
PAUSE = 0.2  # seconds between two reads: the averages need a window
GPUS = 8
DEAREST = 12


class Timed:
    """The binding, with a clock around every call of the library."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._nvml, name)
        return self._clocked(name, found) if name.startswith("nvml") and callable(found) else found

    def _clocked(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            started = time.perf_counter()
            try:
                return call(*arguments)
            finally:
                self.seconds[name] += time.perf_counter() - started
                self.calls[name] += 1

        return timed


def eight(folder: Path) -> str:
    """A library with eight GPUs, of the two that were recorded."""
    fake = FakeNvml(folder)
    for key, told in list(fake.table.items()):
        function, *rest = key.split(" ")
        if rest and rest[0] in ("0", "1"):
            for device in range(int(rest[0]) + 2, GPUS, 2):
                fake.table[" ".join([function, str(device), *rest[1:]])] = told
    for device in range(GPUS):
        fake.table[f"nvmlDeviceGetUUID {device}"] = f"0\tGPU-{device}"
    fake.set("nvmlDeviceGetCount_v2 -1", GPUS)
    os.environ.update(fake.environment)
    return fake.library


def rows(reader: Nvidia) -> Iterator[Row]:
    """The two reads."""
    for name, read in (("watch", reader.watch), ("full", reader.full)):
        reads: list[NodeWatch | NodeGpus] = []
        for _ in range(ROUNDS):
            time.sleep(PAUSE)
            reads.append(read())
        gpus = len(reads[-1].gpus)
        wall = [one.read_seconds * 1000 for one in reads[2:]]
        cpu = [one.cpu_seconds * 1000 for one in reads[2:]]
        yield Row(
            f"{name} read of {gpus} GPUs, wall",
            f"{median(wall):.1f} ms (longest {max(wall):.1f})",
            "≤ 10 ms for 8" if name == "watch" else "",
            median(wall) * 8 / max(gpus, 1) <= 10 if name == "watch" else None,
        )
        yield Row(
            f"{name} read of {gpus} GPUs, CPU",
            f"{median(cpu):.1f} ms",
            "≤ 100 ms for 8" if name == "full" else "",
            median(cpu) * 8 / max(gpus, 1) <= 100 if name == "full" else None,
        )


def calls(reader: Nvidia, library: Library) -> None:
    """The dearest calls of one full read."""
    timed = Timed(library.nvml)
    library.nvml = timed  # type: ignore[assignment]
    reader.full()
    dearest = sorted(timed.seconds, key=lambda name: -timed.seconds[name])[:DEAREST]
    for name in dearest:
        print(f"{name:45} {timed.calls[name]:5} calls {timed.seconds[name] * 1000:9.2f} ms")


def main() -> None:
    """Print both tables."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else LIBRARY
    with tempfile.TemporaryDirectory() as folder:
        library = Library(eight(Path(folder)) if wanted == "fake" else wanted)
        reader = Nvidia(library)
        show("GPU reads", list(rows(reader)))
        calls(reader, library)
        reader.close()


if __name__ == "__main__":
    main()
