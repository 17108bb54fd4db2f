"""Memory of the host, of control groups and of ranks: what cannot be taken back, how it grows, and when it is used up. Pure."""
