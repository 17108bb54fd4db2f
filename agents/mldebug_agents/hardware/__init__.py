"""What the node's GPUs and its kernel say of the runs: read by workers, kept and told by the main loop."""
