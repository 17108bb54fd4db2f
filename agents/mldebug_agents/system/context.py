"""What every part of the agent and every command needs to look at this node, as one small immutable value."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mldebug.config.schema import Config
from mldebug_agents.system.child.helper import Workers
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import WORKERS, Spawner


@dataclass(frozen=True, slots=True)
class Context:
    """`host`: raw reads of /proc. `reader`: reads of paths that may hang. `spawner`: starts processes. `node`: this node's name."""

    host: Host
    reader: Reader
    spawner: Spawner
    node: str
    current_config: Callable[[], Config]

    @property
    def config(self) -> Config:
        """The configuration that holds now; an agent may read its file again while it runs."""
        return self.current_config()


@contextmanager
def open_context(
    current_config: Callable[[], Config],
    children: Workers,
    root: str = "/",
) -> Iterator[Context]:
    """Start the helper process and the reader child; both end with the block. Open it before any thread is started.

    `children`: by name, the functions that child processes of this program may run. `root`: where the host's / is seen.
    """
    spawner = Spawner({**WORKERS, **children})
    reader = Reader(spawner)
    try:
        yield Context(Host(root), reader, spawner, socket.gethostname(), current_config)
    finally:
        reader.close()
        spawner.close()
