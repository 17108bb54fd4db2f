"""Reads durations and sizes as settings have them, `15s`, `1h30m`, `20GiB`, and prints them for people, `1 h 30 min`, `20 GiB`."""

import re
from typing import Annotated

import msgspec

SECONDS = "seconds"
SIZE = "bytes"

Duration = Annotated[float, SECONDS]
"""A field that is written `1m30s` and read as 90.0 seconds; exact to the millisecond."""

PositiveDuration = Annotated[Duration, msgspec.Meta(gt=0)]
"""A duration above zero."""

Size = Annotated[int, SIZE]
"""A field that is written `20GiB` and read as bytes."""

_MILLISECONDS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DURATION = re.compile(
    r"[0-9]{1,9}(?:\.[0-9]{1,3})? ?(?:ms|min|[smhd])(?: ?[0-9]{1,9}(?:\.[0-9]{1,3})? ?(?:ms|min|[smhd])){0,4}"
)
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?(ms|min|[smhd])")
_BYTES = {
    "B": 1,
    "kB": 1000,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,3})?)\s?([kKMGT]?i?B)")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")

_LARGER = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def parse_duration(text: str) -> float:
    """The seconds in a text such as `90s`, `1m30s` or `1 min 30 s`. Raises ValueError that says what is wrong, also for a number
    without a unit.
    """
    if _NUMBER.fullmatch(text):
        raise ValueError(
            f"{text[:20]} has no unit; write {text[:20]}s for seconds or {text[:20]}m for minutes"
        )
    if not _DURATION.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is not a duration such as 15s, 4m or 1h30m")
    found = _DURATION_PART.findall(text)
    parts = [(number, "m" if unit == "min" else unit) for number, unit in found]
    units = [list(_MILLISECONDS).index(unit) for _, unit in parts]
    if units != sorted(set(units)):
        raise ValueError(
            f"{text[:40]!r} must name its units once and from large to small, such as 1h30m"
        )
    return round(sum(float(number) * _MILLISECONDS[unit] for number, unit in parts)) / 1000


def format_duration(seconds: float) -> str:
    """A duration as settings and options are written, `1h30m`, rounded to milliseconds; `parse_duration` reads it back. For sentences use `duration_words`."""
    left = round(seconds * 1000)
    parts = []
    for unit, size in _MILLISECONDS.items():
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def duration_words(seconds: float) -> str:
    """A duration for people, rounded to its two largest units: `4 min 10 s`, `3 d 8 h`; below a minute with a fraction: `1.2 s`,
    `250 ms`. Less than nothing is `0 s`.
    """
    if 0 < seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if 0 < seconds < 59.95:
        return f"{seconds:.3g} s"
    smallest = 1 if seconds < 3600 else 60 if seconds < 86_400 else 3600
    left = max(0, round(seconds / smallest) * smallest)
    parts = []
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts) or "0 s"


def age_words(seconds: float) -> str:
    """A time span in one unit, for the column of a table: `75 s`, `62 min`, `26 h`, `8 d`. Less than nothing is `0 s`."""
    whole = max(0, int(seconds))
    for unit, size, most in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 48 * 3600)):
        if whole < most:
            return f"{whole // size} {unit}"
    return f"{whole // 86_400} d"


def parse_size(text: str) -> int:
    """The bytes in a text such as `20GiB`. Raises ValueError that says what is wrong."""
    if _NUMBER.fullmatch(text):
        raise ValueError(
            f"{text[:20]} has no unit; write {text[:20]}B, {text[:20]}MiB or {text[:20]}GiB"
        )
    match = _SIZE.fullmatch(text)
    if not match or match[2] not in _BYTES:
        raise ValueError(f"{text[:40]!r} is not a size such as 20GiB or 512MiB")
    return (
        round(float(match[1]) * _BYTES[match[2]])
        if "." in match[1]
        else int(match[1]) * _BYTES[match[2]]
    )


def format_size(size: int) -> str:
    """A size in the largest binary unit that divides it without rest: `20GiB`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % _BYTES[unit] == 0:
            return f"{size // _BYTES[unit]}{unit}"
    return f"{size}B"


def size_words(count: float) -> str:
    """Bytes in words, with three digits and a binary unit: `412 GiB`."""
    unit = 0
    while abs(count) >= 1000 and unit < len(_LARGER) - 1:
        count, unit = count / 1024, unit + 1
    return f"{count:.3g} {_LARGER[unit]}"


def percent(share: float) -> str:
    """A share from 0 to 1 as a whole percentage: `7 %`."""
    return f"{100 * share:.0f} %"
