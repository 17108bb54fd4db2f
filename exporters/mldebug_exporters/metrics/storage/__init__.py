"""Groups of metrics about the storage of a node and of its jobs: filesystems, folders, checkpoints, who writes."""
