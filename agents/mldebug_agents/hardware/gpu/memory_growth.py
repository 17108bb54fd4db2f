"""Since when each process has had so much memory on its GPU: one that begins to compute more for each step takes more at that moment. Pure."""

from collections.abc import Iterable

import msgspec

from mldebug.goodput.causes import LARGER
from mldebug.hardware.gpu.readings import GpuReading


class _Held(msgspec.Struct, frozen=True):
    """What one process has on one GPU. `since`: unix time of the first reading that has shown so much."""

    size: int
    since: float


class MemoryGrowth:
    """Remembers when the memory of each process on a GPU has last become larger by a tenth."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], _Held] = {}  # uuid, pid

    def update(self, gpus: Iterable[GpuReading], at: float) -> None:
        """Add a full reading, taken at unix time `at`. A process that it does not list is forgotten; one that has less than it had is as before."""
        newest: dict[tuple[str, int], _Held] = {}
        for gpu in gpus:
            for one in gpu.processes or ():
                key, size = (gpu.uuid, one.pid), one.memory_bytes or 0
                before = self._held.get(key)
                if before is None:
                    newest[key] = _Held(size, 0.0)
                elif size >= LARGER * before.size and size > 0:
                    newest[key] = _Held(size, at if before.size else 0.0)
                else:
                    newest[key] = before
        self._held = newest

    def since(self, uuid: str, pid: int) -> float:
        """Unix time of the first reading after it became larger; 0.0 where it has not, as far as it was read."""
        held = self._held.get((uuid, pid))
        return held.since if held else 0.0
