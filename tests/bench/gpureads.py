"""What both reads of the GPUs cost on this node: wall clock and CPU, and which calls of the library take it.

python tests/bench/gpureads.py [LIBRARY]      without one: the node's own libnvidia-ml.so.1
python tests/bench/gpureads.py fake           the recorded H200s, eight of them: what pynvml and our own code take
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.table import Row, show
from fakenvml.library import FakeNvml
from gpu.timing import dearest, read_costs
from mldebug_agents.hardware.gpu.nvml.library import LIBRARY, Library
from mldebug_agents.hardware.gpu.vendors.nvidia import Nvidia

ROUNDS = int(os.environ.get("MLDEBUG_BENCH_ROUNDS", "30"))
PAUSE = 0.2  # seconds between two reads: the averages need a window
GPUS = 8


def eight(folder: Path) -> str:
    """A library with eight GPUs, of the two that were recorded."""
    fake = FakeNvml(folder)
    fake.grow(GPUS)
    os.environ.update(fake.environment)
    return fake.library


def rows(reader: Nvidia) -> Iterator[Row]:
    """The two reads."""
    for cost in read_costs(reader, ROUNDS, PAUSE):
        of_eight, watch = cost.of_eight, cost.what == "watch"
        yield Row(
            f"{cost.what} read of {cost.gpus} GPUs, wall",
            f"{cost.wall[0]:.1f} ms (longest {cost.wall[2]:.1f})",
            "≤ 10 ms for 8" if watch else "",
            of_eight[0] <= 10 if watch else None,
        )
        yield Row(
            f"{cost.what} read of {cost.gpus} GPUs, CPU",
            f"{cost.cpu[0]:.1f} ms",
            "" if watch else "≤ 100 ms for 8",
            None if watch else of_eight[1] <= 100,
        )


def main() -> None:
    """Print both tables."""
    wanted = sys.argv[1] if len(sys.argv) > 1 else LIBRARY
    with tempfile.TemporaryDirectory() as folder:
        library = Library(eight(Path(folder)) if wanted == "fake" else wanted)
        reader = Nvidia(library)
        show("GPU reads", list(rows(reader)))
        for name, calls, milliseconds in dearest(reader, library):
            print(f"{name:45} {calls:5} calls {milliseconds:9.2f} ms")
        reader.close()


if __name__ == "__main__":
    main()
