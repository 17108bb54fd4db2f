"""Memory of this node: of the host, of the control groups of the ranks, and of each rank."""
