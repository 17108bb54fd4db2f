"""Where small facts survive a restart: the state store of an agent, or what a recording holds."""

from typing import Protocol


class KeyValueStore(Protocol):
    """Small things by name, as JSON. Belongs to the main loop's thread."""

    @property
    def opened(self) -> bool:
        """Has what an earlier agent left been read?"""
        ...

    def memo(self, name: str) -> bytes:
        """What is remembered under that name; empty where nothing is."""
        ...

    def remember(self, name: str, data: bytes) -> None:
        """Keep something under a name; nothing, where it is empty."""
        ...

    def memos(self, beginning: str) -> tuple[str, ...]:
        """The names that begin so."""
        ...
