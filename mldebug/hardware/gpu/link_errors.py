"""What the errors of NVLinks grew by, between the last two reads that really asked for them. Pure.

A link is asked at one full read of twenty: a rate over the time between two full reads would be twenty times too high once,
and 0 for ten minutes.
"""

from collections.abc import Callable, Iterator

import msgspec

from mldebug.hardware.gpu.readings import GpuReading, NvLink

Count = Callable[[str, int, float], int]
"""Make a counter monotone: name, what is told, seconds since it was told last -> its total."""


class _Asked(msgspec.Struct):
    """One link, as it was when its errors were asked for last."""

    at: float
    errors: dict[str, int]  # totals
    grown: dict[str, int] = {}
    seconds: float | None = None


class LinkErrors:
    """Remembers all links of a node."""

    def __init__(self) -> None:
        self._asked: dict[tuple[str, int], _Asked] = {}

    def take(self, gpu: GpuReading, at: float, count: Count) -> Iterator[NvLink]:
        """Its links with monotone errors, and what they grew by."""
        for link in gpu.nvlinks:
            key = (gpu.uuid, link.link)
            before = self._asked.get(key)
            if link.errors_read or before is None:
                before = self._asked[key] = _ask(link, at, before, count)
            yield msgspec.structs.replace(
                link, errors=before.errors, grown=before.grown, grown_seconds=before.seconds
            )

    def keep_only(self, uuids: set[str]) -> None:
        """Forget all other GPUs."""
        self._asked = {key: one for key, one in self._asked.items() if key[0] in uuids}


def _ask(link: NvLink, at: float, before: _Asked | None, count: Count) -> _Asked:
    seconds = max(0.0, at - before.at) if before else 0.0
    totals = {
        kind: count(f"nvlink {link.link} {kind}", told, seconds)
        for kind, told in link.errors.items()
    }
    old = before.errors if before else {}
    more = {kind: total - old[kind] for kind, total in totals.items() if kind in old}
    grown = {kind: one for kind, one in more.items() if one}
    return _Asked(at, totals, grown, seconds or None)
