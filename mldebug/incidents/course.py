"""The course of an incident in one line: last step, suspicion, capture, end or now, and the time that is left. Pure."""

from collections.abc import Iterator
from typing import NamedTuple

from mldebug.core.report_model import Report
from mldebug.core.text import rfc3339, seconds_of
from mldebug.core.units import duration_words
from mldebug.incidents.decide import ends_at

SUSPECT = 0.5  # of the timeout: then stacks are sampled


class Moment(NamedTuple):
    """One moment of the strip. `time`: RFC 3339; `clock`: `05:50:41`; `after`: since the moment before it, `+30 s`; "" for the
    first, and for one of the same second."""

    what: str
    time: str
    clock: str
    after: str


class Strip(NamedTuple):
    """The moments in their order. `until`: when PyTorch ends the job, RFC 3339; "" where that is not known, or over."""

    moments: tuple[Moment, ...]
    until: str


def strip(report: Report) -> Strip | None:
    """The strip of a report; None for one with fewer than two moments, such as a capture taken by hand."""
    found = sorted(_moments(report), key=lambda pair: pair[1])
    if len(found) < 2:
        return None
    before = [None, *(at for _, at in found)]
    moments = tuple(_moment(what, at, last) for (what, at), last in zip(found, before, strict=False))  # fmt: skip
    until = ends_at(report)
    return Strip(moments, rfc3339(until) if until is not None else "")


def _moments(report: Report) -> Iterator[tuple[str, float]]:
    since, detected = seconds_of(report.stalled_since or ""), seconds_of(report.detected_at)
    timeout = report.stall.timeout_seconds
    if report.kind == "stall" and since is not None:
        yield "last step", since
        suspected = since + SUSPECT * timeout if timeout else None
        if suspected is not None and detected is not None and suspected < detected:
            yield "suspected", suspected
    if report.kind != "manual" and detected is not None:
        yield {"stall": "stalled", "abnormal_end": "failed"}.get(report.kind, "slow"), detected
    if report.captures and (taken := seconds_of(report.captures[0].at)) is not None:
        yield "captured", taken
    over = seconds_of(report.timeline[-1].at) if report.timeline else None
    if report.state != "open" and over is not None:
        yield {"recovered": "went on"}.get(report.state, "job over"), over


def _moment(what: str, at: float, before: float | None) -> Moment:
    time = rfc3339(at)
    later = 0 if before is None else round(at - before)
    after = f"+{duration_words(later)}" if later else ""
    return Moment(what, time, time[11:19], after)
