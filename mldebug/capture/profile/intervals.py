"""Stretches of time as pairs (begin, end): joined, measured, subtracted."""

from collections.abc import Iterable

Interval = tuple[float, float]


def join(found: Iterable[Interval]) -> list[Interval]:
    """Join intervals that overlap or touch. Returns them sorted."""
    joined: list[Interval] = []
    for begin, end in sorted(found):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((begin, end))
    return joined


def length(found: Iterable[Interval]) -> float:
    """The time that these joined stretches take together."""
    return sum(end - begin for begin, end in found)


def without(found: list[Interval], taken: list[Interval]) -> list[Interval]:
    """What of the joined stretches `found` lies in none of the joined stretches `taken`."""
    left: list[Interval] = []
    place = 0
    for begin, end in found:
        while place and taken[place - 1][1] > begin:
            place -= 1
        at = begin
        while place < len(taken) and taken[place][0] < end:
            if taken[place][0] > at:
                left.append((at, taken[place][0]))
            at = max(at, taken[place][1])
            place += 1
        if at < end:
            left.append((at, end))
    return left
