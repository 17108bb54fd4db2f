"""Limits how much of a coordinator's memory each client address uses.

When memory is short, entries of the address that uses most are dropped, not those of others. Pure.
"""

import ipaddress
from collections import deque
from functools import lru_cache
from typing import NamedTuple

MAX_PEERS = 8_192  # nodes
MAX_BYTES = 128 << 20  # of what they announce, as JSON
RUN_BYTES = 1024  # of memory that a run takes at least, twice: in the announcement and its part
MAX_CALLS, MAX_OF_USER, WINDOW = 64, 32, 60.0  # captures in so many seconds


@lru_cache(MAX_PEERS)
def source_of(address: str) -> str:
    """The client that an address counts for: an IPv4 address itself; for IPv6 its /64 network, as one node may use any address of it.

    Text that is no address is returned as it is.
    """
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv6Address):
        return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))
    return str(ip)


class _Share(NamedTuple):
    source: str
    size: int


class SourceShares:
    """The names (of nodes) that each client address ("source") has announced, and their sizes in bytes.

    For one thread only.
    """

    def __init__(self, most_names: int = MAX_PEERS, most_bytes: int = MAX_BYTES) -> None:
        self._most_names, self._most_bytes = most_names, most_bytes
        self._shares: dict[str, _Share] = {}  # by name
        self._names: dict[str, dict[str, None]] = {}  # by source, the oldest first
        self._bytes: dict[str, int] = {}  # by source
        self._total = 0

    def add(self, name: str, source: str, size: int) -> list[str]:
        """Store a name of this source, `size` bytes.

        Returns names that were dropped to make room, which may include the new one.
        """
        self.remove(name)
        self._shares[name] = _Share(source, size)
        self._names.setdefault(source, {})[name] = None
        self._bytes[source] = self._bytes.get(source, 0) + size
        self._total += size
        surplus = []
        while (victim := self._surplus(source)) is not None:
            self.remove(victim)
            surplus.append(victim)
        return surplus

    def remove(self, name: str) -> None:
        """Forget a name, whichever source has announced it."""
        if (known := self._shares.pop(name, None)) is None:
            return
        self._total -= known.size
        self._bytes[known.source] -= known.size
        del self._names[known.source][name]
        if not self._names[known.source]:
            del self._names[known.source], self._bytes[known.source]

    @property
    def sources(self) -> int:
        """The number of client addresses ("sources") that have announced a name."""
        return len(self._names)

    def count(self, source: str) -> int:
        """The number of names that a source has announced."""
        return len(self._names.get(source, ()))

    def most(self) -> int:
        """The number of names of the source that has most names."""
        return max(map(len, self._names.values()), default=0)

    def _surplus(self, newest: str) -> str | None:
        """The name that has to go next. Of two sources with as much it is that of `newest`."""
        if self._total > self._most_bytes:
            greatest = max(self._bytes, key=lambda one: (self._bytes[one], one == newest))
        elif len(self._shares) > self._most_names:
            greatest = max(self._names, key=lambda one: (len(self._names[one]), one == newest))
        else:
            return None
        return next(iter(self._names[greatest]))


class CallBudget:
    """Limits how many captures over several nodes one source (client address), and each user of it, may cause in `WINDOW` seconds."""

    def __init__(self, most: int = MAX_CALLS, most_of_user: int = MAX_OF_USER) -> None:
        self._most, self._most_of_user = most, most_of_user
        self._calls: dict[str, deque[tuple[float, str]]] = {}  # by source, the oldest first

    def take(self, source: str, user: str, now: float) -> bool:
        """Whether this source and user may cause one more capture at `now` (monotonic seconds).

        If so, it is counted.
        """
        calls = self._calls.setdefault(source, deque())
        while calls and now - calls[0][0] >= WINDOW:
            calls.popleft()
        of_user = sum(1 for _, one in calls if one == user)
        if len(calls) >= self._most or of_user >= self._most_of_user:
            return False
        calls.append((now, user))
        return True

    def forget(self, now: float) -> None:
        """Forget sources that caused no capture in the last `WINDOW` seconds. `now`: monotonic seconds."""
        self._calls = {s: c for s, c in self._calls.items() if c and now - c[-1][0] < WINDOW}
