"""What the GPUs show of a job in which every rank waits: which GPU's stream is held up, and which GPU differs from all others."""
