"""What the agent keeps on disk, and the child process that alone reads and writes it."""
