"""The child processes for which a spawner is responsible: those that it started, those that did not
end when killed, and those of an earlier agent.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Sequence

from mldebug_agents.system.child.leftovers import Leftover
from mldebug_agents.system.child.pipes import ChildProcess

REMEMBERED = 64  # children whose words are known at the end
WORDS = 200  # characters that name a leftover


class ChildRegistry:
    """Lists the children that were started, and those that could not be ended.

    It starts and kills none. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._abandoned: list[ChildProcess] = []
        self._started: deque[ChildProcess] = deque(maxlen=REMEMBERED)
        self._inherited: tuple[Leftover, ...] = ()

    def add(self, child: ChildProcess) -> None:
        """Remember a child that was started."""
        with self._lock:
            self._started.append(child)

    def abandon(self, child: ChildProcess) -> None:
        """Give up a child that did not end after SIGKILL. It is listed until it ends."""
        child.note_start()
        with self._lock:
            self._abandoned.append(child)

    def inherit(self, leftovers: Sequence[Leftover]) -> None:
        """Add processes that an earlier agent could not end. They are listed until they end."""
        self._inherited = (*self._inherited, *leftovers)

    @property
    def abandoned(self) -> tuple[tuple[int, int, tuple[str, ...]], ...]:
        """Children that did not end when killed, as (pid, start in clock ticks since boot, argv),
        as long as they exist.
        """
        with self._lock:
            for child in self._abandoned:
                child.update()
            for child in [child for child in self._abandoned if child.over]:
                self._abandoned.remove(child)
                child.close()
            return tuple(
                (child.pid or 0, child.start_ticks, child.argv) for child in self._abandoned
            )

    def count(self, owner: object) -> int:
        """How many children that look at processes of this owner could not be ended; of None: those that look at nobody's,
        and those of an earlier agent.
        """
        earlier = len(self.inherited()) if owner is None else 0
        with self._lock:
            return earlier + sum(child.owner == owner for child in self._abandoned)

    @property
    def leftovers(self) -> tuple[Leftover, ...]:
        """Children that could not be ended, those of an earlier agent included."""
        ours = tuple(
            Leftover(pid, start, command_words(argv)) for pid, start, argv in self.abandoned
        )
        self._inherited = self.inherited()
        return (*self._inherited, *ours)

    def inherited(self) -> tuple[Leftover, ...]:
        """Child processes that still exist and that an earlier agent had started, which has ended without them."""
        return tuple(one for one in self._inherited if one.lives())

    def named(self, children: Sequence[Leftover]) -> list[Leftover]:
        """Describe children by the command lines that started them, as far as known: the kernel keeps only a short name."""
        words = {child.pid: command_words(child.argv) for child in self.recent()}
        return [
            Leftover(one.pid, one.start_ticks, words.get(one.pid, one.words)) for one in children
        ]

    def recent(self) -> list[ChildProcess]:
        """The last `REMEMBERED` children, with the present state of their pipes."""
        with self._lock:
            for child in self._started:
                with contextlib.suppress(OSError):  # its thread has closed it just now
                    child.update()
            return list(self._started)

    def close(self) -> None:
        """Close the status pipes of children that were abandoned."""
        with self._lock:
            while self._abandoned:
                self._abandoned.pop().close()


def command_words(words: Sequence[str]) -> str:
    """A command line as the text by which a child that could not be ended is listed."""
    return " ".join(words)[:WORDS]
