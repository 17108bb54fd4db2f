"""What the GPUs of a job in which everybody waits tell: whose stream is held, and which GPU differs from all others."""
