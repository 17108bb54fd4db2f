"""How those who work for somebody hear that nobody waits for the answer any more."""

from collections.abc import Callable

Gone = Callable[[], bool]  # whether nobody waits any more; from any thread
GONE = "whoever asked has gone"
LOOK = 0.5  # seconds between two looks of a thread whether it is so


def never() -> bool:
    """Say that somebody waits: of a request that nobody watches."""
    return False
