"""A fleet: what this node's agent sends to the hub, and the hub itself."""
