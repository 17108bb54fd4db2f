"""Where a rank keeps its trace ring. A living one has it open; a dead one's is looked for where it was, under its name.

Nothing is opened here: links of /proc/PID/fd are read, and the reader child opens what they name.
"""

from collections.abc import Iterable
from typing import NamedTuple

from mldebug.capture.trace.layout import PREFIX
from mldebug.core.model import RankIdentity
from mldebug_agents.system.host import Host

FOLDER = "/dev/shm"  # noqa: S108 - read, never written
MAX_CANDIDATES = 16  # open files of one process that are looked into


class RingPlace(NamedTuple):
    """`path`: as it is opened from here. `told`: as the rank sees it. `open`: does a living one have it open?"""

    path: str
    told: str
    open: bool = True


def default_name(rank: RankIdentity) -> str:
    """The file's name in the default folder; the pid as the process itself sees it."""
    return f"{PREFIX}{rank.namespace_pid or rank.pid}-{rank.start_ticks}"


def living(host: Host, rank: RankIdentity) -> list[RingPlace]:
    """Where it may be: regular files that it has open to read and write, then the default place, where it may have closed that.

    What lies there and is not open may also be of before an exec, which keeps pid and start: see `maps_of`.
    """
    found = _open_files(host, rank.pid)
    told = f"{FOLDER}/{default_name(rank)}"
    if any(place.told == told for place in found):
        return found
    return [*found, RingPlace(f"{host.root_of(rank.pid)}{told}", told, open=False)]


def maps_of(host: Host, pid: int) -> str:
    """The file that tells what a process has mapped: a ring that it still writes is among it, and none of before an exec."""
    return f"{host.proc}/{pid}/maps"


def _open_files(host: Host, pid: int) -> list[RingPlace]:
    state = host.process_state(pid, threads=False, files=True)
    files = [one for one in state.files if one.mode == "rw"] if state else []
    files = [one for one in files if one.kind in ("file", "deleted") and one.target.startswith("/")]
    files.sort(key=lambda one: (PREFIX not in one.target, "ring" not in one.target, -one.fd))
    proc = f"{host.proc}/{pid}/fd"
    return [RingPlace(f"{proc}/{one.fd}", one.target) for one in files[:MAX_CANDIDATES]]


def dead(
    host: Host, rank: RankIdentity, known: RingPlace | None, folders: Iterable[str]
) -> list[RingPlace]:
    """Where it was, and the default name in each folder: as its launcher sees that path, and as we do."""
    told = [known.told] if known is not None else []
    told += [f"{folder}/{default_name(rank)}" for folder in (FOLDER, *folders)]
    roots = [host.root_of(rank.launcher_pid)] if rank.launcher_pid else []
    roots += [host.root_of(rank.pid), host.root]
    return [RingPlace(f"{root}{path}", path) for path in dict.fromkeys(told) for root in roots]
