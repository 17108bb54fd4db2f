"""A child that runs one of our own functions for as long as it is wanted, as the main process holds it."""

import socket
from collections.abc import Callable

from mldebug_agents.system.child.pipes import ChildProcess


class ForkedWorker:
    """A forked child that runs one of our own functions and talks through `socket` (a stream)."""

    def __init__(
        self, child: ChildProcess, connection: socket.socket, kill: Callable[[ChildProcess], None]
    ) -> None:
        self.socket = connection
        self._child = child
        self._kill = kill

    @property
    def pid(self) -> int | None:
        """The worker's pid; None until the helper has reported it."""
        self._child.update()
        return self._child.pid

    def gone(self) -> bool:
        """Say whether it has ended; never waits."""
        self._child.update()
        return self._child.over

    def hang_up(self) -> None:
        """Close the connection: an idle worker ends at once, a stuck one when it comes back."""
        self.socket.close()

    def let_go(self, words: str) -> ChildProcess:
        """Hang up for good, and hand over the child, which has another name from now on."""
        self.socket.close()
        self._child.argv = (words,)
        return self._child

    def end(self) -> None:
        """Hang up and have it killed; `gone` says whether that was done."""
        self.socket.close()
        if not self.gone():
            self._kill(self._child)

    def kill(self) -> None:
        """Hang up and kill it, without waiting for its death."""
        self.end()
        self._child.close()
