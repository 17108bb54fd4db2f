"""What all ranks agree on: the element-wise maximum of a few small numbers, asked at one step and known at the next.

Over a group of its own (gloo, on the CPU), so that a rank that asks more or less often than the others spoils no
collective of the job; and a step late, so that nobody waits for the network: the answer has come while the step ran.
"""

from __future__ import annotations

import datetime
import sys
import time

from mldebug_training import ranks

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


GROUP = 600.0  # seconds that an exchange lives: ranks come to a step, and so begin it, at different times
NAP, LONG_NAP = 0.005, 0.1  # seconds, the longest between two looks
_met = 0  # times that this process has met the others


class LateError(RuntimeError):
    """Another rank did not take part in time."""


class Agreement:
    """Begin and finish in turns; all ranks of the job, equally often."""

    def __init__(self, group: Any = None, timeout: float = 5.0) -> None:
        """`group`: one to use, which takes CPU tensors; `timeout`: seconds that a rank waits for the others."""
        self._group = group
        self._timeout = timeout
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

    def begin(self, numbers: Sequence[int], timeout: float | None = None) -> None:
        """Tell the others; returns at once, but for the first time. Numbers are 0 to 2**63 - 1. Raises LateError."""
        if size() == 1:
            self._alone, self._work = tuple(numbers), True
            return
        torch, dist = sys.modules["torch"], sys.modules["torch.distributed"]
        if self._group is None:
            _meet(dist, self._timeout if timeout is None else timeout)
            limit = datetime.timedelta(seconds=GROUP)
            self._group = dist.new_group(backend="gloo", timeout=limit)
        self._numbers = torch.tensor(list(numbers), dtype=torch.int64, device="cpu")
        self._work = dist.all_reduce(
            self._numbers, op=dist.ReduceOp.MAX, group=self._group, async_op=True
        )

    def finish(self, timeout: float | None = None) -> tuple[int, ...]:
        """The highest of all ranks, number by number. Raises LateError after the timeout; what was begun goes on."""
        work, self._work = self._work, None
        if work is True:
            return self._alone
        if not _until(work.is_completed, self._timeout if timeout is None else timeout):
            raise LateError("another rank did not poll in time")
        work.wait()
        return tuple(int(one) for one in self._numbers.tolist())

    def meet(self, timeout: float) -> None:
        """Wait until all ranks have come here, too: all of them learn that, or none does. Raises LateError."""
        if size() > 1:
            _meet(sys.modules["torch.distributed"], timeout, LONG_NAP)


def clock() -> int:
    """How many collectives the job has made in its main group: the same in all ranks at one step. 0: unknown."""
    dist = _initialized()
    try:
        return int(dist.group.WORLD._get_sequence_number_for_group()) if dist else 0
    except Exception:  # a backend that does not count
        return 0


def _meet(dist: Any, timeout: float, nap: float = NAP) -> None:
    """Wait at the job's store until all ranks are here, or until one gives up: all learn the same. Raises LateError."""
    global _met
    _met += 1
    store, key = dist.distributed_c10d._get_default_store(), f"mldebug/switches/{_met}"
    answer = [f"{key}/answer"]
    everyone = store.add(f"{key}/came", 1) == dist.get_world_size()
    if everyone or not _until(lambda: store.check(answer), timeout, nap):
        if store.add(f"{key}/decided", 1) == 1:
            store.set(answer[0], "all" if everyone else "late")
        _until(lambda: store.check(answer), timeout)
    if not store.check(answer) or store.get(answer[0]) != b"all":
        raise LateError("another rank did not come to this poll in time")


def _until(ready: Callable[[], bool], timeout: float, nap: float = NAP) -> bool:
    """Wait for it, and no longer."""
    deadline, pause = time.monotonic() + timeout, 0.0001
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(2 * pause, nap)
    return True


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
