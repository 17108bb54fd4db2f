"""When to let go of the GPUs: an open device file blocks the reset that the driver itself asks for."""

from mldebug.hardware.gpu.readings import NodeGpus

RESETS = frozenset({"reset", "drain_and_reset", "bus_reset"})


def wants_release(node: NodeGpus) -> bool:
    """Whether a GPU waits for a reset and nobody else is in its way: no process has a context on any GPU.

    All GPUs, because a reset takes those along that are linked to it. Where processes are not told, nothing is released.
    """
    asked = any(gpu.recovery_action in RESETS for gpu in node.gpus)
    return asked and all(gpu.processes == () for gpu in node.gpus)
