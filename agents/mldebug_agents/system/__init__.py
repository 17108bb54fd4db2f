"""The operating system under the agent: child processes with deadlines, /proc, the service's life."""
