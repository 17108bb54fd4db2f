"""A child process that runs one of mldebug's own functions, as the main process holds it."""

import socket
from collections.abc import Callable

from mldebug_agents.system.child.pipes import ChildProcess


class ForkedWorker:
    """A forked child process that runs a function of mldebug and talks through `socket` (a stream socket)."""

    def __init__(
        self, child: ChildProcess, connection: socket.socket, kill: Callable[[ChildProcess], None]
    ) -> None:
        self.socket = connection
        self._child = child
        self._kill = kill

    @property
    def pid(self) -> int | None:
        """The worker's pid; None until the spawn helper has reported it."""
        self._child.update()
        return self._child.pid

    def gone(self) -> bool:
        """Whether the worker has ended. Never waits."""
        self._child.update()
        return self._child.over

    def hang_up(self) -> None:
        """Close the connection. An idle worker ends at once, one that hangs ends when its call returns."""
        self.socket.close()

    def let_go(self, words: str) -> ChildProcess:
        """Close the connection and return the child process, which is no longer used.

        If it does not end, it is listed under `words`.
        """
        self.socket.close()
        self._child.describe(words)
        return self._child

    def end(self) -> None:
        """Close the connection and have the worker killed. Returns at once; `gone` says when it has ended."""
        self.socket.close()
        if not self.gone():
            self._kill(self._child)

    def kill(self) -> None:
        """Close the connection, have the worker killed, and forget it at once: `gone` is True from now on."""
        self.end()
        self._child.close()
