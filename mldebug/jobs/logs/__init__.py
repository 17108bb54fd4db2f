"""Training logs: bytes in, progress records out."""
