"""GPUs, kernel log and memory of this node: read by workers, kept by monitors of the main loop."""
