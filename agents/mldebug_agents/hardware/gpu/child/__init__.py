"""The child process that reads GPUs, and the messages between it and the agent."""
