"""Checks that the numbers of a driver are physically possible: each function turns a raw value into base units, or raises
`AbsurdError`.

Drivers that report success may give all ones for "not available", and broken ones NaN, negative or astronomical numbers.
"""

import math
from collections.abc import Callable
from typing import Any

_NOT_AVAILABLE = (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)


class AbsurdError(ValueError):
    """The library gave a value that is impossible, such as a negative size."""


def _within(low: float, high: float, scale: float) -> Callable[[Any], float]:
    def convert(value: Any) -> float:
        if isinstance(value, int) and value in _NOT_AVAILABLE:
            raise AbsurdError("it says that the value is not available")
        number = float(value)
        if not math.isfinite(number) or not low <= number <= high:
            raise AbsurdError(f"it says {value}, which cannot be")
        return number * scale

    return convert


percent = _within(0, 100, 0.01)
milliwatts = _within(0, 100_000_000, 0.001)
millijoules = _within(0, 2**62, 0.001)
celsius = _within(-100, 300, 1.0)
megahertz = _within(0, 100_000, 1e6)
megabytes_per_second = _within(0, 1e9, 1e6)
mebibytes_per_second = _within(0, 1e9, 2.0**20)


def nearly_percent(value: Any) -> float:
    """A percentage as a share from 0 to 1. Averages that rounding took below 0 or above 100, by one at most, are clipped; beyond
    that, and for what is no number, AbsurdError.
    """
    return min(1.0, max(0.0, _within(-1, 101, 0.01)(value)))


def count(value: Any) -> int:
    """The value as a number of events or bytes. Raises AbsurdError where it cannot be one."""
    if not isinstance(value, int) or value in _NOT_AVAILABLE or not 0 <= value < 2**63:
        raise AbsurdError(f"it says {value}, which cannot be")
    return value


def size(value: Any) -> int:
    """The value as bytes of memory, at most 4 PiB. Raises AbsurdError where it cannot be one."""
    if count(value) > 2**52:
        raise AbsurdError(f"it says {value} bytes, which cannot be")
    return int(value)


def small(value: Any) -> int:
    """The value as a small number (lanes, a generation, an index), below 1024. Raises AbsurdError where it cannot be one."""
    if count(value) >= 1024:
        raise AbsurdError(f"it says {value}, which cannot be")
    return int(value)


def switch(value: Any) -> bool:
    """The value (0 or 1) as a bool. Raises AbsurdError for any other value."""
    if value not in (0, 1):
        raise AbsurdError(f"it says {value} where only 0 and 1 can be")
    return bool(value)


def words(value: Any) -> str:
    """The value as printable text of at most 96 characters. Raises AbsurdError where it is not a text."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return "".join(letter for letter in text if letter.isprintable())[:96].strip()
