"""Checkpoints of a job: the files on disk, whether they are complete, and how much work would be lost by a stop now.

Pure.
"""
