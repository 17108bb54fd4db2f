"""The output of `trace merge`: how far each rank got and where they diverged, as lines and as JSON."""

from collections.abc import Iterator, Sequence

from mldebug.capture.trace.export import process_name
from mldebug.capture.trace.line_format import event_words, frame_words
from mldebug.capture.trace.merge import Divergence, MergedRings, RankProgress, Stop, TraceBranch
from mldebug.capture.trace.records import LEAVES, Ring, TraceEvent, TraceEventKind
from mldebug.core.ranksets import fold_ranks
from mldebug.core.redact import safe_line

MAX_RANKS = 64  # rows of the table
MAX_BRANCHES = 8
COMPARED = {"calls": "calls and returns", "lines": "lines", "both": "calls, returns and lines"}
LEFT = {TraceEventKind.UNWIND: "by an exception", TraceEventKind.YIELD: "by a yield"}


def merged_lines(merged: MergedRings) -> Iterator[str]:
    """The comparison as lines for people: the ranks furthest behind first, then the first event that differs between ranks."""
    ordered = sorted(merged.standings, key=_behind)
    for one in ordered[:MAX_RANKS]:
        yield _standing_line(one)
    if len(ordered) > MAX_RANKS:
        yield f"… and {len(ordered) - MAX_RANKS:,} more ranks"
    yield ""
    if merged.parting:
        yield from _parting_lines(merged.parting, merged.by)
    elif merged.compared:
        yield f"No rank parted: the {COMPARED[merged.by]} of all {_steps(merged)} are the same."
    else:
        yield "Nothing can be compared: no step is in all of these rings. Larger rings (--size) reach further back."


def _behind(progress: RankProgress) -> tuple[int, float, int]:
    return (-1 if progress.step is None else progress.step), -progress.silent_seconds, progress.rank


def _steps(merged: MergedRings) -> str:
    steps = [step for step in merged.compared if step is not None]
    if not steps:
        return "that happened before the first step"
    return f"steps {steps[0]:,} to {steps[-1]:,}" if len(steps) > 1 else f"of step {steps[0]:,}"


def _standing_line(one: RankProgress) -> str:
    step = "before a step" if one.step is None else f"step {one.step:,}"
    place = event_words(one.last) if one.last else "nothing was traced"
    where = f" on {safe_line(one.node, 60)}" if one.node else ""
    return f"rank {one.rank} (pid {one.pid}{where}): {step}, {one.silent_seconds:.3f} s silent: {place}{one.stopped}"


def _parting_lines(parting: Divergence, by: str) -> Iterator[str]:
    when = "before the first step" if parting.step is None else f"in step {parting.step:,}"
    yield f"They parted {when}, after {parting.equal:,} {COMPARED[by]} that are the same:"
    for stop in parting.before:
        yield f"    {stop_words(stop)}"
    for branch in parting.branches[:MAX_BRANCHES]:
        yield f"  {_branch_words(branch)}"
    if len(parting.branches) > MAX_BRANCHES:
        yield f"  … and {len(parting.branches) - MAX_BRANCHES:,} more ways"


def stop_words(stop: Stop) -> str:
    """What a rank did, in words: the function that it entered, `return from` one, or a line of one."""
    frame = frame_words(stop.place)
    if stop.kind in LEAVES:
        how = f" {LEFT[stop.kind]}" if stop.kind in LEFT else ""
        return f"return from {frame}{how}"
    return f"line {stop.line} of {frame}" if stop.line else frame


def _branch_words(branch: TraceBranch) -> str:
    many = len(branch.ranks) > 1
    who = f"rank{'s' if many else ''} {fold_ranks(branch.ranks)}"
    if branch.stop is not None:
        return f"{who}: {'go' if many else 'goes'} on with {stop_words(branch.stop)}"
    inside = f", inside {frame_words(branch.inside)}" if branch.inside else ""
    return f"{who}: {'have' if many else 'has'} not come further{inside}"


def left_out(rings: Sequence[Ring], merged: MergedRings) -> Iterator[str]:
    """Which ring files (call traces) were not compared, in sentences: of several of one rank only one is."""
    compared = {(one.node, one.pid) for one in merged.standings}
    for header in (ring.header for ring in rings):
        if (header.node, header.pid) not in compared:
            yield f"left out: {process_name(header)}, which is not the newest that trains as this rank"


def merged_object(merged: MergedRings) -> dict[str, object]:
    """The comparison of several ranks' call traces as an object for scripts, ready to be written as JSON."""
    return {
        "by": merged.by,
        "compared_steps": list(merged.compared),
        "ranks": [_standing_object(one) for one in merged.standings],
        "parting": _parting_object(merged.parting) if merged.parting else None,
    }


def _standing_object(progress: RankProgress) -> dict[str, object]:
    return {
        "rank": progress.rank,
        "pid": progress.pid,
        "node": progress.node,
        "step": progress.step,
        "silent_seconds": progress.silent_seconds,
        "last": event_object(progress.last) if progress.last else None,
        "stopped": progress.stopped.strip(),
    }


def _parting_object(parting: Divergence) -> dict[str, object]:
    return {
        "step": parting.step,
        "equal": parting.equal,
        "branches": [
            {
                "ranks": list(one.ranks),
                "next": stop_words(one.stop) if one.stop else None,
                "inside": frame_words(one.inside) if one.inside else None,
            }
            for one in parting.branches
        ],
    }


def event_object(event: TraceEvent) -> dict[str, object]:
    """One event as an object for scripts; `at` is in nanoseconds of the writer's monotonic clock."""
    place = event.place
    return {
        "at": event.at,
        "thread": event.thread,
        "depth": event.depth,
        "kind": event.kind.value,
        "function": safe_line(place.function, 200),
        "module": safe_line(place.module, 200),
        "path": safe_line(place.path, 400),
        "first_line": place.line,
        "line": event.line,
        "step": event.step,
    }
