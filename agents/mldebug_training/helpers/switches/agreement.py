"""All ranks agree on the element-wise maximum of a few small numbers: begun at one step, read at the next.

It goes through the store of torch.distributed and not through a collective, so a rank that calls it more or less often than the
others breaks no collective of the job. It is read a step later, so that the network works while the step runs. What follows from an
answer waits until all ranks have called `meet`.
"""

from __future__ import annotations

import sys
import weakref
import zlib

from mldebug_training.common.interrupted import pass_on
from mldebug_training.helpers.switches.exchange import Exchange, RankAtStore
from mldebug_training.helpers.switches.meeting import Meeting, longest_nap
from mldebug_training.hook import ranks
from mldebug_training.hook.flight_recorder import collective_timeout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


STEADY = 2  # agreements in which the counts of all ranks were equal, after which they must stay so
_made: dict[str, int] = {}  # agreements of this process, by the ranks that agree


class RankAgreement:
    """Finds the element-wise maximum of a few numbers over all ranks. Call `begin` and `finish` in turn, equally often in all
    ranks of the job or group.
    """

    def __init__(self, group: Any = None, timeout: float = 5.0) -> None:
        """`group`: the process group whose ranks agree; None: all ranks. `timeout`: seconds that a rank waits for the others."""
        self._group = group
        self._timeout = timeout
        self._name = _name(group)
        self._store: Any = lambda: (
            None
        )  # refers to the one of the last exchange, and does not keep it
        self._last: Exchange | None = None  # at that store
        self._work: Exchange | None = None  # whose answer is to come
        self._meeting: Meeting | None = None  # after the last exchange
        self._alone: tuple[int, ...] | None = None

    @property
    def begun(self) -> bool:
        """Whether `begin` was called and `finish` not yet."""
        return self._work is not None or self._alone is not None

    def size(self) -> int:
        """How many ranks have to agree; 0: there are several, but torch.distributed is not initialised; -1: this rank is
        not in the group.
        """
        dist = _initialized()
        return int(dist.get_world_size(self._group)) if dist else size()

    def begin(self, numbers: Sequence[int]) -> None:
        """Publish this rank's numbers to the other ranks and return at once. Raises RuntimeError where the job's store is a
        file, since each use would make it longer.
        """
        if self.size() == 1:
            self._alone = tuple(numbers)
            return
        self._last = self._work = self._next(numbers)
        self._meeting = None
        self._work.start()

    def finish(self, timeout: float | None = None) -> tuple[int, ...]:
        """The maximum of each number over all ranks; `()` where nothing was begun.

        `timeout`: seconds, by default that of the agreement. Raises LateError where a rank has not published its numbers by then.
        """
        alone, self._alone = self._alone, None
        work, self._work = self._work, None
        if work is None:
            return alone or ()
        return work.result(self._timeout if timeout is None else timeout)

    def meet(self, timeout: float) -> None:
        """Wait up to `timeout` seconds until all ranks have called this. It returns in all ranks, or raises LateError in
        all.

        If it was interrupted by an exception, call it again: it then returns or raises what it would have.
        """
        if self.size() > 1:
            self._meet(timeout)

    def stay_away(self, why: str) -> None:
        """Tell the other ranks not to wait for this one; `why` is the reason that they raise. Returns at once."""
        if self.size() < 2:
            return
        last = self._last
        if last is None:  # nobody is waited for so far
            return
        last.stay_away(why)
        if last.key:
            self._meeting = self._meeting or self._new_meeting(last)
            self._meeting.stay_away(why)

    def give_up(self, numbers: Sequence[int], why: str) -> None:
        """Leave for good: the other ranks do not wait for this one now nor at the next agreement, to which it gives
        `numbers`. `why`: the reason that they raise. Returns at once.
        """
        if self._last is not None:
            self._last.start()  # it may have been interrupted before
        self.stay_away(why)
        if self.size() > 1:
            self.begin(numbers)

    def shortest_timeout(self) -> float:
        """The shortest timeout of a collective among all process groups of this rank, in seconds; 0 where none is known."""
        try:
            groups = list(sys.modules["torch.distributed.distributed_c10d"]._world.pg_map)
        except Exception as error:  # no torch, another PyTorch than those we know
            pass_on(error)
            groups = []
        timeouts = [collective_timeout(group) for group in groups]
        return min((timeout for timeout in timeouts if timeout), default=0.0)

    def _meet(self, timeout: float) -> None:
        meeting = self._meeting
        if meeting is None:
            last = self._last
            if last is None:
                return
            meeting = self._meeting = self._new_meeting(last)
            meeting.come(timeout, longest_nap(self.size()))
        else:
            meeting.outcome()
        meeting.leave()

    def _next(self, numbers: Sequence[int]) -> Exchange:
        """The first one at a store that is not the last one's: the job has left its groups, and made them anew."""
        place = self._place()
        if self._store() is not place.store:
            self._last, self._store = None, weakref.ref(place.store)
        return Exchange(place, numbers, self._last)

    def _new_meeting(self, last: Exchange) -> Meeting:
        return self._place().meeting(f"{last.key}/{last.turn}")

    def _place(self) -> RankAtStore:
        dist = sys.modules["torch.distributed"]
        store, size = dist.distributed_c10d._get_default_store(), self.size()
        if _is_a_file(store):
            raise RuntimeError("the job's store is a file, which each poll would make longer")
        return RankAtStore(store, f"{self._name}/{size}", int(dist.get_rank(self._group)), size)


def _name(group: Any) -> str:
    """The same in all ranks, if each of them makes its agreements of these ranks in the same order."""
    who = "all"
    if group is not None:
        try:
            ranks_of_group = sys.modules["torch.distributed"].get_process_group_ranks(group)
            who = f"{ranks_of_group[0]}-{zlib.crc32(repr(list(ranks_of_group)).encode()):08x}"
        except Exception as error:  # this rank is not in it
            pass_on(error)
            who = "others"
    _made[who] = _made.get(who, 0) + 1
    return f"mldebug/switches/{who}/{_made[who]}"


def _is_a_file(store: Any) -> bool:
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return type(store).__name__ == "FileStore"


def clock() -> int:
    """How many collectives the job has started in its main group. It is the same in all ranks at one step; 0 where it is not
    known.

    Only with NCCL: gloo's count includes point-to-point calls, which differ between ranks.
    """
    dist = _initialized()
    try:
        counts = dist and "nccl" in str(dist.get_backend())
        return int(dist.group.WORLD._get_sequence_number_for_group()) if counts else 0
    except Exception as error:  # a backend that does not count
        pass_on(error)
        return 0


class CollectiveClocks:
    """Compares the collective counts of all ranks (see `clock`) at each agreement with those at the one before."""

    def __init__(self) -> None:
        self._most = self._steady = self._parted = 0

    def have_parted(self, most: int, apart: int) -> bool:
        """Whether the counts, which were equal in all ranks before, have differed in two agreements in a row: the ranks no
        longer agree at the same step.

        `most`: the highest count of a rank. `apart`: 0 where all ranks have the same count.
        """
        self._parted = self._parted + 1 if apart else 0
        if self._parted and self._steady >= STEADY:
            return self._parted > 1
        self._steady = 0 if apart else self._steady + (most > self._most)
        self._most = most
        return False


def rank() -> int:
    """This process's global rank, from torch.distributed or the environment; 0 where neither has one."""
    dist = _initialized()
    return int(dist.get_rank()) if dist else max(0, ranks.rank_and_size()[0])


def size() -> int:
    """How many ranks the job has; 0: there are several, but torch.distributed is not initialised."""
    dist = _initialized()
    if dist:
        return int(dist.get_world_size())
    return 0 if ranks.rank_and_size()[1] > 1 else 1


def _initialized() -> Any:
    """torch.distributed where it runs; nothing is imported for it."""
    dist: Any = sys.modules.get("torch.distributed")
    return dist if dist and dist.is_available() and dist.is_initialized() else None
