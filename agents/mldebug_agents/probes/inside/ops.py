"""The collectives that are measured: their buffers, the call, and the values that must result."""

from __future__ import annotations

from typing import Any, Callable

from .values import Stretch, Values

SPLIT = ("all_gather", "reduce_scatter", "all_to_all")  # whose payload has one part for each rank


def elements(op: str, size: int, itemsize: int, world: int) -> int:
    """Return the number of elements in the larger buffer of an op for about `size` bytes of elements of `itemsize` bytes.
    Where the op splits the buffer among the ranks it is a multiple of their number `world`; at least one element for
    each part.
    """
    if op == "barrier":
        return 0
    parts = world if op in SPLIT else 1
    return max(1, size // itemsize // parts) * parts


def needed(op: str, count: int, itemsize: int, world: int) -> int:
    """How many bytes all buffers of one rank take for `count` elements."""
    own = {"all_gather": count // world, "reduce_scatter": count // world}.get(op, 0)
    twice = op in ("all_to_all", "send_recv")
    return (count * (2 if twice else 1) + own) * itemsize


class CollectiveOperation:
    """One collective with its buffers, ready to be called again and again."""

    def __init__(self, torch: Any, op: str, count: int, dtype: str, device: Any) -> None:
        self._torch, self._dist, self.op, self._count = torch, torch.distributed, op, count
        self.rank, self.world = self._dist.get_rank(), self._dist.get_world_size()
        self._chunk = count // self.world if op in SPLIT else count
        kind = getattr(torch, dtype)
        sent = self._chunk if op == "all_gather" else count
        self.sent = torch.zeros(sent, dtype=kind, device=device)
        self.got = self.sent
        if op in (*SPLIT, "send_recv"):
            got = self._chunk if op == "reduce_scatter" else count
            self.got = torch.zeros(got, dtype=kind, device=device)
        dist = self._dist  # newer names first: the older ones warn
        self._gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        self._scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
        self.call: Callable[[], object] = getattr(self, "_" + op)

    def wrong(self, values: Values) -> int | None:
        """Run the op once on known values. Returns how many elements are wrong on this rank; None where none can be checked."""
        if self.op == "barrier":
            return None
        expected = self.expected()
        values.fill(self.sent, self.rank)
        self.call()
        return values.wrong(self.got, expected) if expected else None

    def expected(self) -> list[Stretch]:
        """What the receiving buffer of this rank must hold afterwards."""
        rank, world, count, chunk = self.rank, self.world, self._count, self._chunk
        everybody = tuple(range(world))
        if self.op == "all_gather":
            return [Stretch(peer * chunk, chunk, (peer,), 0) for peer in everybody]
        if self.op == "all_to_all":
            return [Stretch(peer * chunk, chunk, (peer,), rank * chunk) for peer in everybody]
        if self.op == "reduce" and rank != 0:
            return []
        return {
            "all_reduce": [Stretch(0, count, everybody, 0)],
            "reduce": [Stretch(0, count, everybody, 0)],
            "broadcast": [Stretch(0, count, (0,), 0)],
            "reduce_scatter": [Stretch(0, chunk, everybody, rank * chunk)],
            "send_recv": [Stretch(0, count, ((rank - 1) % world,), 0)],
        }[self.op]

    def _all_reduce(self) -> None:
        self._dist.all_reduce(self.sent)

    def _all_gather(self) -> None:
        self._gather(self.got, self.sent)

    def _reduce_scatter(self) -> None:
        self._scatter(self.got, self.sent)

    def _all_to_all(self) -> None:
        self._dist.all_to_all_single(self.got, self.sent)

    def _broadcast(self) -> None:
        self._dist.broadcast(self.sent, 0)

    def _reduce(self) -> None:
        self._dist.reduce(self.sent, 0)

    def _barrier(self) -> None:
        self._dist.barrier()

    def _send_recv(self) -> None:
        """To the next rank, from the one before."""
        to, source = (self.rank + 1) % self.world, (self.rank - 1) % self.world
        requests = [
            self._dist.P2POp(self._dist.isend, self.sent, to),
            self._dist.P2POp(self._dist.irecv, self.got, source),
        ]
        for one in self._dist.batch_isend_irecv(requests):
            one.wait()
