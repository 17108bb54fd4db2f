"""Launchers, one file each: how each launcher's environment tells a process its rank."""

from mldebug_agents.jobs.launcher import Launcher

__all__ = ["Launcher"]
