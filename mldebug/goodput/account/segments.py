"""Stretches of time of a run, each with what its GPUs were used for, and their sums over time. Pure."""

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

BINS = 120
BIN_SECONDS = 30.0  # at first; twice as much whenever there are too many


class GpuUse(StrEnum):
    """What a second of a GPU of a job was used for; each second is exactly one of these."""

    PRODUCTIVE = "productive"  # steps that were made for the first time
    STARTUP = "startup"  # from the start of the processes to the first step
    DATA_PREPARATION = "data_preparation"  # before the first step, where the log says so
    DATA_WAIT = "data_wait"  # a rank waits for its next batch
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"  # steps wait for it; one that is written beside them costs nothing
    STRAGGLER = "straggler"  # ranks wait for a slow one
    STALL = "stall"  # an incident: nothing moved
    LOST_WORK = "lost_work"  # steps that had been made before a restart, and unfinished ones
    RESTART_GAP = "restart_gap"  # between two attempts
    IDLE = "idle"  # the training is over, or there is none


class TimeSegment(msgspec.Struct, kw_only=True):
    """A stretch of time with one use. Times are unix seconds.

    `open`: since the last step, so that a stall that is noticed later may still take it.
    """

    start: float
    end: float
    use: GpuUse
    gpus: int
    open: bool = True
    data: float = 0.0  # share of the ranks that were found waiting for data in it

    @property
    def seconds(self) -> float:
        """The length of the segment in seconds, whatever the number of its GPUs."""
        return self.end - self.start


def total(segments: Iterable[TimeSegment], *uses: GpuUse) -> float:
    """The seconds of all segments that have one of these uses, summed up."""
    return sum(one.seconds for one in segments if one.use in uses)


def move(segments: list[TimeSegment], seconds: float, old: GpuUse, new: GpuUse) -> float:
    """Turn up to `seconds` of the use `old` into `new`, the newest first; return how many were turned.

    Segments are split where needed; their order and total length stay.
    """
    left = seconds
    for place in range(len(segments) - 1, -1, -1):
        one = segments[place]
        if left <= 0:
            break
        if one.use is not old:
            continue
        taken = min(left, one.seconds)
        left -= taken
        if taken >= one.seconds:
            one.use = new
            continue
        cut = one.end - taken
        later = msgspec.structs.replace(one, start=cut, use=new)
        one.end = cut
        segments.insert(place + 1, later)
    return seconds - max(0.0, left)


def turn(segments: Iterable[TimeSegment], new: GpuUse, *old: GpuUse) -> None:
    """Change the use of all segments to `new`; where `old` uses are given, only of the segments that have one of these."""
    for one in segments:
        if not old or one.use in old:
            one.use = new


def close(segments: Iterable[TimeSegment]) -> None:
    """Mark these segments as final, because a step has come: a stall that is noticed later no longer changes their use."""
    for one in segments:
        one.open = False


def divided(
    segments: Iterable[TimeSegment], start: float, end: float
) -> tuple[list[TimeSegment], list[TimeSegment], list[TimeSegment]]:
    """Divide segments into those before `start`, those between `start` and `end`, and those after `end` (unix seconds). A
    segment that crosses one of the two times is split.
    """
    parts: tuple[list[TimeSegment], list[TimeSegment], list[TimeSegment]] = ([], [], [])
    for one in segments:
        for part, low, high in zip(
            parts, (one.start, start, end), (start, end, one.end), strict=True
        ):
            begin, stop = max(one.start, low), min(one.end, high)
            if stop > begin:
                part.append(msgspec.structs.replace(one, start=begin, end=stop))
    return parts


def joined(segments: Iterable[TimeSegment]) -> list[TimeSegment]:
    """Return the segments with adjacent ones of the same use joined into one, where both are final (not `open`)."""
    found: list[TimeSegment] = []
    for one in segments:
        last = found[-1] if found else None
        alike = last is not None and (last.use, last.gpus, last.end) == (
            one.use,
            one.gpus,
            one.start,
        )
        if last is not None and alike and not (last.open or one.open):
            last.end = one.end
        elif one.seconds > 0:
            found.append(one)
    return found


class UseHistory(msgspec.Struct, kw_only=True):
    """GPU seconds by use over the life of a job, in at most `BINS` equal stretches of time that become longer with it."""

    start: float = 0.0  # unix
    width: float = BIN_SECONDS
    bins: list[dict[str, float]] = []

    def copied(self) -> "UseHistory":
        """A copy that shares nothing with this history: adding a segment to one does not change the other."""
        bins = [dict(one) for one in self.bins]
        return UseHistory(start=self.start, width=self.width, bins=bins)

    def add(self, segment: TimeSegment) -> None:
        """Add a segment of time to the history; a segment before the history's start counts in its first stretch."""
        if not self.bins:
            self.start = segment.start
        while segment.end - self.start > BINS * self.width:
            self.bins = [add_all(self.bins[at : at + 2]) for at in range(0, len(self.bins), 2)]
            self.width *= 2
        at = segment.start
        while at < segment.end:
            place = max(0, int((at - self.start) / self.width))
            until = min(segment.end, max(at, self.start) + self.width)
            until = min(until, self.start + (place + 1) * self.width)
            until = until if until > at else segment.end
            self.bins += [{} for _ in range(place + 1 - len(self.bins))]
            row = self.bins[place]
            row[segment.use] = row.get(segment.use, 0.0) + (until - at) * segment.gpus
            at = until


def add_all(rows: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Add several tables of seconds by use into one."""
    found: dict[str, float] = {}
    for row in rows:
        for name, seconds in row.items():
            found[name] = found.get(name, 0.0) + seconds
    return found
