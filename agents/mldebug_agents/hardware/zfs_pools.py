"""Suspended pools of ZFS that work again, which OpenZFS before 2.3 does not write into the kernel's log.

Its own file tells: `/proc/spl/kstat/zfs/POOL/state`, which was made to be readable while all else of the pool hangs.
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
MAX_POOLS = 16
_NAME = re.compile(r"[A-Za-z][\w.:-]{0,63}")


class SuspendedPools:
    """Follows the pools that the kernel's log called suspended. For one thread."""

    def __init__(self, folder: str = FOLDER) -> None:
        self._folder = folder
        self._suspended: set[str] = set()  # as the file itself has said

    def back(self, bursts: Iterable[Burst], at: float) -> Iterator[KernelEvent]:
        """Yield an end for each pool whose file called it suspended and does not any more, or that was exported since; unix time `at`.

        What the file never called suspended has no end here: with `failmode=continue` old versions call such a pool well.
        """
        for name in sorted(set(_open_pools(bursts)))[:MAX_POOLS]:
            state = self._state(name)
            if state == SUSPENDED:
                self._suspended.add(name)
            elif state is not None and name in self._suspended:
                self._suspended.discard(name)
                yield KernelEvent(kind=KernelEventKind.FILESYSTEM_OK, at=at, device=pool_alias(name), text=f"pool {name}: {state}")  # fmt: skip

    def _state(self, name: str) -> str | None:
        """The word in the pool's file, "exported" where the pool is not there any more; None where that cannot be told."""
        with contextlib.suppress(OSError):
            if not os.path.isdir(f"{self._folder}/{name}"):
                return "exported" if os.path.isdir(self._folder) else None
            with open(f"{self._folder}/{name}/state") as file:
                return file.read(64).strip() or None
        return None


def _open_pools(bursts: Iterable[Burst]) -> Iterator[str]:
    """The names of pools that the kernel's log called suspended."""
    for burst in bursts:
        root, name = burst.root, burst.root.device
        suspended = root.kind is KernelEventKind.FILESYSTEM_SHUTDOWN and root.alias == pool_alias(name)  # fmt: skip
        if suspended and _NAME.fullmatch(name):
            yield name
