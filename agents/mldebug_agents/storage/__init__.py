"""Filesystems, checkpoints, directory sizes and write rates of this node, each read by a worker of its own."""
