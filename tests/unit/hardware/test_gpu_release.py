"""GPUs are let go where a reset is asked for and nobody else is in its way."""

import pytest

from mldebug.hardware.gpu.excluded import wants_release
from mldebug.hardware.gpu.readings import GpuProcess, GpuReading, NodeGpus

Processes = tuple[GpuProcess, ...] | None
BUSY = (GpuProcess(pid=620),)


@pytest.mark.parametrize(
    ("action", "own", "others", "expected"),
    [
        ("reset", (), (), True),
        ("bus_reset", (), (), True),
        ("drain_and_reset", (), (), True),
        ("none", (), (), False),
        (None, (), (), False),
        ("reboot", (), (), False),  # our handles are not in the way of that
        ("reset", BUSY, (), False),
        ("reset", (), BUSY, False),
        ("reset", (), None, False),
        ("reset", None, (), False),
    ],
)
def test_release(action: str | None, own: Processes, others: Processes, expected: bool) -> None:
    one = GpuReading(uuid="GPU-1", index=0, recovery_action=action, processes=own)
    two = GpuReading(uuid="GPU-2", index=1, recovery_action="none", processes=others)
    assert wants_release(NodeGpus(at=1.0, gpus=(one, two))) is expected


def test_without_gpus_there_is_nothing_to_release() -> None:
    assert wants_release(NodeGpus(at=1.0)) is False
