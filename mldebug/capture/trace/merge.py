"""Compares the call traces of several ranks: how far each got, and at which call they diverged.

Steps are compared, not times: in each step the training thread of a rank enters and leaves functions and runs lines, and in a healthy
job the sequence of these is the same on all ranks. What not every rank has traced (lines, calls) is left out of it. A step is compared
from where every ring still holds it. A sequence that ends early means that its rank had not come further when its ring was read.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mldebug.capture.trace.records import (
    ENTERS,
    LEAVES,
    Ring,
    TracedFunction,
    TraceEvent,
    TraceEventKind,
    training_thread,
)
from mldebug.core.model import MeasuredData

LINE = TraceEventKind.LINE
MAX_ROW = 400_000  # events of one step that are compared
CONTEXT = 3  # equal events shown before a parting


class Stop(NamedTuple):
    """What a rank did at one point of a step: entered or left a function, or ran a line of it. `line`: 0 unless it is a line."""

    place: TracedFunction
    kind: TraceEventKind
    line: int = 0


class RankProgress(MeasuredData, frozen=True, kw_only=True):
    """How far one rank got, by the call trace that its process wrote (its ring file). `silent_seconds`: from its last record to
    the newest record of all ranks.
    """

    rank: int
    pid: int
    node: str
    step: int | None
    last: TraceEvent | None
    silent_seconds: float
    stopped: str = ""  # why it may have gone on since


class TraceBranch(NamedTuple):
    """Ranks that did the same next, `stop`; None where their call traces end here, and then `inside` is the innermost function
    that they have not left (None: not known).
    """

    ranks: tuple[int, ...]
    stop: Stop | None
    inside: TracedFunction | None = None


class Divergence(MeasuredData, frozen=True, kw_only=True):
    """The first event of a step that is not the same on all ranks, and which ranks did what."""

    step: int | None
    equal: int  # events of the step before it, the same on all
    before: tuple[Stop, ...] = ()  # the last of them
    branches: tuple[TraceBranch, ...] = ()  # the largest first


class MergedRings(MeasuredData, frozen=True, kw_only=True):
    """The comparison of the call traces (ring files) of several ranks. `compared`: the training steps that every trace holds
    whole; `parting`: where in the newest step that differs the ranks do something else. `by`: what was compared, in the words of
    `trace run --what`: calls (with their returns), lines, or both.
    """

    standings: tuple[RankProgress, ...]
    compared: tuple[int | None, ...] = ()
    parting: Divergence | None = None
    by: str = "calls"


def numbered(rings: Sequence[Ring]) -> dict[int, Ring]:
    """One ring for each rank: of several, one that knows its steps, else the newest. Rings of child processes are used only
    where there are no others; rings without any rank are numbered from 0.
    """
    some = [ring for ring in rings if not ring.header.child] or rings
    found = {ring.header.rank: ring for ring in sorted(some, key=_worth)}
    ranked = {rank: ring for rank, ring in found.items() if rank is not None}
    return dict(sorted(ranked.items())) or dict(enumerate(some))


def _worth(ring: Ring) -> tuple[bool, int]:
    return ring.header.step is not None, ring.header.wall_ns


def merge(rings: Mapping[int, Ring]) -> MergedRings:
    """Compare the call traces (ring files) of several ranks, by rank. The clocks of different nodes are not corrected."""
    by = _traced_by_all(rings.values())
    rows = {rank: _rows(ring, by) for rank, ring in rings.items()}
    steps = _common(rows)
    partings = (
        _divergence(step, {rank: some[step] for rank, some in rows.items()})
        for step in reversed(steps)
    )
    return MergedRings(
        standings=tuple(_standings(rings)),
        compared=steps,
        parting=next(filter(None, partings), None),
        by=by,
    )


# --- how far ---------------------------------------------------------------------------------------


def _standings(rings: Mapping[int, Ring]) -> Iterable[RankProgress]:
    ends = {
        r: one.newest + one.header.offset_ns for r, one in rings.items() if one.newest is not None
    }
    end = max(ends.values(), default=0)
    for rank, ring in rings.items():
        mine = training_thread(ring)
        last = _last_of(ring, mine)
        yield RankProgress(
            rank=rank,
            pid=ring.header.pid,
            node=ring.header.node,
            step=last.step if last else None,
            last=last,
            silent_seconds=round((end - ends.get(rank, end)) / 1e9, 3),
            stopped=ring.header.stopped,
        )


def _last_of(ring: Ring, thread: int | None) -> TraceEvent | None:
    """With the step that the process had reached by then."""
    last = None
    for event in ring.events:
        if event.thread == thread:
            last = event
    return last


# --- where they parted -----------------------------------------------------------------------------


def _traced_by_all(rings: Iterable[Ring]) -> str:
    """calls, lines or both: what every ring has; calls where they have nothing in common."""
    rings = list(rings)
    calls, lines = (
        all(any((event.kind is LINE) is wanted for event in ring.events) for ring in rings)
        for wanted in (False, True)
    )
    return "both" if calls and lines else "lines" if lines else "calls"


def _rows(ring: Ring, by: str) -> dict[int | None, list[Stop]]:
    """Step -> what the training thread did in it, for the steps that the ring still has whole."""
    mine = training_thread(ring)
    info = ring.threads.get(mine) if mine is not None else None
    cut: int | None = -1
    rows: dict[int | None, list[Stop]] = defaultdict(list)
    known: dict[Stop, Stop] = {}  # millions of events do few different things: each is kept once
    for event in ring.events:
        if event.thread != mine:
            continue
        if not rows and info and info.cut:
            cut = event.step
        row = rows[event.step]
        line = event.kind is LINE
        if by in ("both", "lines" if line else "calls") and len(row) < MAX_ROW:
            stop = Stop(event.place, event.kind, event.line if line else 0)
            row.append(known.setdefault(stop, stop))
    if cut != -1 and len(rows) > 1:
        rows.pop(cut, None)
    return dict(rows)


def _common(rows: Mapping[int, Mapping[int | None, list[Stop]]]) -> tuple[int | None, ...]:
    """The steps that every rank has begun, in order; what happened before the first step comes first."""
    if not rows:
        return ()
    common = set.intersection(*(set(some) for some in rows.values()))
    return tuple(sorted(common, key=lambda step: -1 if step is None else step))


def _divergence(step: int | None, rows: Mapping[int, Sequence[Stop]]) -> Divergence | None:
    """Where ranks diverged in one step; None where all did the same and came equally far."""
    equal = _equal(list(rows.values()))
    ways: dict[Stop | None, list[int]] = defaultdict(list)
    for rank, row in rows.items():
        ways[row[equal] if equal < len(row) else None].append(rank)
    if len(ways) < 2:
        return None
    first = next(iter(rows.values()))
    inside = _open_at(first[:equal])
    branches = [
        TraceBranch(tuple(ranks), stop, inside if stop is None else None)
        for stop, ranks in ways.items()
    ]
    branches.sort(key=lambda one: (-len(one.ranks), one.ranks))
    before = tuple(first[max(0, equal - CONTEXT) : equal])
    return Divergence(step=step, equal=equal, before=before, branches=tuple(branches))


def _open_at(row: Sequence[Stop]) -> TracedFunction | None:
    """The innermost function that was entered in these events and not left; None where there is none."""
    depth = 0
    for stop in reversed(row):
        if stop.kind in LEAVES:
            depth += 1
        elif stop.kind in ENTERS:
            if depth == 0:
                return stop.place
            depth -= 1
    return None


def _equal(rows: Sequence[Sequence[Stop]]) -> int:
    """How many events all rows begin with."""
    count = 0
    for some in zip(*rows, strict=False):
        if any(one != some[0] for one in some):
            break
        count += 1
    return count
