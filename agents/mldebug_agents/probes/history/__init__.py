"""The results of earlier probes on this node, on disk and in the agent."""
