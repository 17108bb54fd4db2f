"""The hub: one process that stores the events of all agents, and answers questions about them."""
