"""All ranks write numbers to the store of torch.distributed, and each reads the element-wise maximum there.

No process group is used: it would open a port in each rank, where any connection may end a job that runs out of files, and would be
among the job's collectives. A thread calls the store, whose calls have no deadline. The keys are below `KEY/`: `came`, `answer`,
`said/RANK`, the same for all exchanges, since a rank writes its numbers only when the exchange before is answered. A store serves
one call of a process at a time: while the job itself waits there (`new_group`), an exchange waits, too.
"""

from __future__ import annotations

import os

from mldebug_training.common.calls import BackgroundCall, LateError
from mldebug_training.helpers.switches.meeting import SILENT, Meeting
from mldebug_training.helpers.switches.opening import hand_out_token, new_token, request_token
from mldebug_training.helpers.switches.visits import LATE, LONGEST, StoreRequests

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

QUICK = 1.0  # seconds in which a store answers that is not silent
LAUNCHERS = "TORCHELASTIC_USE_AGENT_STORE"  # "True": no rank keeps the store


class RankAtStore:
    """A rank's access to the store of torch.distributed. `name`: the prefix of its keys, the same in all ranks."""

    def __init__(self, store: Any, name: str, rank: int, size: int) -> None:
        self.store, self.name, self.rank, self.size = store, name, rank, size

    def meeting(self, key: str) -> Meeting:
        """A new barrier (`Meeting`) of all these ranks, below this key of the store."""
        keeps = self.rank == 0 and os.environ.get(LAUNCHERS) != "True"
        return Meeting(self.store, key, self.size, is_host=keeps)


class Exchange:
    """One rank's part in an exchange of numbers between all ranks; `start` begins it. `before`: this rank's last exchange at
    the same store, None for the first.
    """

    def __init__(self, place: RankAtStore, numbers: Sequence[int], before: Exchange | None) -> None:
        self.turn: int = before.turn + 1 if before else 1
        self.key = ""  # unlike that of any earlier launch; "" until the exchange has begun
        self._numbers, self._why = tuple(numbers), ""
        self._visits = StoreRequests(place.store, place.size)
        self._call = BackgroundCall(lambda: self._run(place, before))

    def start(self) -> None:
        """Begin to exchange numbers with all ranks, in a thread. Returns at once. A second call has no effect."""
        self._call.start()

    def result(self, timeout: float) -> tuple[int, ...]:
        """For each number the highest of all ranks. Raises LateError where it is not known after `timeout` seconds, and
        errors of the store.
        """
        self._visits.hurry()
        if not self._call.wait(timeout):
            raise LateError(SILENT if self._visits.silent > QUICK else LATE)
        numbers: tuple[int, ...] = self._call.result(0.0)
        return numbers

    def stay_away(self, why: str) -> None:
        """Cancel the meeting of all ranks after this exchange, with `why` as the reason that they raise. Returns at once."""
        self._why = why

    def _run(self, place: RankAtStore, before: Exchange | None) -> tuple[int, ...]:
        with self._visits:
            self.key = self._begun(place, before)
            numbers = self._exchanged(place)
            if self._why:
                place.meeting(f"{self.key}/{self.turn}").post_answer(self._why)
            return numbers

    def _begun(self, place: RankAtStore, before: Exchange | None) -> str:
        """Return the key, as soon as this exchange may begin."""
        if before is None and place.rank:
            return f"{place.name}/{request_token(self._visits, place.name, LONGEST)}"
        if before is None:
            token = new_token()
            BackgroundCall(lambda: self._hand_out_token(place, token)).start()
            return f"{place.name}/{token}"
        self._visits.until(lambda: before._call.wait(0.0))
        before._call.result(0.0)
        return before.key

    def _hand_out_token(self, place: RankAtStore, token: str) -> None:
        visits = StoreRequests(place.store, place.size)
        with visits:
            hand_out_token(visits, place.name, token, lambda: self._call.wait(0.0), LONGEST)

    def _exchanged(self, place: RankAtStore) -> tuple[int, ...]:
        visits, words = self._visits, " ".join(map(str, (self.turn, *self._numbers)))
        visits.ask("set", f"{self.key}/said/{place.rank}", words)
        if visits.ask("add", f"{self.key}/came", 1) < self.turn * place.size:
            return visits.until(self._answer)[1:]
        words_of_all = visits.values([f"{self.key}/said/{one}" for one in range(place.size)])
        highest = tuple(map(max, *map(_parsed, words_of_all)))
        visits.ask("set", f"{self.key}/answer", " ".join(map(str, highest)))
        return highest[1:]

    def _answer(self) -> tuple[int, ...]:
        """Return the numbers that the last rank wrote, the turn first; () while there are none."""
        key = f"{self.key}/answer"
        numbers = (
            _parsed(self._visits.ask("get", key)) if self._visits.ask("check", [key]) else (0,)
        )
        return numbers if numbers[0] == self.turn else ()


def _parsed(words: bytes) -> tuple[int, ...]:
    return tuple(int(one) for one in words.split())
