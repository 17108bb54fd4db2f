"""Filesystems, checkpoints, sizes of directories and write rates, as data. Pure."""
