"""The group that the ranks agree in: gloo, on the CPU, and none of `torch.distributed`'s.

Those have numbers that are counted in each rank, so that one which only some ranks came to make would have all later groups
of the job wait for other ones than their neighbours. This one has a name of its own, and no number.
"""

from __future__ import annotations

import ctypes
import datetime
import sys

from mldebug_training.calls import ANSWERING, Call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

EXCHANGE = 600.0  # seconds that an exchange lives: ranks come to a step, and so begin it, at different times


class OwnGroup:
    """One that is being made since this was; it may be left at any moment."""

    def __init__(
        self, store: Any, rank: int, size: int, meet: Callable[[], str], connecting: float
    ) -> None:
        """`meet`: waits for all ranks, and gives what no other group is called. `connecting`: seconds to make it in, then."""
        self.size = size
        self._connecting = connecting
        self._made = Call(lambda: _make(store, rank, size, meet(), connecting))

    def join(self, patience: float) -> None:
        """Wait until it is made, where all are there after so many seconds. Raises LateError, and what PyTorch does."""
        self._made.result(patience + self._connecting + ANSWERING)

    def reduce(self, numbers: Any) -> Any:
        """The work of an exchange that has begun: the element-wise maximum of all ranks, in place. Not before `join`."""
        options = _distributed().AllreduceOptions()
        options.reduceOp = _distributed().ReduceOp.MAX
        options.timeout = datetime.timedelta(seconds=EXCHANGE)
        return self._made.result(0.0).allreduce([numbers], options)

    def leave(self, numbers: Sequence[int], patience: float) -> None:
        """Take part in the first exchange alone, with these numbers, as soon as the group is made; returns at once."""

        def say() -> None:
            self.join(patience)
            torch = sys.modules["torch"]
            self.reduce(torch.tensor(list(numbers), dtype=torch.int64, device="cpu"))

        Call(say)


def _make(store: Any, rank: int, size: int, name: str, connecting: float) -> Any:
    """Raises RuntimeError on a store in a file, which PyTorch removes with its last user: ours would keep it for the next job.

    For ever: where the last reference goes, at the end of a process say, gloo waits for an exchange that others never join.
    """
    if _in_a_file(store):
        raise RuntimeError("the job's store is a file: give Switches a `group` of yours")
    dist = _distributed()
    lengthen = getattr(dist.ProcessGroupGloo, "_set_default_timeout", None)
    seconds = datetime.timedelta(seconds=connecting if lengthen else EXCHANGE)
    group = dist.ProcessGroupGloo(dist.PrefixStore(name, store), rank, size, timeout=seconds)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
    if lengthen:
        lengthen(group, datetime.timedelta(seconds=EXCHANGE))
    return group


def _distributed() -> Any:
    return sys.modules["torch.distributed"].distributed_c10d


def _in_a_file(store: Any) -> bool:
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return type(store).__name__ == "FileStore"
