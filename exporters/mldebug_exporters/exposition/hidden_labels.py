"""Pseudonyms for what a label tells of users: their names, those of their jobs, and the paths of their folders.

They are the same as long as the agent runs, and nobody can try names until one fits: the key is random and in memory alone. Run ids
stay: they are hashes, and what Prometheus joins on.
"""

import hashlib
import secrets

from mldebug_exporters.exposition.families import Family

PRIVATE = frozenset(("user", "folder", "series", "cgroup", "id"))
"""Labels of any family."""
PRIVATE_OF = {"mldebug_run": frozenset(("name",))}
"""Labels of one family, by its name."""


class HiddenLabels:
    """Replaces label values; the same text always by the same pseudonym, `~` and eight digits."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._positions: dict[str, tuple[int, ...]] = {}

    def hidden(self, family: Family, labels: tuple[str, ...]) -> tuple[str, ...]:
        """Return the values with those hidden that are private; empty ones stay empty."""
        if (positions := self._positions.get(family.name)) is None:
            private = PRIVATE | PRIVATE_OF.get(family.name, frozenset())
            positions = tuple(at for at, name in enumerate(family.labels) if name in private)
            self._positions[family.name] = positions
        if not positions:
            return labels
        values = list(labels)
        for at in positions:
            values[at] = values[at] and self._of(values[at])
        return tuple(values)

    def _of(self, text: str) -> str:
        data = text.encode(errors="replace")
        return f"~{hashlib.blake2b(data, key=self._key, digest_size=4).hexdigest()}"
