"""Measures how long a step and a checkpoint take, and chooses how many steps there are between two agreements."""

from __future__ import annotations

import math
import time

from mldebug_training.hook.phases import Phase

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from mldebug_training.helpers.deadline import TimeLimit

PERIOD = 0.25  # seconds between two agreements, where steps are shorter
PER_RANK = 0.001  # as many more, of many ranks: one store answers them all
MOST = 16  # steps between two agreements: a run that becomes slow is not left alone for long


class AgreementPace:
    """When one rank begins the next agreement. Measured times are passed on to `limit`. `every`: steps between two agreements;
    None: chosen by the time of a step.
    """

    def __init__(self, limit: TimeLimit | None, every: int | None) -> None:
        self.due = 0  # the poll of the next agreement
        self._limit, self._every = limit, every
        self._begun: tuple[int, float] | None = None  # the poll and the time of the last one
        self._saved_since = 0.0  # seconds

    def measure(self, poll: int, size: int = 1) -> int:
        """Note that an agreement of `size` ranks begins at poll number `poll`. Returns how many steps this rank proposes
        until the next one.
        """
        now, before = time.monotonic(), self._begun
        self._begun = poll, now
        if before is None or poll <= before[0]:
            return self._every or 1
        length = max(0.0, now - before[1] - self._saved_since)
        self._saved_since = 0.0
        turns = poll - before[0]
        if self._limit:
            self._limit.interval(length, turns)
        return self._every or _steps(length / turns, max(1.0, size * PER_RANK / PERIOD))

    def agreed(self, steps: int) -> None:
        """Set the next agreement to this many steps after the last one; all ranks have agreed on the number."""
        if self._begun:
            self.due = self._begun[0] + max(1, steps)

    def saved(self, length: float) -> None:
        """Note that a checkpoint took `length` seconds to write."""
        self._saved_since += length
        if self._limit:
            self._limit.saved(length)


def _steps(turn: float, times: float) -> int:
    """Return how many steps fit between two agreements; `turn`: seconds per step; `times`: a factor for many ranks."""
    most = math.ceil(MOST * times)
    return min(most, max(1, math.ceil(times * PERIOD / turn))) if turn else most


class CheckpointTimer:
    """The context manager of `Switches.saving`: it measures how long a checkpoint takes, and reports it as a phase."""

    def __init__(self, then: Callable[[float], None]) -> None:
        self._then = then
        self._phase = Phase("checkpoint_save")
        self._since = 0.0

    def __enter__(self) -> None:
        self._phase.__enter__()
        self._since = time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._then(time.monotonic() - self._since)
        self._phase.__exit__()
