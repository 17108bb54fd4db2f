"""What all ranks agree on: the element-wise maximum of a few small numbers, asked at one step and known at the next.

Over a group of its own (gloo, on the CPU), so that a rank that asks more or less often than the others spoils no
collective of the job; and a step late, so that nobody waits for the network: the answer has come while the step ran.
What follows from an answer waits until all ranks have met at the job's store.
"""

from __future__ import annotations

import os
import sys
import time
import zlib

from mldebug_training import ranks
from mldebug_training.calls import LateError
from mldebug_training.flight import collective_timeout
from mldebug_training.interrupted import pass_on
from mldebug_training.meeting import LONG_NAP, NAP, Meeting
from mldebug_training.owngroup import OwnGroup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any


CONNECTING = 60.0  # seconds at most to make the group in, once all have come to it
STEADY = 2  # times that the clocks of all ranks showed the same, after which they have to
RESTARTS = "TORCHELASTIC_RESTART_COUNT"  # torchrun's, whose store outlives a launch of the ranks
_made: dict[str, int] = {}  # agreements of this process, by the ranks that agree


class Agreement:
    """Begin and finish in turns; all ranks of the job or of a group, equally often."""

    def __init__(self, group: Any = None, timeout: float = 5.0) -> None:
        """`group`: one to use, which takes CPU tensors; `timeout`: seconds that a rank waits for the others."""
        self._group = group
        self._own: OwnGroup | None = None  # where none was given
        self._timeout = timeout
        self._name = _name(group)
        self._exchange = 0  # the last one begun; 0: that there is to be a group
        self._work: Any = None
        self._numbers: Any = None
        self._meeting: Meeting | None = None  # of the last exchange
        self._alone: tuple[int, ...] = ()

    @property
    def begun(self) -> bool:
        """Is an answer to be waited for?"""
        return self._work is not None

    def size(self) -> int:
        """How many ranks have to agree; 0: several, and no way to reach them yet; -1: this rank is not one of them."""
        dist = _initialized()
        if dist and self._own:
            return self._own.size
        return int(dist.get_world_size(self._group)) if dist else size()

    def begin(self, numbers: Sequence[int], timeout: float | None = None) -> None:
        """Tell the others; returns at once, but for the first time. Numbers are 0 to 2**63 - 1. Raises LateError."""
        if self.size() == 1:
            self._alone, self._work = tuple(numbers), True
            return
        if self._group is None and self._own is None:
            self._make_group(self._timeout if timeout is None else timeout)
        self._exchange, self._meeting = self._exchange + 1, None
        torch = sys.modules["torch"]
        self._numbers = torch.tensor(list(numbers), dtype=torch.int64, device="cpu")
        self._work = self._reduce(self._numbers)

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
        """Wait until all ranks have come here, too: all of them learn that, or none does. Raises LateError.

        Whoever was interrupted in it asks again, and hears what came of it.
        """
        if self.size() > 1:
            self._meet(timeout)

    def stay_away(self, why: str) -> None:
        """Tell the others, where they wait for this rank now; returns at once."""
        if self.size() < 2:
            return
        if self._meeting is None:
            self._meeting = self._new_meeting()
        self._meeting.stay_away(why)

    def give_up(self, numbers: Sequence[int], why: str) -> None:
        """Tell the others that this rank takes part no more, where they wait for it now and where they would; returns at once."""
        self.stay_away(why)
        if self._own is not None and self._exchange == 0:
            self._own.leave(numbers, self._timeout)
        elif (self._own or self._group) and self.size() > 1:
            self.begin(numbers)

    def shortest_timeout(self) -> float:
        """Seconds after which the first collective of the job's groups is ended in this rank; 0 where that is not known."""
        try:
            groups = list(sys.modules["torch.distributed.distributed_c10d"]._world.pg_map)
        except Exception as error:  # no torch, another PyTorch than those we know
            pass_on(error)
            groups = []
        told = [collective_timeout(one) for one in groups]
        return min((one for one in told if one), default=0.0)

    def _meet(self, timeout: float) -> None:
        meeting = self._meeting
        if meeting is None:
            meeting = self._meeting = self._new_meeting()
            meeting.come(timeout, LONG_NAP)
        else:
            meeting.hear()
        meeting.leave()

    def _new_meeting(self) -> Meeting:
        key = f"{self._name}/{self.size()}/{self._exchange}"
        return Meeting(_store(), key, self.size(), is_host=rank() == 0)

    def _make_group(self, timeout: float) -> None:
        """By all ranks, once all have come. Who is interrupted in it leaves it to a thread, and the others wait no longer."""
        meeting = self._meeting = self._new_meeting()

        def meet() -> str:
            told = meeting.come(timeout, NAP)
            meeting.leave()
            self._name = f"{self._name}/{told}"  # what no earlier launch has had
            return self._name

        store, limit = _store(), min(CONNECTING, timeout, self.shortest_timeout() / 2 or CONNECTING)
        self._own = OwnGroup(store, rank(), self.size(), meet, limit)
        self._own.join(timeout)

    def _reduce(self, numbers: Any) -> Any:
        """Begin an exchange; it ends by itself."""
        if self._own is not None:
            return self._own.reduce(numbers)
        dist = sys.modules["torch.distributed"]
        return dist.all_reduce(numbers, op=dist.ReduceOp.MAX, group=self._group, async_op=True)


def _name(group: Any) -> str:
    """The same in all ranks, if each of them makes its agreements of these ranks in the same order."""
    members = "all"
    if group is not None:
        try:
            told = sys.modules["torch.distributed"].get_process_group_ranks(group)
            members = f"{told[0]}-{zlib.crc32(repr(list(told)).encode()):08x}"
        except Exception as error:  # this rank is not in it
            pass_on(error)
            members = "others"
    _made[members] = _made.get(members, 0) + 1
    return f"mldebug/switches/{os.environ.get(RESTARTS, '0')}/{members}/{_made[members]}"


def _store() -> Any:
    """The job's."""
    return sys.modules["torch.distributed"].distributed_c10d._get_default_store()


def clock() -> int:
    """How many collectives the job has made in its main group: the same in all ranks at one step. 0: unknown."""
    dist = _initialized()
    try:
        return int(dist.group.WORLD._get_sequence_number_for_group()) if dist else 0
    except Exception as error:  # a backend that does not count
        pass_on(error)
        return 0


class Clocks:
    """What the clocks of all ranks have shown, from one agreement to the next."""

    def __init__(self) -> None:
        self._most = self._steady = self._parted = 0

    def have_parted(self, most: int, apart: int) -> bool:
        """Do they differ for good, where they were the same in all ranks? Once may be an accident."""
        self._parted = self._parted + 1 if apart else 0
        if self._parted and self._steady >= STEADY:
            return self._parted > 1
        self._steady = 0 if apart else self._steady + (most > self._most)
        self._most = most
        return False


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
    """How many ranks the job has; 0: several, and no way to reach them yet."""
    dist = _initialized()
    if dist:
        return int(dist.get_world_size())
    return 0 if ranks.rank_and_size()[1] > 1 else 1


def _initialized() -> Any:
    """torch.distributed where it runs; nothing is imported for it."""
    dist: Any = sys.modules.get("torch.distributed")
    return dist if dist and dist.is_available() and dist.is_initialized() else None
