"""Checkpoints of a job: the files on disk, whether they are whole, and how much work would be lost without them. Pure."""
