"""Since when a process has so much more memory on its GPU."""

from collections.abc import Sequence

import pytest

from mldebug.hardware.gpu.readings import GpuProcess, GpuReading
from mldebug_agents.hardware.gpu.memory_growth import MemoryGrowth

GIB = 1 << 30
RANK = 101


def gpu(gib: float | None) -> GpuReading:
    """A GPU on which the rank has so much; None: the rank is not listed."""
    some = () if gib is None else (GpuProcess(pid=RANK, memory_bytes=int(gib * GIB)),)
    return GpuReading(uuid="GPU-1", index=1, processes=some)


@pytest.mark.parametrize(
    ("readings", "since"),
    [
        ([10.0, 10.0], 0.0),
        ([10.0, 14.0, 14.0], 130.0),
        ([10.0, 14.0, 20.0], 160.0),
        ([10.0, 10.5, 10.9], 0.0),  # less than a tenth
        ([10.0, 10.6, 11.2], 160.0),  # a tenth, bit by bit
        ([10.0, 7.0, 10.0], 0.0),  # a cache that was given back, and taken again
        ([10.0, None, 14.0], 0.0),  # another process, maybe: nobody knows since when
        ([0.0, 14.0, 14.0], 0.0),  # what it had before was not told
        ([14.0], 0.0),
        ([10.0, 14.0, 12.0], 130.0),
    ],
)
def test_since_when_it_is_larger(readings: Sequence[float | None], since: float) -> None:
    growth = MemoryGrowth()
    for number, gib in enumerate(readings):
        growth.update([gpu(gib)], 100.0 + 30 * number)
    assert growth.since("GPU-1", RANK) == since
    assert growth.since("GPU-2", RANK) == growth.since("GPU-1", 7) == 0.0
