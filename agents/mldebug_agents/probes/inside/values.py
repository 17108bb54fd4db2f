"""Test values for collectives: each rank and element has its own, so misplaced data shows, and all sums are exact.

Rank r has (3 i + 5 r) mod m at element i, with m small enough that the dtype holds the sum over all ranks exactly. The pattern
repeats after m elements, so every expected stretch is cut from one tile.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Tuple

Ranks = Tuple[int, ...]

BLOCK = 1 << 20  # elements that are compared at once
PERIOD = 113
EXACT = {
    "float64": 1 << 53, "float32": 1 << 24, "float16": 1 << 11, "bfloat16": 1 << 8,
    "int64": 1 << 62, "int32": (1 << 31) - 1, "int8": 127, "uint8": 255,
}  # fmt: skip


class Stretch(NamedTuple):
    """Part of a buffer: `length` elements from `start` hold the sum of these ranks' elements, counted from `first`."""

    start: int
    length: int
    ranks: Ranks
    first: int


class Values:
    """Known values for one world size and dtype, by which results of collectives are checked."""

    def __init__(self, torch: Any, world: int, dtype: str, device: Any) -> None:
        self._torch, self._device, self._dtype = torch, device, getattr(torch, dtype)
        limit = EXACT[dtype]
        self._loud = -(
            -world // limit
        )  # only each so manieth rank adds something, or sums were not exact
        adding = -(-world // self._loud)
        self.period = max(2, min(PERIOD, limit // adding + 1))
        self._tiles: dict[Ranks, Any] = {}

    def fill(self, buffer: Any, rank: int, first: int = 0) -> None:
        """Fill the buffer with the values of that rank, from its element `first` on."""
        self._each(
            buffer,
            Stretch(0, buffer.numel(), (rank,), first),
            lambda part, correct: part.copy_(correct),
        )

    def wrong(self, buffer: Any, stretches: list[Stretch]) -> int:
        """The number of elements in the buffer that differ from the expected result."""
        counts = [0]

        def compare(part: Any, correct: Any) -> None:
            counts[0] += int((part != correct).sum().item())

        for stretch in stretches:
            self._each(buffer, stretch, compare)
        return counts[0]

    def _each(self, buffer: Any, stretch: Stretch, work: Any) -> None:
        tile = self._tile(stretch.ranks)
        for at in range(0, stretch.length, BLOCK):
            size = min(BLOCK, stretch.length - at)
            begin = (stretch.first + at) % self.period
            work(buffer[stretch.start + at : stretch.start + at + size], tile[begin : begin + size])

    def _tile(self, ranks: Ranks) -> Any:
        if ranks not in self._tiles:
            if len(self._tiles) > 2:  # of many ranks they would fill the memory
                self._tiles.clear()
            index = self._torch.arange(self.period, dtype=self._torch.int64)
            table = index * 0
            for rank in ranks:
                if rank % self._loud == 0:
                    table = table + (3 * index + 5 * rank) % self.period
            repeats = BLOCK // self.period + 2
            self._tiles[ranks] = table.to(self._dtype).repeat(repeats).to(self._device)
        return self._tiles[ranks]
