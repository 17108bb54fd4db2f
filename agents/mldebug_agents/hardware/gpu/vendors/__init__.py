"""GPU vendors: one file for each maker, which reads its GPUs. It runs in a child of its own, because any call may never return."""

from typing import Protocol

from mldebug.hardware.gpu.excluded import ExcludedGpu
from mldebug.hardware.gpu.readings import NodeGpus, NodeWatch


class Vendor(Protocol):
    """What `create(options)` of a file in this folder returns.

    Errors: MissingLibraryError where there is no such GPU or no driver here, DriverGoneError where all handles have become
    invalid; both are in `mldebug_agents.hardware.gpu.errors`. One GPU that does not answer is no error: it is listed in `lost`.
    """

    def watch(self) -> NodeWatch:
        """Read what changes all the time (utilization, power) of all GPUs, in a few milliseconds."""
        ...

    def full(self) -> NodeGpus:
        """Read all values of all GPUs; a value that cannot be read is None, never 0."""
        ...

    def leave_alone(self, these: tuple[ExcludedGpu, ...]) -> None:
        """Do not touch these GPUs from now on, for as many seconds as each entry says. Called before each read, usually with ()."""
        ...

    def close(self) -> None:
        """Close all device files, so that the GPUs can be reset."""
        ...
