"""What every part of the agent and every command needs to read this node, as one small immutable value."""

import platform
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mldebug import __version__
from mldebug.config.schema import Config
from mldebug_agents.system.child.helper import Workers
from mldebug_agents.system.child.structs import keep_imported
from mldebug_agents.system.host import Host
from mldebug_agents.system.reader import Reader
from mldebug_agents.system.spawn import WORKERS, Spawner


@dataclass(frozen=True, slots=True)
class Context:
    """What is needed to read this node.

    `host`: direct reads of /proc; `reader`: reads of paths that may hang; `spawner`: starts
    processes; `node`: this node's host name.
    """

    host: Host
    reader: Reader
    spawner: Spawner
    node: str
    current_config: Callable[[], Config]

    @property
    def config(self) -> Config:
        """The configuration in use now. An agent may have read its file again since the last call."""
        return self.current_config()


@contextmanager
def open_context(
    current_config: Callable[[], Config],
    children: Workers,
    root: str = "/",
    spawner: Spawner | None = None,
) -> Iterator[Context]:
    """A context that starts the helper process and the reader, and ends both at its end. Enter it
    before any thread is started.

    `children`: by name, the functions that child processes may run. `root`: where the host's `/` is
    mounted (in a container). `spawner`: one that knows `children`, if the helper was forked earlier.
    """
    if spawner is None:
        spawner = Spawner({**WORKERS, **children})
    else:
        keep_imported()
    reader = Reader(spawner)
    try:
        yield Context(Host(root), reader, spawner, socket.gethostname(), current_config)
    finally:
        reader.close()
        spawner.close()


def versions() -> dict[str, str]:
    """The versions of mldebug, Python and the kernel on this node, for a report."""
    return {
        "mldebug": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
    }
