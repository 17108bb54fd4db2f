"""Suspended pools of ZFS that work again, which OpenZFS before 2.3 does not write into the kernel's log.

Its own file tells: `/proc/spl/kstat/zfs/POOL/state`, which was made to be readable while all else of the pool hangs. With `failmode=continue`
that never says SUSPENDED; then the pool works when it commits again, which a suspended one cannot: `txgs` beside it has its last transaction groups.
"""

import contextlib
import os
import re
from collections.abc import Iterable, Iterator

from mldebug.hardware.kernel_log.bursts import Burst
from mldebug.hardware.kernel_log.lines.filesystems import pool_alias
from mldebug.hardware.kernel_log.model import KernelEvent, KernelEventKind

FOLDER = "/proc/spl/kstat/zfs"
SUSPENDED = "SUSPENDED"
COMMITTED = "C"  # the state of a transaction group that is on the disks
MORE = (
    2  # so many groups committed after the pool was called suspended: one may have been on its way
)
MAX_POOLS = 16
MAX_HISTORY = 64 << 10  # bytes: a hundred groups are 12 KiB
_NAME = re.compile(r"[A-Za-z][\w.:-]{0,63}")


class SuspendedPools:
    """Follows the pools that the kernel's log called suspended. For one thread."""

    def __init__(self, folder: str = FOLDER) -> None:
        self._folder = folder
        self._suspended: set[str] = set()  # as the file itself has said
        self._newest: dict[
            str, tuple[float, int]
        ] = {}  # by pool: unix time of the kernel's line, and the newest group committed then

    def back(self, bursts: Iterable[Burst], at: float) -> Iterator[KernelEvent]:
        """Yield an end for each pool whose file called it suspended and does not any more, or that was exported since; unix time `at`.

        One that the file never called suspended has to commit again.
        """
        suspended_at = dict(_open_pools(bursts))
        for name in sorted(suspended_at)[:MAX_POOLS]:
            state = self._state(name)
            if state == SUSPENDED:
                self._suspended.add(name)
            elif state is not None and (
                name in self._suspended or self._commits(name, suspended_at[name])
            ):
                self._suspended.discard(name)
                yield KernelEvent(kind=KernelEventKind.FILESYSTEM_OK, at=at, device=pool_alias(name), text=f"pool {name}: {state}")  # fmt: skip

    def _commits(self, name: str, told_at: float) -> bool:
        """Whether the pool has committed more since it was looked at first after the kernel's line of `told_at` (unix)."""
        newest = self._committed(name)
        if newest is None:
            return False
        at, before = self._newest.setdefault(name, (told_at, newest))
        if at != told_at:
            self._newest[name] = told_at, newest
            return False
        return newest >= before + MORE

    def _committed(self, name: str) -> int | None:
        """The number of the newest transaction group that the pool has committed; None where that cannot be told."""
        with contextlib.suppress(OSError), open(f"{self._folder}/{name}/txgs") as file:
            return newest_committed(file.read(MAX_HISTORY))
        return None

    def _state(self, name: str) -> str | None:
        """The word in the pool's file, "exported" where the pool is not there any more; None where that cannot be told."""
        with contextlib.suppress(OSError):
            if not os.path.isdir(f"{self._folder}/{name}"):
                return "exported" if os.path.isdir(self._folder) else None
            with open(f"{self._folder}/{name}/state") as file:
                return file.read(64).strip() or None
        return None


def newest_committed(text: str) -> int | None:
    """The highest number of a group that is committed, in the rows `txg birth state …` of `txgs`; None where there is none."""
    rows = (line.split(maxsplit=3) for line in text.splitlines())
    done = (row[0] for row in rows if len(row) > 2 and row[2] == COMMITTED)
    return max((int(one) for one in done if one.isdecimal() and len(one) < 20), default=None)


def _open_pools(bursts: Iterable[Burst]) -> Iterator[tuple[str, float]]:
    """The names of pools that the kernel's log called suspended, with when it did so last."""
    for burst in bursts:
        root, name = burst.root, burst.root.device
        suspended = root.kind is KernelEventKind.FILESYSTEM_SHUTDOWN and root.alias == pool_alias(name)  # fmt: skip
        if suspended and _NAME.fullmatch(name):
            yield name, burst.last_at
