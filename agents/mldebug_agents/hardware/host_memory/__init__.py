"""Memory of this node: host, control groups of the ranks, ranks."""
