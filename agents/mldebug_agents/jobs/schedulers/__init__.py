"""Schedulers, one file each: how each is asked for its jobs and nodes."""

from mldebug_agents.jobs.scheduler import Scheduler

__all__ = ["Scheduler"]
