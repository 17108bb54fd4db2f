"""The tools that every look at this node needs, opened together and closed together."""

import os
import socket
from typing import Self

from mldebug.config import Config
from mldebug.rooms import create_all
from mldebug_agents.capture import Capturer, Settings
from mldebug_agents.host import Host
from mldebug_agents.pyspy import PySpy
from mldebug_agents.reader import Reader
from mldebug_agents.sources.ranks import RankFinder
from mldebug_agents.spawn import Spawner


class Workbench:
    """Open before any thread is started: the process starter forks its helper first."""

    def __init__(self, config: Config, root: str = "/") -> None:
        self.config = config
        self.node = socket.gethostname()
        self.spawner = Spawner()
        self.reader = Reader(self.spawner)
        self.host = Host(root)
        self.pyspy = PySpy(self.spawner, str(config.capture.py_spy))
        self.finder = RankFinder(self.host, self.reader, self.node, create_all("clusters"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def capturer(self) -> Capturer:
        """A capturer with the settings of the `capture` section."""
        wanted = self.config.capture
        workers = 0 if wanted.workers == "auto" else wanted.workers
        settings = Settings(
            watch=wanted.watch, native=wanted.native, workers=workers, deadline=wanted.deadline
        )
        return Capturer(self.host, self.reader, self.pyspy, self.node, settings)

    def close(self) -> None:
        """End the reader and the helper."""
        self.reader.close()
        self.spawner.close()


def is_root() -> bool:
    """True where nothing on this node is closed to us by user."""
    return os.geteuid() == 0
