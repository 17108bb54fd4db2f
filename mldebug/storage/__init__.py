"""Filesystems, checkpoints, directory sizes and write rates, as values. Pure."""
