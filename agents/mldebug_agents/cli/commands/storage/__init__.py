"""Checkpoints and disks: commands, one file each."""
