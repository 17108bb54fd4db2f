"""Who starts the child."""

from typing import Protocol

from mldebug_agents.system.spawn import Worker


class WorkerStarter(Protocol):
    """The part of a `Spawner` that is needed."""

    def fork_worker(self, name: str) -> Worker:
        """Fork the worker of that name; raises OSError when there is none to be had."""
        ...
