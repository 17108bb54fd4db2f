"""How those who work for somebody hear that nobody waits for the answer any more."""

from collections.abc import Callable
from contextvars import ContextVar

Gone = Callable[[], bool]  # whether nobody waits any more; from any thread
GONE = "whoever asked has gone"
LOOK = 0.5  # seconds between two looks of a thread whether it is so


def never() -> bool:
    """Say that somebody waits: of a request that nobody watches."""
    return False


CURRENT: ContextVar[Gone] = ContextVar("current", default=never)
"""Of the request that a thread carries out."""


def current() -> Gone:
    """Says whether the sender of the request that this thread carries out has gone. May be called from any thread afterwards."""
    return CURRENT.get()
