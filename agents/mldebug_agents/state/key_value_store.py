"""Where small facts survive a restart: the state store of an agent, or what a recording holds."""

from typing import Protocol


class KeyValueStore(Protocol):
    """Keeps small JSON values by name over restarts of the agent. For the main loop's thread only."""

    @property
    def opened(self) -> bool:
        """Whether the values of an earlier agent were read."""
        ...

    def memo(self, name: str) -> bytes:
        """The value of this name; b"" where there is none."""
        ...

    def remember(self, name: str, data: bytes) -> None:
        """Keep a value under this name; b"" removes it."""
        ...

    def memos(self, beginning: str) -> tuple[str, ...]:
        """The names that begin with `beginning`."""
        ...
