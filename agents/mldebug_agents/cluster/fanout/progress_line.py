"""The line on a terminal that shows how many nodes have answered and which have not."""

import time
from types import TracebackType
from typing import Self

from rich.status import Status

from mldebug.cli.console import Console
from mldebug.core.ranksets import fold_nodes, shorten_ranks

MAX_NAMES = 60  # characters
OFTEN = 0.1  # seconds between two lines


class Waiting:
    """Shows on a terminal's stderr how many nodes have answered. Call it with that number and the names of the others.

    Its thread begins with the first call: the process starter is forked before, when there are no threads yet.
    """

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        console = console or Console(stderr=True)
        shown = console.is_terminal and not quiet
        self._status = Status("asking the nodes", console=console) if shown else None
        self._shown = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._status:
            self._status.stop()

    def __call__(self, answered: int, missing: tuple[str, ...]) -> None:
        """Tell how far it is."""
        now = time.monotonic()
        if self._status is None or (missing and now - self._shown < OFTEN):
            return
        if not self._shown:
            self._status.start()
        self._shown = now
        self._status.update(words(answered, missing))


def words(answered: int, missing: tuple[str, ...]) -> str:
    """The progress in one line: `38 nodes have answered, 2 not yet: node[017,032]`."""
    have = f"{answered} {'node has' if answered == 1 else 'nodes have'} answered"
    if not missing:
        return have
    return f"{have}, {len(missing)} not yet: {shorten_ranks(fold_nodes(missing), MAX_NAMES)}"
