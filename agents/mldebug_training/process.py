"""What this process says of itself: its one record, made when it is first needed, and given up in a forked child.

Nothing here raises: whatever is broken around the record, the training goes on without it.
"""

from __future__ import annotations

import atexit
import os
import time

from mldebug_training import ranks, stacks
from mldebug_training.flight import Flight
from mldebug_training.record import FOLDER, Record, short, sweep


class Process:
    """The record of the process that asks, and of no other: a fork has none until it speaks for itself."""

    def __init__(self, folder: str = FOLDER) -> None:
        self._folder = folder
        self._record: Record | None = None
        self._flight: Flight | None = None
        self._tried = False
        self.explicit = False  # the job tells its steps itself
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    @property
    def record(self) -> Record | None:
        """It, made at the first question; None where it cannot be had."""
        if self._record is None and not self._tried:
            self._tried = True
            self._record = self._made()
        return self._record

    def start(self) -> None:
        """Make the record now, so that a rank that hangs before its first step can be asked for its stacks."""
        _ = self.record

    def beat(self, step: int) -> None:
        """Say that a step was reached."""
        record = self.record
        if record is not None:
            record.beat(step)
            if record.signal and record.beats % stacks.REWIND_EVERY == 0:
                stacks.rewind(record.stacks_fd)

    def enter(self, phase: str) -> tuple[bytes, int]:
        """Say what the process does from now on. Returns what `leave` wants back."""
        record = self.record
        if record is None:
            return b"", 0
        before = record.phase, record.phase_ns
        record.phase, record.phase_ns = short(phase, 32), time.monotonic_ns()
        record.write()
        return before

    def leave(self, before: tuple[bytes, int]) -> None:
        """Go back to the phase before."""
        if self._record is not None:
            self._record.phase, self._record.phase_ns = before
            self._record.write()

    def close(self) -> None:
        """Take the record away; what the agent has read it keeps."""
        record, self._record = self._record, None
        flight, self._flight = self._flight, None
        self._tried = True
        if record is not None:
            stacks.disarm(record.signal)
            stacks.remove(record.path)
            record.close()
        if flight is not None:
            flight.close()

    def _made(self) -> Record | None:
        try:
            sweep(self._folder)
            record = Record(self._folder)
        except Exception:  # no /dev/shm, a full one, no /proc
            return None
        record.rank, record.world_size = ranks.rank_and_size()
        self._flight = flight = Flight(record)
        record.signal, record.stacks_fd = stacks.arm(record.path, flight.tell)
        flight.armed(record.signal)
        record.write()
        return record

    def _forget(self) -> None:
        record, self._record, self._tried = self._record, None, False
        flight, self._flight = self._flight, None
        if record is not None:
            record.close(unlink=False)
        if flight is not None:
            flight.close(unlink=False)


own = Process()
