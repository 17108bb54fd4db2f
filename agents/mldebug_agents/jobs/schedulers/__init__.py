"""Schedulers that can be asked for jobs and nodes."""
