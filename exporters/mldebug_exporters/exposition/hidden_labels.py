"""Pseudonyms for label values that tell something about users: their names, the names of their jobs, and the paths of their folders.

They stay the same as long as the agent runs. Nobody can find a name by trying names, because the
key is random and only in memory. Run ids are not replaced: they are hashes, and Prometheus queries
join on them.
"""

import hashlib
import secrets

from mldebug_exporters.exposition.families import Family

PRIVATE = frozenset(("user", "folder", "series", "cgroup", "id"))
"""Labels of any family."""
OWNED = PRIVATE | {"path"}
"""Labels of samples that are of a user's jobs: a path of the configuration is nobody's secret."""
PRIVATE_OF = {"mldebug_run": frozenset(("name",))}
"""Labels of one family, by its name."""


class HiddenLabels:
    """Replaces private label values by pseudonyms: `~` and eight hexadecimal digits, for one text always the same."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._positions: dict[tuple[str, bool], tuple[int, ...]] = {}

    def hidden(
        self, family: Family, labels: tuple[str, ...], *, owned: bool = False
    ) -> tuple[str, ...]:
        """The label values of a sample, with private ones replaced by pseudonyms; empty values stay empty. `owned`: it is of a
        user's jobs alone.
        """
        if (positions := self._positions.get((family.name, owned))) is None:
            private = (OWNED if owned else PRIVATE) | PRIVATE_OF.get(family.name, frozenset())
            positions = tuple(at for at, name in enumerate(family.labels) if name in private)
            self._positions[family.name, owned] = positions
        if not positions:
            return labels
        values = list(labels)
        for at in positions:
            values[at] = values[at] and self._of(values[at])
        return tuple(values)

    def _of(self, text: str) -> str:
        data = text.encode(errors="replace")
        return f"~{hashlib.blake2b(data, key=self._key, digest_size=4).hexdigest()}"
