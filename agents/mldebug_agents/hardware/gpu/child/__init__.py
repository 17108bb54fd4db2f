"""The child that reads GPUs, and what it and the agent say to each other."""
