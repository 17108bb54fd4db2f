"""Checks a capture for impossible numbers: from a damaged file, or a node that sends false ones."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from mldebug.core.model import NodeCapture

MAX_WORLD = 1_000_000
MAX_TIME = 4e9  # unix seconds
MAX_NUMBER = 1e15  # of seconds, ratios, degrees: what is counted exactly is a whole number


def wrong_ranks(ranks: Sequence[int], world: int) -> str:
    """What is wrong with these ranks of a job of `world` ranks, as words that follow a name; "" where nothing is."""
    lowest, highest = min(ranks, default=0), max(ranks, default=0)
    if 0 <= lowest <= highest < world <= MAX_WORLD:
        return ""
    return f"says {world} ranks and shows rank {highest if lowest >= 0 else lowest}"


def wrong_time(at: float) -> str:
    """What is wrong with the time of a capture (unix seconds); "" where nothing is."""
    return "" if 0 <= at < MAX_TIME else f"was taken at {at:g}, which is no time"


def wrong_numbers(capture: NodeCapture) -> str:
    """What is wrong with the times and measures of a capture, as words that follow a name; "" where nothing is."""
    began = (capture.job.started_at, *(rank.started_at for rank in capture.job.ranks))
    times = (capture.taken_at, *began, *(fault.at for fault in capture.faults))
    if wrong := next(filter(None, map(wrong_time, times)), ""):
        return wrong
    if any(abs(one) > MAX_NUMBER for one in _floats(msgspec.to_builtins(capture))):
        return "holds a number that cannot be"
    return ""


def _floats(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict):
        yield from (one for each in value.values() for one in _floats(each))
    elif isinstance(value, list | tuple):
        yield from (one for each in value for one in _floats(each))
