"""Schedulers, one file each: how each is asked for its jobs and nodes. `Scheduler` is what each of them makes."""

from typing import Protocol

from mldebug.jobs.schedulers.model import Queue
from mldebug_agents.system.spawn import ProgramStarter


class Scheduler(Protocol):
    """Asks one scheduler for its jobs and nodes. The plugin's `Options` have `interval` (seconds) and `only_on` (names of nodes)."""

    def ask(self, starter: ProgramStarter, *, nodes: bool) -> Queue:
        """Return the scheduler's jobs, and with `nodes` the nodes that take no jobs.

        Blocks; raises `QueueError` where it gives no usable answer.
        """
        ...
