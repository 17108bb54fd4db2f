"""Reads PyTorch Flight Recorders of ranks without the hook: by worker server, dump file or debug FIFO."""
