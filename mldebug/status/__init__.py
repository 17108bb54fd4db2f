"""What a person sees of a node's GPUs and kernel log: data first, then lines."""
