"""What the threads that ask the servers of one job tell each other: how far each rank is, and then who is asked for all its calls."""

import threading
import time

from mldebug.capture.flight_recorder.status import Status, spoken_for
from mldebug.core.model import FlightRecord


class Agreement:
    """Of `count` ranks out of a job of `world`. Whoever has not told how far it is by `until` (monotonic) is asked for everything."""

    def __init__(self, count: int, until: float, world: int = 0) -> None:
        self._count, self._until, self._world = count, until, world
        self._changed = threading.Condition()
        self._told: dict[int, Status | None] = {}
        self._speakers: dict[int, int] | None = None
        self._whole: dict[int, FlightRecord | None] = {}

    @property
    def several(self) -> bool:
        """Is there anybody to be compared with? Not where ranks of other nodes may wait in what is done here."""
        return 1 < self._count >= self._world

    def speaker(self, rank: int, status: Status | None) -> int | None:
        """Who speaks for what this rank has done; None: it is asked itself. Waits for the others."""
        with self._changed:
            self._told[rank] = status
            self._changed.notify_all()
            left = max(0.0, self._until - time.monotonic())
            self._changed.wait_for(self._is_settled, left)
            if self._speakers is None:
                known = {one: its for one, its in self._told.items() if its is not None}
                self._speakers = spoken_for(known) if len(known) >= self._count else {}
                self._changed.notify_all()
            return self._speakers.get(rank)

    def _is_settled(self) -> bool:
        return self._speakers is not None or len(self._told) >= self._count

    def put(self, rank: int, told: FlightRecord | str) -> None:
        """All that this rank tells, for those for whom it speaks."""
        with self._changed:
            self._whole[rank] = told if isinstance(told, FlightRecord) else None
            self._changed.notify_all()

    def whole(self, rank: int, until: float) -> FlightRecord | None:
        """What that rank has told, None where nothing has come in half of the time that is left: the other half is for asking without it."""
        with self._changed:
            left = max(0.0, until - time.monotonic())
            self._changed.wait_for(lambda: rank in self._whole, left / 2)
            return self._whole.get(rank)
