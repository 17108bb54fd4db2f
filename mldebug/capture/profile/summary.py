"""Adds up a trace of `torch.profiler`: which operators and kernels, how long in collectives, how much of it in gaps, and what limits."""

from collections.abc import Iterable, Sequence
from typing import Literal

from mldebug.capture.profile.intervals import Interval, join, length, without
from mldebug.capture.profile.trace import COMMUNICATION, WAITS, ProfileTrace, Span
from mldebug.core.model import MeasuredData

TOP = 8
BUSY, IDLE = 0.85, 0.6  # share of the time in which the device works: it is the limit, it is not
GAPS = 0.5  # share of the time in which nothing of PyTorch runs: that is the limit of a CPU job
EXPOSED = 0.3  # share of the time in which the device only communicates

Limit = Literal["device", "host", "communication", "cpu only", "between", "unclear", "nothing"]


class Share(MeasuredData, frozen=True, kw_only=True):
    """How long one operator or kernel ran: its own time (without what it called), in microseconds, and how often."""

    name: str
    microseconds: float
    count: int


class ProfileSummary(MeasuredData, frozen=True, kw_only=True):
    """Where the time of a trace went. Times are microseconds.

    `span`: all of it, where there is a device from its first work on; `operators` and `kernels`: those that took most; `communication`: time in collectives, and `exposed` the part of it in which
    nothing else ran (on the device, or for a CPU job on the host); `device_busy`: time in which the device works, None without a device;
    `host_busy`: time in which operators run on the host; `host_waits`: time in which it waits for the device; `gap`: the longest time in
    which nothing runs, `gap_after` what ran before it, `gaps` all of that.
    """

    span: float = 0.0
    limit: Limit = "nothing"
    operators: tuple[Share, ...] = ()
    kernels: tuple[Share, ...] = ()
    communication: float = 0.0
    exposed: float = 0.0
    device_busy: float | None = None
    host_busy: float = 0.0
    host_waits: float = 0.0
    gaps: float = 0.0
    gap: float = 0.0
    gap_after: str = ""


def summarize(trace: ProfileTrace) -> ProfileSummary:
    """Add up where the time of one trace went: operators, kernels, collectives, gaps."""
    begin, end = trace.window
    on_device = bool(trace.device)
    if (
        on_device
    ):  # what stands before the first kernel is the start of the profiler: 46 ms on an H200
        begin = max(begin, min(one.begin for one in trace.device))
    if end <= begin:
        return ProfileSummary()
    work = trace.device if on_device else trace.operators
    others = trace.device if on_device else (*trace.operators, *trace.annotations)
    talks = join(one.interval for one in others if COMMUNICATION.match(one.name))
    computes = join(one.interval for one in work if not COMMUNICATION.match(one.name))
    host = _within(join(one.interval for one in trace.operators), (begin, end))
    busy = length(join(one.interval for one in trace.device)) if on_device else None
    waiting = join(one.interval for one in trace.calls if WAITS.match(one.name))
    waits = length(_within(waiting, (begin, end)))
    gaps = without([(begin, end)], join([*talks, *computes]))
    longest = max(gaps, key=lambda one: one[1] - one[0], default=(begin, begin))
    exposed = length(without(talks, computes))
    return ProfileSummary(
        span=end - begin,
        limit=_limit(end - begin, busy, exposed, waits, length(gaps)),
        operators=_top(_own_times(trace.operators)),
        kernels=_top((one.name, one.end - one.begin) for one in trace.device),
        communication=length(talks),
        exposed=exposed,
        device_busy=busy,
        host_busy=length(host),
        host_waits=waits,
        gaps=length(gaps),
        gap=longest[1] - longest[0],
        gap_after=_before(others, longest),
    )


def _within(some: list[Interval], window: Interval) -> list[Interval]:
    return without(some, without(some, [window]))


def _limit(span: float, busy: float | None, exposed: float, waits: float, gaps: float) -> Limit:
    if exposed >= max(EXPOSED * span, gaps):
        return "communication"
    if busy is None:
        return "between" if gaps >= GAPS * span else "cpu only"
    if busy >= BUSY * span:
        return "device"
    return "host" if busy < IDLE * span and waits < (1 - IDLE) * span else "unclear"


def _before(spans: Sequence[Span], gap: Interval) -> str:
    """What ended last before the gap begins."""
    ended = [one for one in spans if one.end <= gap[0]]
    return max(ended, key=lambda one: one.end).name if ended else ""


def _own_times(spans: Iterable[Span]) -> Iterable[tuple[str, float]]:
    """Each operator with its time without what it called, on its thread."""
    by_thread: dict[object, list[Span]] = {}
    for one in spans:
        by_thread.setdefault(one.thread, []).append(one)
    for each in by_thread.values():
        each.sort(key=lambda one: (one.begin, -one.end))
        own = [one.end - one.begin for one in each]
        opened: list[int] = []
        for number, one in enumerate(each):
            while opened and each[opened[-1]].end <= one.begin:
                opened.pop()
            if opened:
                own[opened[-1]] -= min(one.end, each[opened[-1]].end) - one.begin
            opened.append(number)
        yield from ((one.name, max(0.0, time)) for one, time in zip(each, own, strict=True))


def _top(times: Iterable[tuple[str, float]]) -> tuple[Share, ...]:
    sums: dict[str, list[float]] = {}
    for name, time in times:
        total = sums.setdefault(name, [0.0, 0])
        total[0] += time
        total[1] += 1
    largest = sorted(sums.items(), key=lambda item: (-item[1][0], item[0]))[:TOP]
    return tuple(
        Share(name=name, microseconds=time, count=int(count)) for name, (time, count) in largest
    )
