"""What the main loop needs of a store that keeps small named values over a restart: an agent's
`StateStore`, or a recording that is played back.
"""

import hashlib
from typing import Protocol


class KeyValueStore(Protocol):
    """Keeps small JSON values by name over restarts of the agent. Used by the main loop's thread only."""

    @property
    def opened(self) -> bool:
        """Whether the values that an earlier agent stored have been read."""
        ...

    def memo(self, name: str) -> bytes:
        """The value of this name; b"" where there is none."""
        ...

    def remember(self, name: str, data: bytes) -> None:
        """Keep a value under this name; b"" removes it."""
        ...

    def memos(self, beginning: str) -> tuple[str, ...]:
        """The names of kept values that begin with `beginning`."""
        ...


def hashed_name(prefix: str, key: str) -> str:
    """A name for the value that belongs to `key`, a text of any length: `prefix` and 24 digits of the key's SHA-256."""
    return prefix + hashlib.sha256(key.encode(errors="replace")).hexdigest()[:24]
