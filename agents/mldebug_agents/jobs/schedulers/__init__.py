"""Schedulers, one file each: how each is asked for its jobs and nodes."""
