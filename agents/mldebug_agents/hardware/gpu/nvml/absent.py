"""GPUs that must not be queried now and why, and GPUs that were listed before and are not listed now; by index, as NVML counts
them.
"""

import time
from collections.abc import Callable, Iterable

import msgspec

from mldebug.hardware.gpu.excluded import CODE, PAUSE, ExcludedGpu, why
from mldebug.hardware.gpu.positions import as_nvml
from mldebug.hardware.gpu.readings import UNLISTED, LostGpu
from mldebug.hardware.kernel_log.lines.reader import bus_id
from mldebug_agents.hardware.gpu.nvml.calls import Device

FIRST_PAUSE, LONGEST_PAUSE = 5.0, 300.0  # seconds in which a GPU that is lost is left alone


class _Lost(msgspec.Struct):
    """A GPU that does not answer, and when to try again."""

    gpu: LostGpu
    until: float
    pause: float


class Absent:
    """Remembers which GPUs were there, so that one that is gone can be named, and until when one that failed to answer is left alone.
    `clock` returns seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lost: dict[int, _Lost] = {}
        self._last_known: dict[str, LostGpu] = {}  # uuid -> how it would be told, were it missing
        self._at: dict[int, str] = {}  # index -> uuid, as long as the driver is the same

    def note(self, device: Device) -> None:
        """Remember uuid and address of a GPU that answers. A failure noted for another index at the same address is forgotten."""
        self._at[device.index] = device.uuid
        self._last_known[device.uuid] = LostGpu(
            index=device.index,
            uuid=device.uuid,
            bus_id=device.bus_id,
            reason="it was there, and the driver does not list it any more",
            code=UNLISTED,
        )
        self._lost = {
            index: one
            for index, one in self._lost.items()
            if index == device.index or one.gpu.bus_id != device.bus_id
        }

    def answers(self, index: int) -> None:
        """Note that the GPU with this index was read: it counts as lost no longer."""
        self._lost.pop(index, None)

    def lose(self, index: int, reason: str, code: str) -> None:
        """Note that a GPU failed to answer, and do not query it for a while: each further failure doubles the pause, up to
        `LONGEST_PAUSE`.
        """
        before = self._lost.get(index)
        pause = min(LONGEST_PAUSE, before.pause * 2) if before else FIRST_PAUSE
        self._put_aside(index, reason, code, pause)

    def leave_alone(self, index: int, xid: int) -> None:
        """Do not query the GPU with this index for at least `PAUSE` seconds from now on, because the driver reported this
        Xid (its error number).
        """
        before = self._lost.get(index)
        self._forbid(index, xid, max(PAUSE, before.pause if before else 0.0))

    def stop_querying(self, these: Iterable[ExcludedGpu], count: int) -> tuple[int, ...]:
        """Stop querying the GPUs in `these`, which the kernel log says are unsafe to query. Returns their indexes.

        `count`: how many GPUs the driver lists. An entry whose GPU is not found has no effect.
        """
        found = [(self._index(one, count), one) for one in these]
        for index, one in found:
            if index is not None:
                left = max(one.seconds, self._left(index))
                if left > self._left(index) or not self.forbidden(index):
                    self._forbid(index, one.xid, left, one.bus_id)
        return tuple(index for index, _ in found if index is not None)

    def rests(self, index: int) -> bool:
        """Whether the GPU with this index must not be queried now, for whatever reason."""
        return self._left(index) > 0

    def forbidden(self, index: int) -> bool:
        """Whether the GPU with this index must not be queried now because of an Xid."""
        lost = self._lost.get(index)
        return lost is not None and lost.gpu.code.startswith(CODE) and self.rests(index)

    @property
    def silent(self) -> bool:
        """Whether some GPUs do not answer, and restarting the library could help; never where an Xid forbids to query one
        of them.
        """
        return bool(self._lost) and not any(map(self.forbidden, self._lost))

    def forgive(self) -> None:
        """After a restart of the library: query all GPUs again, except those that an Xid forbids to query."""
        self._lost = {index: one for index, one in self._lost.items() if self.forbidden(index)}

    def renumber(self) -> None:
        """After the driver has listed another number of GPUs: forget everything that was noted by a GPU's index."""
        self._at.clear()
        self._lost.clear()

    def lost_gpus(self, count: int) -> tuple[LostGpu, ...]:
        """GPUs that did not answer at the last read, and GPUs that were listed before and are not listed now."""
        here = {self._at.get(index) for index in range(count)}
        missing = [one for uuid, one in self._last_known.items() if uuid not in here]
        lost = [self._lost[index].gpu for index in sorted(self._lost)]
        if len(missing) == 1 and [one.uuid for one in lost] == [""]:  # it is that one
            unnamed = lost.pop()
            missing = [
                msgspec.structs.replace(missing[0], reason=unnamed.reason, code=unnamed.code)
            ]
        return (*lost, *missing)

    # --- inside ------------------------------------------------------------------------------------

    def _left(self, index: int) -> float:
        lost = self._lost.get(index)
        return max(0.0, lost.until - self._clock()) if lost else 0.0

    def _index(self, one: ExcludedGpu, count: int) -> int | None:
        """Its number: as it told it itself, or, before it was ever asked, as it stands in the row of all."""
        numbers = {bus_id(lost.gpu.bus_id): index for index, lost in self._lost.items()}
        numbers |= {
            bus_id(self._last_known[uuid].bus_id): index for index, uuid in self._at.items()
        }
        numbers.pop("", None)
        if one.bus_id in numbers:
            return numbers[one.bus_id]
        unknown = one.of == count and one.place not in numbers.values()
        return one.place if unknown else None

    def _forbid(self, index: int, xid: int, seconds: float, address: str = "") -> None:
        self._put_aside(index, why(xid, time.time() + seconds), f"{CODE}{xid}", seconds)
        aside = self._lost[index]
        aside.pause = max(PAUSE, seconds)
        if not aside.gpu.bus_id:
            aside.gpu = msgspec.structs.replace(aside.gpu, bus_id=as_nvml(address))

    def _put_aside(self, index: int, reason: str, code: str, pause: float) -> None:
        before = self._last_known.get(self._at.get(index, "")) or LostGpu(index=index, reason="")
        gpu = msgspec.structs.replace(before, reason=reason, code=code)
        self._lost[index] = _Lost(gpu, self._clock() + pause, pause)
