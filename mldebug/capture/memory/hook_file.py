"""Who held CUDA memory, read from the file that a rank's hook writes (layout: `mldebug_training.hook.on_request.memory_history`)."""

from typing import Annotated

import msgspec

from mldebug.capture.memory.holders import (
    DeviceTotals,
    HeldStack,
    frame_of,
    held_by_line,
    place_of,
)
from mldebug.capture.validation import decode_hook_file
from mldebug.core.model import Frame, MemoryFailure, MemoryHolders
from mldebug.core.redact import clean

MAX_BYTES = 256 << 10
MAX_FRAMES = 128  # of a stack; the hook writes 40
Size = Annotated[int, msgspec.Meta(ge=0, le=2**60)]
Text = Annotated[str, msgspec.Meta(max_length=400)]
RawFrame = tuple[Text, Annotated[int, msgspec.Meta(ge=0, le=2**31)], Text]


class _Device(msgspec.Struct, frozen=True):
    device: Annotated[int, msgspec.Meta(ge=0, le=1024)]
    reserved: Size = 0
    allocated: Size = 0
    requested: Size = 0
    pieces: Size = 0
    largest_free: Size = 0
    private: Size = 0
    left_out: Size = 0

    @property
    def totals(self) -> DeviceTotals:
        return DeviceTotals(*(getattr(self, name) for name in DeviceTotals._fields))


class CondensedSnapshot(msgspec.Struct, frozen=True):
    """A snapshot of PyTorch's allocator, added up by stack; see `mldebug_training.hook.on_request.memory_snapshot`."""

    frames: tuple[RawFrame, ...] = ()
    stacks: tuple[Annotated[tuple[Size, ...], msgspec.Meta(max_length=MAX_FRAMES)], ...] = ()
    held: tuple[tuple[Size, Size, Size, Size, Size], ...] = ()
    devices: tuple[_Device, ...] = ()

    def holders(self) -> tuple[MemoryHolders, ...]:
        """The memory of each GPU by the lines of code that hold it. Raises ValueError where the file refers to a frame or stack that it does not
        contain.
        """
        try:
            frames = [frame_of(*one) for one in self.frames]
            stacks = [tuple(frames[number] for number in one) for one in self.stacks]
            held = [(one[0], HeldStack(stacks[one[1]], one[2], one[3])) for one in self.held]
        except IndexError:
            raise ValueError("it names a frame or stack that it does not have") from None
        devices = {one.device: one for one in reversed(self.devices[:64])}
        return tuple(
            held_by_line(one.totals, [stack for device, stack in held if device == number])
            for number, one in sorted(devices.items())
        )


class _MemoryFile(msgspec.Struct, frozen=True):
    layout: int
    at: float
    snapshot: CondensedSnapshot
    step: int = -1
    phase: Text = ""
    device: int | None = None
    requested: Size = 0
    capacity: Size = 0
    free: Size = 0
    asked_by: tuple[RawFrame, ...] = ()
    stats: dict[Text, Size] = {}


def parse_failure(data: bytes) -> MemoryFailure:
    """Parse what the hook wrote when memory ran out. Raises ValueError with the reason."""
    file = decode_hook_file(data, _MemoryFile, MAX_BYTES)
    mine = [one for one in file.snapshot.holders() if one.device == file.device]
    stack: tuple[Frame, ...] = tuple(frame_of(*one) for one in file.asked_by)
    return MemoryFailure(
        at=file.at,
        requested=file.requested,
        capacity=file.capacity,
        free=file.free,
        asked_at=place_of(stack),
        step=file.step if file.step >= 0 else None,
        phase=clean(file.phase, 32),
        retries=file.stats.get("num_alloc_retries", 0),
        holders=mine[0] if mine else MemoryHolders(device=file.device or 0),
    )
