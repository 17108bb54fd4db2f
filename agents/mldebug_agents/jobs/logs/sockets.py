"""Which two sockets of this host talk to each other: /proc/PID/net/tcp and tcp6 have both ends of such a connection.

slurmstepd hands the output of its tasks to `srun` so, and a user may have many of those.
"""

from collections.abc import Iterable

_MAPPED = "0000000000000000FFFF0000"  # what an IPv4 address begins with in tcp6
MAX_LINES = 200_000


def peers(tables: Iterable[str]) -> dict[str, str]:
    """`socket:[12]` -> the other end's `socket:[13]`, for all connections with both ends in these tables."""
    ends: dict[tuple[str, str], str] = {}
    for table in tables:
        for line in table.splitlines()[1:MAX_LINES]:
            words = line.split()
            if len(words) > 9 and words[9] != "0":
                ends[_address(words[1]), _address(words[2])] = f"socket:[{words[9]}]"
    return {
        inode: ends[remote, local]
        for (local, remote), inode in ends.items()
        if (remote, local) in ends
    }


def _address(text: str) -> str:
    return text.removeprefix(_MAPPED)
