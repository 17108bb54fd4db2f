"""Who holds CUDA memory now, in a form that stays small: PyTorch's snapshot of its allocator, added up by stack.

`torch.cuda.memory._snapshot()` has an entry for each block, easily a hundred thousand; this has one for each place that made some.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, Tuple

    Block = Tuple[int, "dict[str, Any]"]  # of which device

MAX_STACKS = 512  # those that hold most; the others are added up
MAX_FRAMES = 40  # of a stack, the innermost
SHORTEST = 200  # characters of a file name or function at most


def condensed(snapshot: dict[str, Any], most: int = MAX_STACKS) -> dict[str, Any]:
    """A snapshot of PyTorch's allocator, added up by stack: JSON of some hundred KiB at most.

        {"frames": [[file, line, function]], "stacks": [[number of a frame, the innermost first]],
         "held": [[device, number of a stack, blocks, bytes, bytes that were asked for]],
         "devices": [{"device", "reserved", "allocated", "requested", "pieces", "largest_free", "private", "left_out"}]}

    `held` has the `most` largest, and `left_out` the bytes of all others. `pieces`: blocks that nothing uses, and `largest_free` the
    largest of them; `private`: bytes in pools of CUDA graphs or of the job. All sizes are bytes.
    """
    segments = snapshot.get("segments") or []
    sums: dict[tuple[Any, ...], list[int]] = {}
    examples: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for device, block in _held(segments):
        frames = (block.get("frames") or [])[:MAX_FRAMES]
        key = (
            device,
            *map(id, frames),
        )  # PyTorch makes one object for each line, however often it stands in stacks
        total = sums.setdefault(key, [0, 0, 0])
        examples.setdefault(key, frames)
        size = int(block.get("size", 0))
        total[0] += 1
        total[1] += size
        total[2] += int(block.get("requested_size", size))
    devices = {
        number: _device(number, segments) for number in sorted({_number(one) for one in segments})
    }
    largest = sorted(sums, key=lambda one: -sums[one][1])
    for key in largest[most:]:
        devices[key[0]]["left_out"] += sums[key][1]
    table = _Table()
    held = [[key[0], table.stack(examples[key]), *sums[key]] for key in largest[:most]]
    return {
        "frames": table.frames,
        "stacks": table.stacks,
        "held": held,
        "devices": list(devices.values()),
    }


def _held(segments: Iterable[dict[str, Any]]) -> Iterator[Block]:
    """Blocks that a tensor holds, or that a stream has not let go of."""
    for segment in segments:
        device = _number(segment)
        for block in segment.get("blocks") or ():
            if str(block.get("state", "")).startswith("active"):
                yield device, block


def _device(number: int, segments: Iterable[dict[str, Any]]) -> dict[str, int]:
    mine = [one for one in segments if _number(one) == number]
    free = [
        int(block.get("size", 0))
        for one in mine
        for block in one.get("blocks") or ()
        if block.get("state") == "inactive"
    ]
    return {
        "device": number,
        "reserved": sum(int(one.get("total_size", 0)) for one in mine),
        "allocated": sum(int(one.get("active_size", 0)) for one in mine),
        "requested": sum(int(one.get("requested_size", 0)) for one in mine),
        "pieces": len(free),
        "largest_free": max(free, default=0),
        "private": sum(int(one.get("total_size", 0)) for one in mine if _is_private(one)),
        "left_out": 0,
    }


def _number(segment: dict[str, Any]) -> int:
    return int(segment.get("device", 0))


def _is_private(segment: dict[str, Any]) -> bool:
    return tuple(segment.get("segment_pool_id") or (0, 0)) != (0, 0)


class _Table:
    """Frames and stacks by number, each once."""

    def __init__(self) -> None:
        self.frames: list[list[Any]] = []
        self.stacks: list[list[int]] = []
        self._frames: dict[tuple[Any, ...], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {}

    def stack(self, frames: Iterable[dict[str, Any]]) -> int:
        numbers = tuple(self._frame(*_fields(one)) for one in frames)
        if numbers not in self._stacks:
            self._stacks[numbers] = len(self.stacks)
            self.stacks.append(list(numbers))
        return self._stacks[numbers]

    def _frame(self, file: str, line: int, function: str) -> int:
        key = (file, line, function)
        if key not in self._frames:
            self._frames[key] = len(self.frames)
            self.frames.append([file, line, function])
        return self._frames[key]


def _fields(frame: dict[str, Any]) -> tuple[str, int, str]:
    file, function = str(frame.get("filename", "")), str(frame.get("name", ""))
    return file[-SHORTEST:], int(frame.get("line", 0)), function[-SHORTEST:]
