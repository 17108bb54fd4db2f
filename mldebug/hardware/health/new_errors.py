"""Uncorrectable memory errors of one GPU that are new, and whether more than one reading shows them.

Pure.

Drivers sometimes answer with zeros or garbage and say SUCCESS. So the known count is what two
readings in a row gave. Errors that one reading adds are reported, and withdrawn if the next does
not confirm them. A count that falls and returns shows nothing new, unless it has stayed low for
long, or has grown from there: then the driver has really started anew.
"""

from typing import NamedTuple

MOST = 4096  # new errors between two reads: no job lives through so many
LOW_READS = 10  # reads after which a count that fell is taken for one that began anew


class NewErrors(NamedTuple):
    """New errors since the reading before. `sure`: more than one reading shows them."""

    many: int
    at: float  # unix: the first read that told of them
    sure: bool = True  # False: no other read has, yet


class ErrorCount:
    """Follows the error counter of one GPU. No error counts as new before two reads have agreed on the value."""

    def __init__(self) -> None:
        self._level: int | None = None  # what two reads said
        self._last: int | None = None
        self._last_at = 0.0
        self._high: int | None = None  # where it stood before it fell
        self._low = 0  # reads since it fell
        self._unsure: tuple[NewErrors, ...] = ()

    def see(self, count: int | None, at: float) -> tuple[NewErrors, ...]:
        """Add one reading of the counter at unix time `at`; None: it was not read.

        Returns the errors that are new, those that only this reading shows marked as not sure.
        """
        if count is None or (self._level is not None and count - self._level > MOST):
            return self._unsure
        found = self._new(count, at)
        self._unsure = tuple(one for one in found if not one.sure)
        self._last, self._last_at = count, at
        return found

    def _new(self, count: int, at: float) -> tuple[NewErrors, ...]:
        last, level = self._last, self._level
        if level is None or last is None:
            self._level = count if count == last else None
            return ()
        if count < level:
            self._high, self._low = max(level, self._high or 0), 0
        if self._high is not None:
            if count >= self._high:
                return self._back(count, last)
            self._fallen(count, last)
        return self._grown(count, at)

    def _back(self, count: int, last: int) -> tuple[NewErrors, ...]:
        """It had never fallen: some reads were wrong."""
        if self._high is not None and last >= self._high:
            self._level, self._high = min(count, last), None
        return ()

    def _fallen(self, count: int, last: int) -> None:
        self._low += 1
        if count == last and self._level is not None and count < self._level:
            self._level = count
        if self._low >= LOW_READS:
            self._high = None

    def _grown(self, count: int, at: float) -> tuple[NewErrors, ...]:
        last, level = self._last, self._level
        if last is None or level is None or count <= level:
            return ()
        both = min(count, last)
        found = []
        if both > level:
            found.append(NewErrors(both - level, self._last_at))
            self._level, self._high = both, None
        if count > max(both, level):
            found.append(NewErrors(count - max(both, level), at, sure=False))
        return tuple(found)
