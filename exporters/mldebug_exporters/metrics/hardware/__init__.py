"""Groups of metrics about the hardware of a node: GPUs, memory, network ports, kernel log, health."""
