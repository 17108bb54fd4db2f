"""The memory of a fleet: the events that agents send to a hub, and what the hub's stored events say about jobs and nodes."""
