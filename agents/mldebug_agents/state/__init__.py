"""What the agent keeps on disk, and the child process that alone touches it."""
