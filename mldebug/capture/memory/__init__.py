"""Who holds CUDA memory: read from PyTorch's snapshots and from what the hook writes, and put into words. Pure."""
