"""What all ranks agree on: the element-wise maximum of a few small numbers, asked at one step and known at the next.

Over a group of its own (gloo, on the CPU), so that a rank that asks more or less often than the others spoils no
collective of the job; and a step late, so that nobody waits for the network: the answer has come while the step ran.
"""

from __future__ import annotations

import datetime
import sys

from mldebug_training import ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


class Agreement:
    """Begin and finish in turns; all ranks of the job, equally often."""

    def __init__(self, group: Any = None, timeout: float = 600.0) -> None:
        """`group`: one to use, which takes CPU tensors; `timeout`: seconds that a rank waits for the others."""
        self._group = group
        self._timeout = datetime.timedelta(seconds=timeout)
        self._work: Any = None
        self._numbers: Any = None
        self._alone: tuple[int, ...] = ()

    @property
    def begun(self) -> bool:
        """Is an answer to be waited for?"""
        return self._work is not None

    def ready(self) -> bool:
        """Can there be an agreement now? A job of several ranks needs torch.distributed, initialised."""
        return size() > 0

    def begin(self, numbers: Sequence[int]) -> None:
        """Tell the others; returns at once. Numbers are 0 to 2**63 - 1."""
        if size() == 1:
            self._alone, self._work = tuple(numbers), True
            return
        torch, dist = sys.modules["torch"], sys.modules["torch.distributed"]
        if self._group is None:
            self._group = dist.new_group(backend="gloo", timeout=self._timeout)
        self._numbers = torch.tensor(list(numbers), dtype=torch.int64, device="cpu")
        self._work = dist.all_reduce(
            self._numbers, op=dist.ReduceOp.MAX, group=self._group, async_op=True
        )

    def finish(self) -> tuple[int, ...]:
        """The highest of all ranks, number by number. Raises RuntimeError after the timeout."""
        work, self._work = self._work, None
        if work is True:
            return self._alone
        work.wait(self._timeout)
        return tuple(int(one) for one in self._numbers.tolist())


def rank() -> int:
    """This rank; 0 where nobody knows."""
    dist = _initialized()
    return int(dist.get_rank()) if dist else max(0, ranks.rank_and_size()[0])


def size() -> int:
    """How many ranks have to agree; 0: several, and no way to reach them yet."""
    dist = _initialized()
    if dist:
        return int(dist.get_world_size())
    return 0 if ranks.rank_and_size()[1] > 1 else 1


def _initialized() -> Any:
    """torch.distributed where it runs; nothing is imported for it."""
    dist: Any = sys.modules.get("torch.distributed")
    return dist if dist and dist.is_available() and dist.is_initialized() else None
