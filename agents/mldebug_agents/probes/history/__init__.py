"""What probes have measured on this node, on disk and in the agent."""
